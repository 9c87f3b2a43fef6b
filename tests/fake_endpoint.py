"""Faults on request -> a real HTTP endpoint that shows them.

Speaks chat completions with the rule-based answers of pusl/llm/fake_endpoint.py, and misbehaves as
told: by a list of faults for the next requests, or at random with a seed. It remembers what it
received and which verdicts it really gave, so that tests can hold the client's counts against it.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Any

from pusl.llm import fake_endpoint as rules

TRANSPORT = ("429", "500", "503", "drop", "half", "slow", "html")  # retried: the model was never heard
CONTENT = ("malformed", "missing", "extra", "refusal")  # answered, but not (fully) usable


class FakeEndpoint:
    """`with FakeEndpoint(...) as endpoint:` listens on `endpoint.url` until the block ends."""

    def __init__(
        self,
        faults: tuple[str, ...] | list[str] = (),  # of the next requests, in order; then none
        random_faults: tuple[str, ...] = (),
        rate: float = 0.0,  # share of requests that get one of random_faults
        seed: int = 0,
        structured: str = "json_schema",  # the strictest response_format it takes; "text": none
        temperature: bool = True,  # whether the model takes a temperature
        max_tokens: bool = True,  # whether it takes the old name of the cap
        key: str | None = None,  # the only accepted key
        model: str | None = None,  # the only known model
        retry_after: str = "0.02",
        slow: float = 1.0,  # seconds before a slow answer
        latency: float = 0.0,
        prose: bool = False,  # wraps the JSON of an answer in words
        poison: str | None = None,  # a text whose items always fail with HTTP 500
        always: str | None = None,  # one fault for every request
        usage: bool = True,
    ) -> None:
        self.faults, self.random_faults, self.rate = list(faults), random_faults, rate
        self.structured, self.temperature, self.key, self.model = structured, temperature, key, model
        self.max_tokens = max_tokens
        self.retry_after, self.slow, self.latency, self.prose = retry_after, slow, latency, prose
        self.poison, self.always, self.usage = poison, always, usage
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.bodies: list[dict[str, Any]] = []  # every request that was received
        self.headers: list[dict[str, str]] = []
        self.shown: Counter[str] = Counter()  # faults by kind
        self.given: dict[tuple[str, str], bool] = {}  # (item text, keyphrase) -> verdict that was sent in full
        self.now = self.most = 0  # requests under way

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self) -> FakeEndpoint:
        endpoint = self

        class Handler(_Handler):
            pass

        Handler.endpoint = endpoint
        self.server = _Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def choose(self, body: dict[str, Any]) -> str | None:
        """Counts a request and decides what goes wrong with it."""
        with self.lock:
            self.bodies.append(body)
            fault = self.always
            if self.poison is not None and self.poison in body["messages"][-1]["content"]:
                fault = "500"
            elif self.faults:
                fault = self.faults.pop(0) or None
            elif self.random_faults and self.random.random() < self.rate:
                fault = self.random.choice(self.random_faults)
            if fault:
                self.shown[fault] += 1
            return fault

    def unfit(self, body: dict[str, Any]) -> str | None:
        """What a pickier server says of the request."""
        wanted = (body.get("response_format") or {}).get("type", "text")
        order = ("text", "json_object", "json_schema")
        if order.index(wanted) > order.index(self.structured):
            return f"Invalid parameter: 'response_format' of type '{wanted}' is not supported with this model."
        if "temperature" in body and not self.temperature:
            return "Unsupported value: 'temperature' does not support 0 with this model."
        if "max_tokens" in body and not self.max_tokens:
            return "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        return None

    def note(self, messages: list[dict[str, str]], sent: list[dict[str, Any]]) -> None:
        text, phrases, _, _ = rules.read_question(messages[-1]["content"])
        with self.lock:
            for entry in sent:
                self.given[text, phrases[entry["number"] - 1]] = entry["verdict"] == "yes"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away (time-out) is part of the test."""


class _Handler(rules.Handler):  # type: ignore[misc, name-defined]
    endpoint: FakeEndpoint

    def do_POST(self) -> None:
        endpoint = self.endpoint
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with endpoint.lock:
            endpoint.headers.append({name.lower(): text for name, text in self.headers.items()})
            endpoint.now += 1
            endpoint.most = max(endpoint.most, endpoint.now)
        try:
            self.respond(body)
        finally:
            with endpoint.lock:
                endpoint.now -= 1

    def respond(self, body: dict[str, Any]) -> None:
        endpoint = self.endpoint
        fault = endpoint.choose(body)
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.path != "/v1/chat/completions":
            return self.fail(404, f"no such address: {self.path}")
        if endpoint.key is not None and key != endpoint.key:
            return self.fail(401, f"Incorrect API key provided: {key}.")  # echoes it, as some servers do
        if endpoint.model is not None and body["model"] != endpoint.model:
            return self.fail(404, f"The model '{body['model']}' does not exist")
        if complaint := endpoint.unfit(body):
            return self.fail(400, complaint)
        if fault in ("401", "402", "403", "404", "500", "503", "529"):
            return self.fail(int(fault), f"fault {fault}; key {key}")
        if fault == "400":
            return self.fail(400, "This prompt was filtered")
        if fault == "400json":
            return self.fail(400, "The JSON body is longer than the model's context")
        if fault == "429":
            return self.fail(429, "slow down", {"Retry-After": endpoint.retry_after})
        if fault == "quota":
            return self.fail(429, "You exceeded your current quota", code="insufficient_quota")
        if fault == "drop":
            return self.drop()
        if fault == "slow":
            time.sleep(endpoint.slow)
        time.sleep(endpoint.latency)
        return self.answer(body, fault)

    def answer(self, body: dict[str, Any], fault: str | None) -> None:
        endpoint, messages = self.endpoint, body["messages"]
        answer = rules.answer_to(messages)
        verdicts = answer.get("verdicts")
        if fault == "missing":
            (verdicts if verdicts is not None else answer["keyphrases"]).pop()
        if fault == "extra" and verdicts is not None:
            verdicts.append({"number": len(verdicts) + 1, "verdict": "yes"})
        content: str | None = json.dumps(answer)
        assert content is not None
        if endpoint.prose:
            content = f"<think>1. yes? 2. yes?</think>Sure! Here it is:\n```json\n{content}\n```\nAnything else?"
        if fault == "malformed":
            content = content[: content.index("[")].rstrip(": ")
        value = rules.completion(body["model"], content, messages)
        if fault == "refusal":
            value["choices"][0]["message"] = {
                "role": "assistant",
                "content": None,
                "refusal": "I cannot help with that.",
            }
        if not endpoint.usage:
            del value["usage"]
        if fault == "html":
            return self.raw(b"<html>gateway</html>", "text/html")
        if fault == "half":
            return self.raw(json.dumps(value).encode(), cut=True)
        if verdicts is not None and fault in (None, "missing"):
            endpoint.note(messages, verdicts)
        return self.reply(200, value)

    def fail(self, status: int, message: str, headers: dict[str, str] | None = None, code: str | None = None) -> None:
        self.reply(status, {"error": {"message": message, "code": code}}, headers)

    def raw(self, data: bytes, kind: str = "application/json", cut: bool = False) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.drop()

    def drop(self) -> None:
        """Cuts the connection without a goodbye (RST)."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
