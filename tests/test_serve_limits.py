"""`pusl serve` under deliberate load, at its defaults: few descriptors, huge requests, a model process that hangs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from server_process import Server, make_text, shared_model

pytestmark = pytest.mark.slow
pytest.importorskip("fastapi", reason="needs the extra `serve`")
if os.name == "nt":
    pytest.skip("needs POSIX signals and limits", allow_module_level=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(shared_model(), descriptors=256) as found:
        yield found.wait_ready()


def wait_for(what: Any, seconds: float) -> float:
    """Seconds until `what()` is true."""
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < seconds, f"waited {seconds} s in vain"
        time.sleep(0.1)
    return time.monotonic() - begun


def test_idle_connections_beyond_the_descriptors_keep_nobody_out(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
        begun = time.monotonic()
        assert server.call("GET", "/healthz")[0] == server.call("GET", "/readyz")[0] == 200
        assert server.ask([make_text(1)], k=2)[0] == 200
        assert time.monotonic() - begun < 5
        assert server.metric('pusl_connections_closed_total{reason="crowded"}') >= 200
        assert server.metric("pusl_connections") < 256


def worker_seconds(server: Server) -> float:
    """Processor time of the model process: unlike the clock, it does not depend on what else the machine does."""
    fields = Path(f"/proc/{server.worker_pid()}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_heaviest_work_allowed_delays_others_less_than_two_seconds(server: Server) -> None:
    heavy = [
        {"k": 50, "strategy": "sequence", "num_beams": 64, "count": 2},
        {"k": 50, "strategy": "beam", "num_beams": 64, "count": 60},
        {"k": 30, "strategy": "sequence", "count": 8},
    ]
    stop, delays, statuses = threading.Event(), [], []

    def small() -> None:
        seed = 0
        while not stop.is_set():
            begun, seed = worker_seconds(server), seed + 1
            assert server.ask([make_text(seed)], k=3)[0] == 200
            delays.append(worker_seconds(server) - begun)
            time.sleep(0.02)

    def large(options: dict[str, Any]) -> int:
        count = options.pop("count")
        return server.ask([make_text(seed, 40) for seed in range(count)], **options)[0]

    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(small)
        try:
            for options in heavy:
                statuses.append(large(options))
        finally:
            stop.set()
        other.result()
    assert len(delays) > 3
    assert max(delays) < 2.0, sorted(delays)[-5:]
    assert set(statuses) <= {200, 422, 504}  # answered, or too slow: this depends on the machine


@pytest.mark.parametrize(
    ("count", "options", "advice"),
    [
        (200, {"k": 50, "strategy": "sequence", "num_beams": 64}, "send at most 6 texts at once, or lower num_beams"),
        (256, {"k": 50, "strategy": "sequence"}, "send at most 100 texts"),
    ],
)  # fmt: skip
def test_a_request_over_the_budget_is_refused_with_advice(
    server: Server, count: int, options: dict[str, Any], advice: str
) -> None:
    begun = time.monotonic()
    status, answer, _ = server.ask(["a text"] * count, **options)
    assert (status, answer["error"]["code"]) == (413, "too_costly")
    assert advice in answer["error"]["message"]
    assert "at most 20000 per request" in answer["error"]["message"]
    assert "\n" not in answer["error"]["message"]
    assert time.monotonic() - begun < 2
    assert server.call("GET", "/v1/model")[1]["limits"]["max_work"] == 20_000


def test_a_silent_model_process_is_told_and_replaced(server: Server) -> None:
    restarts = server.metric("pusl_worker_restarts")
    os.kill(server.worker_pid(), signal.SIGSTOP)  # while it has nothing to do
    wait_for(lambda: server.call("GET", "/readyz")[0] == 503, 20)
    assert server.call("GET", "/readyz")[1]["status"] in ("not answering", "restarting")
    assert server.call("GET", "/healthz")[0] == 200  # the web process itself is alive
    assert server.metric("pusl_ready") == 0
    server.wait_ready()
    assert server.metric("pusl_worker_restarts") == restarts + 1
    assert server.ask([make_text(1)])[0] == 200
    os.kill(server.worker_pid(), signal.SIGKILL)  # a dead one is replaced without being asked
    wait_for(lambda: server.metric("pusl_worker_restarts") == restarts + 2, 20)
    server.wait_ready()
    assert server.ask([make_text(1)])[0] == 200


def test_work_that_takes_too_long_is_stopped_and_the_worker_stays() -> None:
    with Server(shared_model(), "--max-seconds", "0.05") as server:
        server.wait_ready()
        restarts, pid = server.metric("pusl_worker_restarts"), server.worker_pid()
        slow = {"k": 50, "strategy": "sequence", "num_beams": 64}
        status, answer, _ = server.ask([make_text(3, 40)], **slow)
        assert (status, answer["error"]["code"]) == (422, "too_slow")
        assert re.match(r"texts\.0: needs more than 0\.\d+ s of work; lower k or num_beams", answer["error"]["message"])
        assert server.ask([make_text(seed, 4) for seed in range(200)], k=1, strategy="beam")[0] == 200
        assert (server.metric("pusl_worker_restarts"), server.worker_pid()) == (restarts, pid)
