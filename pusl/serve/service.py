"""Requests -> batches -> model processes, and whether those are well.

The web process never computes. `Service` starts the model processes, hands them batches, watches them, and replaces
one that dies or does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from pusl.devices import gpu_count, resolve_device, worker_environment
from pusl.serve.batching import Batcher, Closed, QueueFull, Ticket, WorkerLost
from pusl.serve.costs import text_costs, units_per_text
from pusl.serve.gateway import Problem, Telemetry
from pusl.serve.inference import WARM_TEXT
from pusl.serve.serve_config import ServeConfig
from pusl.serve.worker import TextWithKnown, Worker

log = logging.getLogger("pusl.serve.app")
STOP_SECONDS = 10.0  # for batches under way after the last request has ended
WATCH_SECONDS = 0.5  # between two looks at the model processes
PING_SECONDS = 2.0  # of silence, after which an idle model process is asked for a sign of life
SILENT_SECONDS = 5.0  # without an answer: the process is not ready, and an idle one soon replaced


class Service:
    """The model processes, the batcher in front of them, and whether they are ready."""

    def __init__(self, config: ServeConfig) -> None:
        self.config, self.telemetry = config, Telemetry()
        self.state = "loading"
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None  # called if the model cannot be loaded
        self.info: dict[str, Any] = {}
        threads = config.threads or max(1, (os.cpu_count() or 1) // config.workers)
        settings = {name: getattr(config, name) for name in ("model", "universe", "precision", "device")}
        self._settings = {**settings, "threads": threads, "batch_size": config.max_batch, "seconds": config.max_seconds}
        # A batch that takes longer than its requests may wait has no reader any more.
        self.hang_after = max(SILENT_SECONDS, config.timeout)
        self.workers: list[Worker] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Loads the model in every worker. Until then the service is alive but not ready."""
        config = self.config
        gpus = gpu_count(resolve_device(config.device)) if config.workers > 1 else 0
        self.workers = [
            Worker(self._settings, self.hang_after, worker_environment(number, gpus))
            for number in range(config.workers)
        ]
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        self.batcher = Batcher(
            self._run, max_batch=config.max_batch, max_wait=config.max_wait_ms / 1000, max_queue=config.max_queue,
            max_delay=config.timeout, workers=config.workers, ahead=config.workers,
        )  # fmt: skip
        self.batcher.start()
        self.telemetry.queued.set_function(lambda: self.batcher.queued)
        self.telemetry.restarts.set_function(lambda: sum(max(0, worker.restarts) for worker in self.workers))
        self.telemetry.ready.set_function(lambda: self.status() == "ready")
        # The first worker starts alone: it may have to build the universe's index, which the others then load.
        self.info = await self.workers[0].start()
        first = self.workers[0]
        units = text_costs([WARM_TEXT], units_per_text(self.info["defaults"]))[0]
        self.batcher.seconds_per_unit, self.batcher.slice_seconds = first.usual / units, first.limit / 2
        await asyncio.gather(*(worker.start() for worker in self.workers[1:]))
        for worker in self.workers * 2:  # twice: a worker computes one batch while the next waits in its pipe
            self._idle.put_nowait(worker)
        self.state = "ready"
        self._watch = asyncio.create_task(self._watch_workers(), name="watch-workers")

    async def stop(self) -> None:
        """Answers every accepted request, then ends the model processes, even one that hangs."""
        ready, self.state = self.state == "ready", "stopping"
        if ready:
            # Requests have timed out by now; whatever a worker still computes has no reader.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.batcher.close(), STOP_SECONDS)
            self._watch.cancel()
        for worker in self.workers:
            await worker.stop()

    def well(self) -> int:
        """Model processes that answer."""
        return sum(worker.silent < SILENT_SECONDS for worker in self.workers)

    def status(self) -> str:
        """`ready`, or in a word why not."""
        if self.state != "ready" or self.well():
            return self.state
        return "not answering" if any(worker.silent < math.inf for worker in self.workers) else "restarting"

    def refusal(self) -> Problem | None:
        """The Problem that any request would get now, or None."""
        if self.state != "ready":
            return Problem(503, self.state, f"the service is {self.state}", retry_after=2)
        if self.batcher.full():
            full = QueueFull(self.batcher.retry_after())
            return Problem(429, "queue_full", str(full), full.retry_after)
        return None

    def submit(
        self, items: list[TextWithKnown], options: tuple[tuple[str, Any], ...], costs: Sequence[float], client: Hashable
    ) -> Ticket:
        """Queues a request. Raises a Problem if there is no room for it."""
        if (problem := self.refusal()) is not None:
            raise problem
        chosen = dict(options)
        kind = (chosen["strategy"], chosen["vocabulary"], bool(chosen["temperature"]), chosen["complete"])
        try:
            return self.batcher.submit(items, options, costs=costs, kind=kind, client=client)
        except QueueFull as full:
            raise Problem(429, "queue_full", str(full), full.retry_after) from None
        except Closed:
            raise Problem(503, "stopping", "the service is stopping", retry_after=2) from None

    async def _run(self, items: list[TextWithKnown], key: Any) -> tuple[list[Any], float]:
        worker = await self._idle.get()
        try:
            results, seconds = await worker.ask(items, dict(key))
            self.telemetry.batch_size.observe(len(items))
            self.telemetry.batch_time.observe(seconds)
            return results, seconds
        finally:
            self._idle.put_nowait(worker)

    async def _watch_workers(self) -> None:
        """Restarts a model process that died between two batches, and finds one that hangs though it has no work."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for worker in self.workers:
                if not worker.attended and (worker.pid is None or worker.unheard(PING_SECONDS)):
                    task = asyncio.create_task(self._attend(worker), name="attend-worker")
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def _attend(self, worker: Worker) -> None:
        worker.attended = True
        try:
            await worker.ping(2 * SILENT_SECONDS)
            if worker.pid is None:
                log.warning("worker_replaced", extra={"facts": {"restarts": worker.restarts + 1}})
                await worker.restart_if_dead()
                worker.failures = 0
        except WorkerLost as error:
            log.error("worker_lost", extra={"facts": {"error": str(error)}})
            worker.failures += 1  # the model folder may be gone; do not try again at once
            await asyncio.sleep(min(60.0, 2.0**worker.failures))
        finally:
            worker.attended = False
