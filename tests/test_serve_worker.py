"""The model process of the service, without the service."""

from __future__ import annotations

import asyncio
import json
import math
import os
import select
import subprocess
import sys

import pytest
from server_process import shared_model

from pusl.serve.batching import WorkerLost
from pusl.serve.worker import HEADER, Worker

PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-m", "pusl.serve.worker", sys.argv[1]])
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills a process the POSIX way")
def test_a_worker_ends_with_its_parent_although_its_pipes_stay_open() -> None:
    settings = json.dumps({"model": str(shared_model()), "threads": 1})
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert parent.stdin and parent.stdout
    with parent, parent.stdin, parent.stdout:
        try:
            (length,) = HEADER.unpack(parent.stdout.read(HEADER.size))
            message = b""
            while len(message) < length:
                message += parent.stdout.read(length - len(message))
            assert "ready" in json.loads(message)
        finally:
            parent.kill()
        # The worker holds the last open end of this pipe: it closes when the worker is gone.
        assert select.select([parent.stdout], [], [], 20)[0], "the worker outlived its parent"
        assert os.read(parent.stdout.fileno(), 1) == b""


ENDLESS = """
import json, struct, sys
def send(message):
    body = json.dumps(message).encode()
    sys.stdout.buffer.write(struct.pack(">I", len(body)) + body)
    sys.stdout.buffer.flush()
send({"ready": {"model": "endless"}, "usual": 0.1, "limit": 1.5})
while head := sys.stdin.buffer.read(4):
    question = json.loads(sys.stdin.buffer.read(struct.unpack(">I", head)[0]))
    while any(text == "endless" for text, _ in question["items"]):
        pass
    send({"results": [text for text, _ in question["items"]], "seconds": 0.0})
"""


def test_an_endless_job_is_ended_and_the_next_process_works() -> None:
    async def scene() -> None:
        worker = Worker({}, hang_after=1.0)
        worker.command = (sys.executable, "-c", ENDLESS)
        try:
            await worker.start()
            first = worker.pid
            assert await worker.ask([("a", [])], {}) == (["a"], 0.0)
            assert worker.silent == 0.0
            stuck = asyncio.ensure_future(worker.ask([("endless", [])], {}))
            behind = asyncio.ensure_future(worker.ask([("b", [])], {}))  # waits in the same pipe
            await asyncio.sleep(0.3)
            assert 0.2 < worker.silent < 1.0
            for lost in await asyncio.gather(stuck, behind, return_exceptions=True):
                assert isinstance(lost, WorkerLost)
            assert worker.silent == math.inf
            assert await worker.ask([("b", [])], {}) == (["b"], 0.0)
            assert worker.restarts == 1 and worker.pid not in (None, first)
            await worker.ping(5.0)
            assert worker.silent == 0.0
        finally:
            await worker.stop()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_marks_count_towards_the_time_of_an_answer() -> None:
    """They once had no limit: 32 long texts with 50 keyphrases each took ten seconds in one batch."""
    from pusl.decoding.deadline import OutOfTime
    from pusl.serve.inference import Inference

    model = Inference(str(shared_model()))
    now = 0.0

    def slow(text: str, keyphrases: object) -> list[object]:
        nonlocal now
        now += 1.0
        return []

    model.generator.explain, model._clock, model.seconds = slow, lambda: now, 3.5  # type: ignore[assignment]
    options = {"k": 2, "explain": True}
    assert len(model.answer(["a text"] * 4, options)) == 4
    with pytest.raises(OutOfTime):
        model.answer(["a text"] * 8, options)
    assert now < 9
