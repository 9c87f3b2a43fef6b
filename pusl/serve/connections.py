"""A TCP connection -> HTTP requests, within limits on number, header size and time.

Uvicorn bounds none of these: a client that never finishes its headers keeps its connection for as long as it likes.
Here every connection has a deadline unless the service works on its request:

    no complete headers          `HEADER_SECONDS` after the connection or the request began
    silent after an answer       `idle` seconds
    an answer that nobody reads  `idle` seconds

If there is no room for a new connection, the one that has been waiting longest is closed. So a crowd of idle
connections cannot keep a health check out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pusl_eval.files import InputError

HEADER_SECONDS = 10.0
HEADER_BYTES = 32 * 1024  # of the request line and all headers
BODY_OVERHEAD = 8  # bytes of chunk sizes and the like for each byte of a body
DISCARDED_BYTES = 1 << 20  # read and thrown away while a refusal is on its way
PIPELINED = 16  # requests that may wait behind the one being answered, on one connection
PRIVATE_FILES = 48  # descriptors for everything but clients: the log, the event loop, pipes to model processes
FEWEST = 16  # connections that a service needs to be one


@dataclass
class Room:
    """What all connections share: their limits, and who is waiting, longest first."""

    most: int = 2048
    idle: float = 30.0
    waiting: OrderedDict[Connection, None] = field(default_factory=OrderedDict)
    report: Callable[[str], None] = lambda reason: None  # called for every connection that is closed, with the reason


class Connection(HttpToolsProtocol):
    """Uvicorn's connection with limits. `Connection.within(room)` is the class to give to uvicorn."""

    room = Room()

    @classmethod
    def within(cls, room: Room) -> type[Connection]:
        """This class for one service."""
        return type("Connection", (cls,), {"room": room})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection; if it is one too many, the longest waiting one makes room."""
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._in_headers = False
        self._header_bytes = 0
        self._ending = False
        self._last = False  # nothing follows the request that is being read and is answered already
        self._discarded = 0
        self._overhead = 0  # bytes of this request that are neither headers nor body: chunk sizes, trailers
        if len(self.connections) > self.room.most:
            if not self.room.waiting:
                self.refuse(503, "too_many_connections", "too many connections; try again shortly", linger=0)
                return
            self.room.waiting.popitem(last=False)[0].drop("crowded")
        self._wait(min(HEADER_SECONDS, self.room.idle))

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever wanted it."""
        self._busy()
        self._cancel_stalled()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes; headers that grow beyond the limit end the connection."""
        if self._ending:
            self._discarded += len(data)
            if self._discarded > DISCARDED_BYTES:
                self.transport.abort()
            return
        before = self._in_headers
        self._header_bytes = self._header_bytes + len(data) if before else 0
        self._overhead = 0 if before else self._overhead + len(data)
        super().data_received(data)
        if self._in_headers and not before:
            self._header_bytes = len(data)
        if self._in_headers and self._header_bytes > HEADER_BYTES:
            self._refuse_headers()
        elif self._overhead > 2 * HEADER_BYTES:
            self.drop("overhead")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_headers = True
        if self in self.room.waiting:
            self._wait(min(HEADER_SECONDS, self.room.idle))

    def on_headers_complete(self) -> None:
        """The headers are here: from now on the service's own time limits count."""
        self._in_headers, self._overhead = False, 0
        if self._ending:
            return
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEADER_BYTES:
            return self._refuse_headers()
        if len(self.pipeline) >= PIPELINED:
            return self.drop("pipelined")
        self._busy()
        super().on_headers_complete()
        self.cycle.transport = Courteous(self, self.cycle)  # type: ignore[assignment]

    def on_response_complete(self) -> None:
        """An answer is written; the next request may come, or what is left of a body nobody wanted."""
        if not self.pipeline:
            self._wait(self.room.idle)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._cancel_stalled()
        self._stalled = self.loop.call_later(self.room.idle, self.drop, "slow_reader")

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        self._cancel_stalled()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets the service's own kind of error."""
        self.refuse(400, "not_http", "this is not a valid HTTP request")

    def _unsupported_upgrade_warning(self) -> None:
        """Uvicorn logs two lines of advice; a request for a WebSocket is answered like any other."""

    def on_body(self, body: bytes) -> None:
        """Part of a body, unless the connection is at its end."""
        self._overhead -= (1 + BODY_OVERHEAD) * len(body)
        if not self._ending:
            super().on_body(body)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Those behind a chunked body are thrown away: nobody needs them, and there is no end to them."""
        if self._in_headers:
            super().on_header(name, value)

    def on_message_complete(self) -> None:
        """The end of a request, unless the connection is at its end."""
        if self._last:
            self._ending = True
            self.transport.close()
        elif not self._ending:
            super().on_message_complete()

    def close_after(self, cycle: Any) -> None:
        """Closes after an answer; if the body is still on its way, when it has come. Its bytes are thrown away.

        Closing at once would destroy the answer: the client would see a broken connection instead of "too large".
        """
        self._last = cycle.more_body and self.transport.can_write_eof()
        if not self._last:
            self.transport.close()
        elif not self.transport.is_closing():
            self.transport.write_eof()

    def refuse(self, status: int, code: str, message: str, linger: float = 1.0) -> None:
        """Answers without asking the service, and ends the connection.

        It stays for a moment, and what arrives is thrown away: closing at once could destroy the answer on its way.
        """
        if self._ending:
            return
        self._ending = True
        self.room.report(code)
        body = json.dumps({"error": {"code": code, "message": message}})
        self.transport.write(
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
        )
        if linger and self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()
        self._wait(linger)

    def drop(self, reason: str) -> None:
        """Cuts the connection; what was not sent yet is lost."""
        if not self._ending:
            self.room.report(reason)
        self._ending = True
        self.transport.abort()

    def _refuse_headers(self) -> None:
        self.refuse(431, "headers_too_big", f"the request line and headers are larger than {HEADER_BYTES} bytes")

    def _wait(self, seconds: float) -> None:
        """The service waits for the client, at most this long."""
        self._busy()
        self.room.waiting[self] = None
        self._deadline = self.loop.call_later(seconds, self.drop, "idle")

    def _busy(self) -> None:
        self.room.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class Courteous:
    """The transport as uvicorn's answers see it; see `Connection.close_after`."""

    def __init__(self, connection: Connection, cycle: Any) -> None:
        self._connection, self._cycle = connection, cycle

    def close(self) -> None:
        """Closes, but not too soon."""
        self._connection.close_after(self._cycle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection.transport, name)


def connection_room(wanted: int, workers: int) -> tuple[int, int]:
    """(connections, backlog) that the process's descriptors allow; the soft limit is raised if it may be.

    The event loop accepts a whole backlog at once before it hands over any connection, so that needs descriptors too.
    """
    private = PRIVATE_FILES + 4 * workers
    backlog = min(1024, max(FEWEST, wanted // 4))
    limit = _descriptors(wanted + backlog + private)
    if limit is not None and wanted + backlog + private > limit:
        backlog = min(backlog, max(FEWEST, (limit - private) // 3))
        wanted = limit - private - backlog
        if wanted < FEWEST:
            raise InputError(
                f"this process may open {limit} files; pusl serve needs {private + 2 * FEWEST}: raise `ulimit -n`"
            )
    return wanted, backlog


def _descriptors(wanted: int) -> int | None:
    """Files this process may open, after raising the limit to `wanted` if that is allowed; None: no such limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    return None if soft == resource.RLIM_INFINITY else soft


def protocol_options(room: Room) -> dict[str, Any]:
    """Settings for `uvicorn.Config`."""
    return {"http": Connection.within(room), "ws": "none", "timeout_keep_alive": max(1, int(room.idle))}
