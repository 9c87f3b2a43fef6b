"""A raw HTTP request -> one that is authorized, bounded, counted and logged.

ASGI middleware around the service: request ids, API key or Host check, limits on body size and open requests, a timeout
for slow uploads, JSON errors, Prometheus metrics and one JSON log line per request. Log lines never contain a text.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import re
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import PurePath
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pusl.serve.serve_config import ServeConfig

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("pusl.serve.app")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
PROBES = ("/healthz", "/readyz")
BODIES_HELD = 16  # largest bodies in memory at once, so that many slow big uploads cannot fill it
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Problem(Exception):
    """An error answer: status, a code for programs, a message for people."""

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after

    def body(self) -> bytes:
        """The JSON every error of the service has."""
        return json.dumps({"error": {"code": self.code, "message": self.message}}).encode()

    def headers(self) -> dict[str, str]:
        """Headers that go with the status."""
        found = {"content-type": "application/json"}
        if self.retry_after is not None:
            found["retry-after"] = str(self.retry_after)
        if self.status == 401:
            found["www-authenticate"] = "Bearer"
        return found


class Telemetry:
    """The service's Prometheus metrics, in their own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("pusl_http_requests", "HTTP requests answered", ("path", "status"), registry=registry)
        self.latency = Histogram(
            "pusl_http_request_seconds", "Time from the first byte of a request to the end of its answer", ("path",),
            buckets=LATENCIES, registry=registry,
        )  # fmt: skip
        self.open = Gauge("pusl_http_open_requests", "Requests being handled now", registry=registry)
        self.texts = Counter("pusl_texts", "Texts answered with keyphrases", registry=registry)
        self.keyphrases = Counter("pusl_keyphrases", "Keyphrases generated", registry=registry)
        self.dropped = Counter(
            "pusl_texts_dropped", "Texts never started: client gone or timeout", ("reason",), registry=registry
        )
        self.queue_wait = Histogram(
            "pusl_queue_seconds", "Wait of a request before its first batch", buckets=LATENCIES, registry=registry
        )
        self.batch_size = Histogram("pusl_batch_texts", "Texts per batch", buckets=SIZES, registry=registry)
        self.batch_time = Histogram("pusl_batch_seconds", "Time per batch", buckets=LATENCIES, registry=registry)
        self.queued = Gauge("pusl_queue_texts", "Texts waiting for a batch", registry=registry)
        self.restarts = Gauge("pusl_worker_restarts", "Model processes replaced since the start", registry=registry)
        self.connections = Gauge("pusl_connections", "Open connections", registry=registry)
        self.closed = Counter(
            "pusl_connections_closed", "Connections closed by the service", ("reason",), registry=registry
        )
        self.ready = Gauge("pusl_ready", "1 if the model is loaded and the service accepts requests", registry=registry)

    def connection_closed(self, reason: str) -> None:
        """The service closed a connection."""
        self.closed.labels(reason).inc()


