"""Connections of a hostile or slow client, over real sockets: each has a deadline, and a crowd keeps nobody out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra `serve`")
pytest.importorskip("httptools", reason="needs the extra `serve`")

from pusl.serve.connections import HEADER_BYTES, PIPELINED, Room, connection_room, protocol_options  # noqa: E402
from pusl_eval.files import InputError  # noqa: E402

IDLE, MOST = 0.5, 20
GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Site:
    """A little site behind our connections, in a thread: `/slow` answers when `go` is set, `/big` sends 20 MB."""

    def __init__(self, loop: str) -> None:
        self.closed: Counter[str] = Counter()
        self.open = 0
        self.go = threading.Event()
        self.room = Room(MOST, IDLE, report=lambda reason: self.closed.update([reason]))
        config = uvicorn.Config(
            self.app,
            interface="asgi3",
            loop=loop,
            lifespan="off",
            log_level="critical",
            access_log=False,
            **protocol_options(self.room),
        )
        self.server = uvicorn.Server(config)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],))
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.open += 1
        try:
            while scope["path"] == "/slow" and not self.go.is_set():
                await asyncio.sleep(0.02)
            body = b"x" * 20_000_000 if scope["path"] == "/big" else scope["path"].encode()
            headers = [(b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for start in range(0, len(body), 1_000_000):
                part = body[start : start + 1_000_000]
                await send({"type": "http.response.body", "body": part, "more_body": start + len(part) < len(body)})
        finally:
            self.open -= 1

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def ask(self, path: str = "") -> bytes:
        with self.connect() as connection:
            connection.sendall(GET % path.encode())
            return read(connection)

    def stop(self) -> None:
        self.go.set()
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()


def read(connection: socket.socket) -> bytes:
    """One whole answer."""
    answer = b""
    while True:
        head, _, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if length and len(body) >= int(length[1]):
            return answer
        part = connection.recv(65536)
        assert part, answer
        answer += part


@pytest.fixture(params=["asyncio", "uvloop"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    found = Site(request.param)
    try:
        yield found
    finally:
        found.stop()


def seconds_until_closed(connection: socket.socket, drip: bytes = b"") -> float:
    """How long the server keeps a connection on which `drip` is sent again and again."""
    begun = time.monotonic()
    connection.settimeout(0.1)
    while time.monotonic() - begun < 15:
        try:
            if drip:
                connection.sendall(drip)
            if connection.recv(65536) == b"":
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    return time.monotonic() - begun


@pytest.mark.slow
@pytest.mark.parametrize(
    ("opening", "drip"),
    [
        (b"", b""),  # half-open: never sends a byte
        (b"GET / HTT", b""),
        (b"GET / HTTP/1.1\r\n", b"X: y\r\n"),  # slow headers, a few bytes at a time
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),  # silent after an answer
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n", b"x"),  # a body that nobody wants
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),  # without an end
        (b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n", None),  # never reads the answer
    ],
)
def test_a_slow_client_is_cut_off(site: Site, opening: bytes, drip: bytes | None) -> None:
    with site.connect() as connection:
        connection.sendall(opening)
        if drip is None:
            end = time.monotonic() + 15
            while not site.closed["slow_reader"] and time.monotonic() < end:
                time.sleep(0.05)
            assert site.closed["slow_reader"] == 1
        else:
            assert 0.3 < seconds_until_closed(connection, drip) < 8
            assert site.closed == {"idle": 1}
    end = time.monotonic() + 5
    while (site.open or site.room.waiting or site.server.server_state.connections) and time.monotonic() < end:
        time.sleep(0.02)
    assert not site.open and not site.room.waiting and not site.server.server_state.connections
    assert site.ask().endswith(b"/")


def test_an_answer_reaches_a_client_that_is_still_sending(site: Site) -> None:
    """Also one that wants the connection closed: closing it at once would destroy the answer on its way."""
    opening = b"POST /early HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    size = 8_000_000
    with site.connect() as connection:
        connection.sendall(opening % size + b"x" * size)
        assert read(connection).endswith(b"/early")
        assert connection.recv(1) == b""
    with site.connect() as connection:  # one that never ends is cut off all the same
        connection.sendall(opening % size + b"x")
        assert read(connection).endswith(b"/early")
        end = time.monotonic() + 15
        while not site.closed["idle"] and time.monotonic() < end:
            time.sleep(0.05)
    assert site.closed == {"idle": 1}
    assert site.ask().endswith(b"/")


def test_large_headers_are_refused_before_they_are_read(site: Site) -> None:
    for size in (HEADER_BYTES + 1, 100_000_000):
        with site.connect() as connection:
            sent = 0
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET / HTTP/1.1\r\nX: ")
                while sent < size:
                    sent += connection.send(b"x" * min(65536, size - sent))
                connection.sendall(b"\r\n\r\n")
            if size < 100_000:
                answer = read(connection)
                assert answer.startswith(b"HTTP/1.1 431 ")
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_big"
            else:
                assert sent < 50_000_000  # the rest met a closed door
    with site.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 8000 + b"\r\n")  # many small ones
        assert b" 431 " in read(connection)
    with site.connect() as connection:
        connection.sendall(b"GET /" + b"a" * HEADER_BYTES + b" HTTP/1.1\r\n\r\n")
        assert b" 431 " in read(connection)
    with site.connect() as connection:
        connection.sendall(b"GET /fine HTTP/1.1\r\nX: " + b"x" * (HEADER_BYTES - 100) + b"\r\n\r\n")
        assert b" 200 " in read(connection)
    assert site.closed["headers_too_big"] == 4


def test_a_crowd_of_idle_connections_keeps_nobody_out(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        busy = stack.enter_context(site.connect())
        busy.sendall(GET % b"slow")
        while not site.open:
            time.sleep(0.01)
        idle = [stack.enter_context(site.connect()) for _ in range(3 * MOST)]
        for _ in range(5):
            assert site.ask("hello").endswith(b"/hello")
        assert site.closed["crowded"] >= 2 * MOST
        assert len(site.server.server_state.connections) <= MOST
        with contextlib.suppress(ConnectionError):
            assert idle[0].recv(1) == b""  # the longest waiting one had to go
        site.go.set()
        assert read(busy).endswith(b"/slow")  # and the one at work did not


def test_busy_connections_are_never_cut_for_a_new_one(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        busy = [stack.enter_context(site.connect()) for _ in range(MOST)]
        for connection in busy:
            connection.sendall(GET % b"slow")
        while site.open < MOST:
            time.sleep(0.01)
        with site.connect() as late:
            assert read(late).startswith(b"HTTP/1.1 503 ")
        time.sleep(IDLE + 0.3)  # a request at work has no deadline here: the service has its own
        site.go.set()
        for connection in busy:
            assert read(connection).endswith(b"/slow")


def test_what_is_not_http_gets_one_line(site: Site) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00",
        b"HELO\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"\r\n" * 50,
    ):
        with site.connect() as connection:
            connection.sendall(garbage)
            if garbage.strip():
                answer = read(connection)
                assert answer.startswith(b"HTTP/1.1 400 "), garbage
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "not_http"


def test_pipelined_requests_are_answered_in_order_up_to_a_limit(site: Site) -> None:
    with site.connect() as connection:
        connection.sendall(b"".join(GET % str(number).encode() for number in range(10)))
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 10 or not answers.endswith(b"/9"):
            answers += connection.recv(65536)
        assert re.findall(rb"\r\n\r\n/(\d)", answers) == [str(number).encode() for number in range(10)]
    with site.connect() as connection:
        connection.sendall(GET % b"slow" * (PIPELINED + 10))
        assert seconds_until_closed(connection) < 8
    assert site.closed["pipelined"] == 1


@pytest.mark.parametrize("trailer", [b"X: y\r\n", b"X: " + b"y" * 60_000], ids=["many", "one"])
def test_trailers_without_an_end_are_cut_off(site: Site, trailer: bytes) -> None:
    with site.connect() as connection:
        connection.sendall(
            b"POST /slow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
        )
        connection.sendall(b"".join([trailer] * (1 if len(trailer) > 9 else 1000)))
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 50_000_000:
                sent += connection.send(b"y" * 60_000 if len(trailer) > 9 else trailer * 10_000)
        assert sent < 50_000_000
    assert site.closed["overhead"] == 1


def test_small_chunks_are_fine(site: Site) -> None:
    with site.connect() as connection:
        connection.sendall(b"POST /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"1\r\nx\r\n" * 20_000 + b"0\r\nX: y\r\n\r\n" + GET % b"next")
        answers = b""
        while not answers.endswith(b"/next"):
            part = connection.recv(65536)
            assert part, (answers, site.closed)
            answers += part
    assert not site.closed["overhead"]


def test_a_websocket_is_not_opened(site: Site) -> None:
    head = b"GET /chat HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: %s\r\n"
    for name, more in (
        (b"websocket", b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"),
        (b"h2c", b""),
    ):
        with site.connect() as connection:
            connection.sendall(head % name + more + b"\r\n")
            assert read(connection).startswith(b"HTTP/1.1 200 ")


def test_the_room_follows_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource", reason="needs POSIX")
    limits = [1024, 1024]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.__setitem__(slice(None), wanted))
    limits[:] = 1024, 100_000
    assert connection_room(2048, 1) == (2048, 512)
    assert limits[0] > 2560  # raised, because it may be
    limits[:] = 256, 256
    most, backlog = connection_room(2048, 1)
    assert 100 < most < most + backlog < 256 - 40
    limits[:] = 64, 64
    with pytest.raises(InputError, match="ulimit -n"):
        connection_room(2048, 1)
