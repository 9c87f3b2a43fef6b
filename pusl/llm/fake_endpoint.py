"""python -m pusl.llm.fake_endpoint --port 8123

A local endpoint without a model, to try `pusl judge` and `pusl generate --llm` for free. It speaks the
chat-completions protocol, but understands PUSL's own prompts only. As a judge it says yes if every word
of the keyphrase occurs in the item's text. As a generator it returns phrases of the text. Like a good
model, it reads only what is between the prompt's tags.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

from pusl.llm.prompts import unescape

_ITEM = re.compile(r"\A<item>\n(.*?)</item>\n", re.DOTALL)
_KEYPHRASES = re.compile(r"</item>\n<keyphrases>\n(.*?)</keyphrases>\n", re.DOTALL)
_KNOWN = re.compile(r"</item>\n<known>\n(.*?)</known>\n", re.DOTALL)
_WORD = re.compile(r"\w+")


def read_question(content: str) -> tuple[str, list[str] | None, int, list[str]]:
    """The last message -> (item text, keyphrases to judge or None, how many to generate, known ones)."""
    found = _ITEM.search(content)
    if not found:
        raise ValueError("the message has no <item>")
    text = unescape(re.sub(r"</?\w+>", " ", found[1]))
    listed = _KEYPHRASES.search(content)
    if listed:
        lines = listed[1].splitlines()
        numbers = [line.partition(". ")[0] for line in lines]
        if numbers != [str(number) for number in range(1, len(lines) + 1)]:
            raise ValueError("the keyphrases are not numbered from 1")
        return text, [unescape(line.partition(". ")[2]) for line in lines], 0, []
    known = _KNOWN.search(content)
    wanted = re.search(r"Give exactly (\d+)[^\n]*\Z", content)
    return text, None, int(wanted[1]) if wanted else 5, known[1].splitlines() if known else []


def fits(text: str, keyphrase: str) -> bool:
    """The rule: every word of the keyphrase occurs in the text."""
    return set(_WORD.findall(keyphrase.lower())) <= set(_WORD.findall(text.lower()))


def phrases_of(text: str, count: int, known: Sequence[str] = ()) -> list[str]:
    """Pairs of neighboring words, then single words, in the order of the text."""
    words = _WORD.findall(text.lower())
    phrases = dict.fromkeys([*map(" ".join, pairwise(words)), *words])
    return [phrase for phrase in phrases if phrase not in known][:count]


def answer_to(messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """The JSON that a perfect model following the rule would answer."""
    text, keyphrases, wanted, known = read_question(messages[-1]["content"])
    if keyphrases is None:
        return {"keyphrases": phrases_of(text, wanted, known)}
    verdicts = ["yes" if fits(text, phrase) else "no" for phrase in keyphrases]
    return {"verdicts": [{"number": number, "verdict": verdict} for number, verdict in enumerate(verdicts, 1)]}


def completion(model: str, content: str, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """The body of a chat completion."""
    tokens_in = sum(len(_WORD.findall(message["content"])) for message in messages)
    return {
        "id": "chatcmpl-local", "object": "chat.completion", "created": 0, "model": model,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
        "usage": {"prompt_tokens": tokens_in, "completion_tokens": len(_WORD.findall(content))},
    }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """POST /v1/chat/completions."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer waits 40 ms for the client's acknowledgment

    def do_POST(self) -> None:
        """Answers one request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/v1/chat/completions":
            return self.reply(404, {"error": {"message": f"no such address: {self.path}"}})
        try:
            request = json.loads(body)
            answer = json.dumps(answer_to(request["messages"]))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            return self.reply(400, {"error": {"message": f"not a prompt of PUSL: {error}"}})
        return self.reply(200, completion(request.get("model", "local"), answer, request["messages"]))

    def reply(self, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
        """Sends JSON."""
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing: one line per request would hide everything else."""


def main() -> None:
    """Serves until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--port", type=int, default=8123, metavar="N", help="port on 127.0.0.1; 0 picks a free one (default: 8123)"
    )
    port = parser.parse_args().port
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        parser.error(f"--port {port}: {error}")
    print(f"listening on http://127.0.0.1:{server.server_port}/v1 (Ctrl-C stops)", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    server.server_close()


if __name__ == "__main__":
    main()
