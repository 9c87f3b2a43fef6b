"""The gateway around the service, called as ASGI: what no client can easily provoke from outside."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra `serve`")

from pusl.serve.gateway import BODIES_HELD, Gateway, JsonLines, Telemetry

SECRET = "a customer's unpublished text"


def gateway(app: Any, **changes: Any) -> Gateway:
    settings: dict[str, Any] = {
        "telemetry": Telemetry(), "paths": frozenset({"/v1/keyphrases", "/healthz"}), "protected": ("/v1/",),
        "api_key": None, "max_body": 100, "max_open": 10, "body_timeout": 5.0,
    }  # fmt: skip
    return Gateway(app, **{**settings, **changes})


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


class Client:
    """One request whose body arrives when the test says so."""

    def __init__(self, target: Gateway, path: str = "/v1/keyphrases") -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        scope = {
            "type": "http", "method": "POST", "path": path, "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
        }  # fmt: skip
        self.task = asyncio.ensure_future(target(scope, self.incoming.get, self.send))

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def part(self, body: bytes, more: bool) -> None:
        self.incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None


def test_bodies_share_one_memory_budget_that_is_given_back() -> None:
    async def scene() -> None:
        target = gateway(echo, max_open=100)
        clients = [Client(target) for _ in range(BODIES_HELD + 1)]
        for client in clients[:-1]:
            await client.part(b"x" * 100, more=True)
        assert target.held == BODIES_HELD * 100
        await clients[-1].part(b"x", more=False)
        assert clients[-1].status == 503
        for client in clients[:-1]:
            await client.part(b"", more=False)
        assert [client.status for client in clients[:-1]] == [200] * BODIES_HELD
        assert target.held == target.open == 0
        again = Client(target)
        await again.part(b"{}", more=False)
        assert (again.status, again.sent[1]["body"]) == (200, b"{}")

    asyncio.run(scene())


def test_open_requests_are_bounded_but_probes_get_through() -> None:
    async def scene() -> None:
        target = gateway(echo, max_open=2)
        waiting = [Client(target), Client(target)]
        await asyncio.sleep(0.01)
        refused, probe = Client(target), Client(target, "/healthz")
        await refused.part(b"{}", more=False)
        await probe.part(b"{}", more=False)
        assert refused.status == 503
        assert (b"retry-after", b"1") in refused.sent[0]["headers"]
        assert probe.status == 200
        for client in waiting:
            await client.part(b"{}", more=False)
            assert client.status == 200

    asyncio.run(scene())


def test_an_unforeseen_error_is_a_500_and_its_message_stays_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError(f"cannot handle {SECRET}")

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("pusl.serve.app")
    logger.addHandler(handler)
    try:

        async def scene() -> None:
            client = Client(gateway(broken))
            await client.part(b"{}", more=False)
            assert client.status == 500
            assert json.loads(client.sent[1]["body"])["error"]["code"] == "internal"

        asyncio.run(scene())
    finally:
        logger.removeHandler(handler)
    assert "customer" not in stream.getvalue()
    line = json.loads(stream.getvalue().splitlines()[0])
    assert line["error"] == "RuntimeError"
    assert any("test_serve_gateway.py" in place for place in line["at"])
