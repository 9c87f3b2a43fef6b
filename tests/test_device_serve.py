"""A model process of the service that loses its GPU ends, and another one answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from server_process import shared_model

from pusl.serve.batching import WorkerLost
from pusl.serve.worker import Worker

# Runs at the start of the model process: its first answer meets an error as torch raises it when a kernel crashed.
FAULT = """
import pathlib
from pusl.serve import inference

class AcceleratorError(RuntimeError):
    pass

real, mark = inference.Inference.answer, pathlib.Path({mark!r})

def answer(self, *args, **kwargs):
    if not mark.exists():
        mark.touch()
        raise AcceleratorError("CUDA error: an illegal memory access was encountered")
    return real(self, *args, **kwargs)

inference.Inference.answer = answer
"""


@pytest.mark.slow
def test_a_worker_that_lost_its_gpu_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULT.format(mark=str(tmp_path / "met")))
    settings = {"model": str(shared_model()), "threads": 1}
    worker = Worker(settings, environment={"PYTHONPATH": str(tmp_path)})
    options = {"k": 2, "complete": False}

    async def run() -> None:
        try:
            info = await worker.start()
            assert info["device"] == "cpu" and info["precision"] == "fp32"
            first = worker.pid
            with pytest.raises(WorkerLost):  # the batcher asks again
                await worker.ask([("red shoe", [])], options)
            assert (tmp_path / "met").exists() and worker.pid is None
            results, _ = await worker.ask([("red shoe", [])], options)
            assert len(results) == 1 and worker.restarts == 1 and worker.pid not in (None, first)
        finally:
            await worker.stop()

    asyncio.run(run())