class Gateway:
    """Wraps an ASGI app with everything that is the same for all paths."""

    def __init__(
        self,
        app: App,
        *,
        telemetry: Telemetry,
        paths: frozenset[str],
        protected: tuple[str, ...],
        api_key: str | None,
        max_body: int,
        max_open: int,
        body_timeout: float,
        refuse: Callable[[], Exception | None] = lambda: None,
        hosts: frozenset[str] | None = None,
    ) -> None:
        self.app, self.telemetry, self.paths, self.protected = app, telemetry, paths, protected
        self.key = api_key.encode() if api_key else None
        self.max_body, self.max_open, self.body_timeout = max_body, max_open, body_timeout
        self.hosts = hosts  # names that clients may call the server by; None: any
        self.refuse = refuse  # called before the body is read, so that refusing is cheap under overload
        self.open = 0
        self.held = 0  # bytes of all request bodies in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request and logs it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.monotonic(), 0
        headers = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
        given = headers.get("x-request-id", b"").decode("latin-1")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex[:16]
        facts: dict[str, Any] = {}
        scope["pusl.facts"] = facts
        method = scope["method"]

        async def tracked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id.encode()),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        self.open += 1
        self.telemetry.open.set(self.open)
        try:
            if sum(name.lower() == b"host" for name, _ in scope["headers"]) > 1:
                raise Problem(400, "two_hosts", "the request has more than one Host header")
            self._admit(scope["path"], headers)
            if scope["method"] == "POST" and scope["path"] in self.paths:
                if (problem := self.refuse()) is not None:
                    raise problem
                receive = await self._buffered(receive, headers, facts)
            if scope["method"] == "HEAD":  # uvicorn leaves out the body
                scope = {**scope, "method": "GET"}
            await self.app(scope, receive, tracked)
        except Problem as problem:
            facts["code"] = problem.code
            await _answer(problem, tracked)
        except ConnectionError:
            status = status or 499  # the client is gone
        except Exception as error:
            log.error("unhandled", exc_info=error, extra={"facts": {"request_id": request_id}})
            if not status:
                await _answer(Problem(500, "internal", "internal error; look for the request id in the log"), tracked)
        finally:
            self.open -= 1
            self.held -= facts.pop("held", 0)
            self.telemetry.open.set(self.open)
            seconds = time.monotonic() - begun
            path = scope["path"] if scope["path"] in self.paths else "other"
            status = facts.pop("status", status)
            self.telemetry.requests.labels(path, str(status)).inc()
            self.telemetry.latency.labels(path).observe(seconds)
            quiet = path in ("/healthz", "/readyz", "/metrics") and status < 400
            log.log(
                logging.DEBUG if quiet else logging.INFO,
                "request",
                extra={
                    "facts": {
                        "request_id": request_id, "method": method, "path": path, "status": status,
                        "ms": round(seconds * 1000, 1), "client": (scope.get("client") or ("", 0))[0], **facts,
                    }
                },
            )  # fmt: skip

    def _admit(self, path: str, headers: dict[str, bytes]) -> None:
        if self.open > self.max_open and path not in (*PROBES, "/metrics"):
            raise Problem(503, "too_many_open", "too many open requests; try again shortly", retry_after=1)
        if self.hosts is not None and path not in PROBES and not known_host(headers.get("host", b""), self.hosts):
            raise Problem(421, "wrong_host", "the Host header is not a name of this server; see --allowed-hosts")
        if self.key is None or not path.startswith(self.protected):
            return
        scheme, _, token = headers.get("authorization", b"").partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else headers.get("x-api-key", b"")
        if not hmac.compare_digest(given, self.key):
            raise Problem(401, "unauthorized", "send the API key as `Authorization: Bearer KEY` or `X-API-Key: KEY`")

    async def _buffered(self, receive: Receive, headers: dict[str, bytes], facts: dict[str, Any]) -> Receive:
        """Reads the whole body within the limits, then gives it to the app."""
        kind = headers.get("content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem(415, "not_json", "send the body as JSON with `Content-Type: application/json`")
        too_big = Problem(
            413, "body_too_big", f"the body is larger than {self.max_body} bytes; send fewer texts per request"
        )
        length = headers.get("content-length", b"0")
        if length.isdigit() and int(length) > self.max_body:
            raise too_big
        chunks: list[bytes] = []
        size, more = 0, True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.body_timeout
        while more:
            try:
                message = await asyncio.wait_for(receive(), max(0.001, deadline - loop.time()))
            except asyncio.TimeoutError:
                raise Problem(408, "slow_upload", f"the body did not arrive within {self.body_timeout:g} s") from None
            if message["type"] == "http.disconnect":
                raise ConnectionError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            facts["held"] = size
            self.held += len(chunks[-1])
            if self.held > BODIES_HELD * self.max_body:
                raise Problem(503, "too_many_open", "too many big requests at once; try again", retry_after=1)
            more = message.get("more_body", False)
            if size > self.max_body:
                raise too_big
        replay: list[Message] = [{"type": "http.request", "body": b"".join(chunks), "more_body": False}]

        async def replayed() -> Message:
            return replay.pop() if replay else await receive()

        return replayed


def host_names(config: ServeConfig) -> frozenset[str] | None:
    """The names that a server without a key answers to; None if it answers to any.

    A web page of a stranger can make a browser call this server under the stranger's own name (DNS rebinding), but not
    under one of these, and not under an IP address.
    """
    given = [name.strip().lower() for name in (config.allowed_hosts or "").split(",") if name.strip()]
    if "*" in given:
        return None
    own = [] if config.host in ("127.0.0.1", "localhost", "::1") else [socket.gethostname().lower()]
    return frozenset({"localhost", config.host.lower(), *own, *given})


def known_host(header: bytes, names: frozenset[str]) -> bool:
    """Whether a Host header is one of the names or an IP address, with or without a port.

    >>> names = frozenset({"localhost"})
    >>> [known_host(header, names) for header in (b"localhost:80", b"[::1]:80", b"10.0.0.7", b"evil.example")]
    [True, True, True, False]
    """
    host = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(:\d{1,5})?", header.decode("latin-1").lower())
    if host is None:
        return False
    name = host[1].strip("[]").rstrip(".")
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return name in names


async def _answer(problem: Problem, send: Send) -> None:
    headers = [(name.encode(), value.encode()) for name, value in problem.headers().items()]
    body = problem.body()
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class JsonLines(logging.Formatter):
    """Log records as JSON lines. Of an exception only type and place are logged: its message could quote a text."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        line["event"] = record.getMessage()
        line.update(getattr(record, "facts", {}))
        if record.exc_info and record.exc_info[1]:
            line["error"] = type(record.exc_info[1]).__name__
            frames = traceback.extract_tb(record.exc_info[2])
            line["at"] = [f"{PurePath(frame.filename).name}:{frame.lineno}" for frame in frames[-6:]]
        return json.dumps(line)  # ASCII: a client could send characters that a terminal obeys


def set_up_logs(level: str) -> None:
    """JSON lines on stderr for the service and for uvicorn."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("pusl.serve.app", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper() if name == "pusl.serve.app" else "WARNING")
