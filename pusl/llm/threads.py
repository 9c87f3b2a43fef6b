"""Tasks -> results, computed in threads, in the order in which they finish.

For work that waits, such as HTTP requests. Work that computes belongs in processes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_all(
    function: Callable[[Task], Result], tasks: Iterable[Task], concurrency: int
) -> Iterator[tuple[Task, Result]]:
    """Runs `function` over tasks in threads; yields (task, result) as each finishes. `tasks` is read lazily.

    The first error ends the run, but the tasks that have started are finished first: their answers are paid for.
    Ctrl-C does not wait.

    >>> sorted(run_all(lambda x: x * x, [1, 2, 3], concurrency=2))
    [(1, 1), (2, 4), (3, 9)]
    """
    todo: queue.SimpleQueue[tuple[Task] | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Task, Result | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        while (job := todo.get()) is not None:
            try:
                done.put((job[0], function(job[0]), None))
            except BaseException as error:
                done.put((job[0], None, error))

    workers = [threading.Thread(target=work, daemon=True) for _ in range(concurrency)]
    for worker in workers:
        worker.start()
    source, under_way, error = iter(tasks), 0, None
    try:
        while True:
            while error is None and under_way < concurrency and (job := next(source, _END)) is not _END:
                todo.put((job,))
                under_way += 1
            if under_way == 0:
                break
            task, result, failure = done.get()
            under_way -= 1
            error = error or failure
            if failure is None:
                yield task, result  # type: ignore[misc]
        if error is not None:
            raise error
    finally:
        for _ in workers:
            todo.put(None)


_END: Any = object()
