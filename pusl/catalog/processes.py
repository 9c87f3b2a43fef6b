"""Tasks -> results, computed by N processes that may die.

The parent hands out one task per process and gets results in whatever order they come. A process
that dies (out of memory, killed) is replaced and its task done again once; a task that kills two
processes is an error that names it. Processes end by themselves when the parent is gone, even
after kill -9.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from pusl.devices import ends_process, worker_environment
from pusl.messages import show_messages
from pusl.process import prepare_process
from pusl_eval.files import InputError

ATTEMPTS = 2


class WorkerDied(RuntimeError):
    """A task ended its process twice."""


class WorkerFailed(RuntimeError):
    """A task raised something unexpected in its process; the message holds the traceback."""


def run_tasks(
    start: Callable[[], Callable[[Any], Any]],
    tasks: Iterable[Any],
    count: int,
    threads: int | None = None,
    gpus: int = 0,
) -> Iterator[tuple[Any, Any]]:
    """Yields (task, result) in order of completion. `start` runs once in each process and gives the worker function.

    `start` and the tasks are pickled; processes are spawned, so nothing of the parent leaks into them.
    `threads`: torch's, in each process. `gpus`: the processes take these GPUs in turn, each sees only its own.
    """
    pool = _Pool(start, threads, gpus)
    waiting = iter(tasks)
    try:
        exhausted = False
        while True:
            while not exhausted and len(pool.busy) < count:
                task = next(waiting, _END)
                if task is _END:
                    exhausted = True
                else:
                    pool.give(task, 1)
            if not pool.busy:
                return
            yield from pool.collect()
    finally:
        pool.close()


_END = object()


class _Worker:
    def __init__(self, start: Callable[[], Callable[[Any], Any]], threads: int | None, number: int, gpus: int) -> None:
        self.number = number
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=worker_main, args=(theirs, start, threads, worker_environment(number, gpus)), daemon=True
        )
        self.process.start()
        theirs.close()


class _Pool:
    def __init__(self, start: Callable[[], Callable[[Any], Any]], threads: int | None, gpus: int) -> None:
        self.start, self.threads, self.gpus = start, threads, gpus
        self.idle: list[_Worker] = []
        self.busy: dict[Any, tuple[_Worker, Any, int]] = {}  # pipe -> worker, task, attempt

    def give(self, task: Any, attempt: int) -> None:
        worker = self.idle.pop() if self.idle else self._new()
        with contextlib.suppress(OSError):  # it has just died: `collect` sees that
            worker.pipe.send(task)
        self.busy[worker.pipe] = (worker, task, attempt)

    def _new(self) -> _Worker:
        """A process with the smallest free number: one that replaces a dead process takes its GPU."""
        taken = {entry[0].number for entry in self.busy.values()}
        number = next(i for i in range(len(taken) + 1) if i not in taken)
        return _Worker(self.start, self.threads, number, self.gpus)

    def collect(self) -> Iterator[tuple[Any, Any]]:
        for pipe in wait(list(self.busy)):
            worker, task, attempt = self.busy.pop(pipe)
            try:
                kind, value = worker.pipe.recv()
            except (EOFError, OSError):
                self.terminate(worker)
                if attempt >= ATTEMPTS:
                    raise WorkerDied(
                        f"a process ended {ATTEMPTS} times (exit code {worker.process.exitcode}) "
                        f"while it worked on {task}"
                    ) from None
                self.give(task, attempt + 1)
                continue
            self.idle.append(worker)
            if kind == "input":
                raise InputError(value)
            if kind == "failed":
                raise WorkerFailed(value)
            yield task, value

    def close(self) -> None:
        for worker in [*self.idle, *(entry[0] for entry in self.busy.values())]:
            self.terminate(worker)
        self.idle, self.busy = [], {}

    @staticmethod
    def terminate(worker: _Worker) -> None:
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()


def worker_main(
    pipe: Connection, start: Callable[[], Callable[[Any], Any]], threads: int | None, environment: dict[str, str]
) -> None:
    """What a worker process runs: start once, then a result for each task until the pipe closes."""
    os.environ.update(environment)  # before torch looks for GPUs
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=exit_with_parent, daemon=True).start()
    work: Callable[[Any], Any] | None = None
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if work is None:
                prepare_process(threads, keep_memory=True)
                show_messages()
                work = start()
            answer = ("done", work(task))
        except InputError as error:
            answer = ("input", str(error))
        except Exception as error:
            if ends_process(error):
                traceback.print_exc()
                os._exit(1)  # a new process does the task again
            answer = ("failed", traceback.format_exc())
        try:
            pipe.send(answer)
        except OSError:
            return


def exit_with_parent() -> None:
    """Waits for the parent's end, then ends this process too."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
