"""Items -> results, computed in threads, in the order in which they are done.

For work that waits (HTTP requests); work that computes belongs into processes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_all(
    function: Callable[[Item], Result], items: Iterable[Item], concurrency: int
) -> Iterator[tuple[Item, Result]]:
    """Runs `function` over items in threads; yields (item, result) as each is done. `items` is read lazily.

    The first error ends the run: what is under way is finished first, so that paid answers are stored.
    Ctrl-C does not wait.

    >>> sorted(run_all(lambda x: x * x, [1, 2, 3], concurrency=2))
    [(1, 1), (2, 4), (3, 9)]
    """
    todo: queue.SimpleQueue[tuple[Item] | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Item, Result | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        while (job := todo.get()) is not None:
            try:
                done.put((job[0], function(job[0]), None))
            except BaseException as error:
                done.put((job[0], None, error))

    workers = [threading.Thread(target=work, daemon=True) for _ in range(concurrency)]
    for worker in workers:
        worker.start()
    source, under_way, error = iter(items), 0, None
    try:
        while True:
            while error is None and under_way < concurrency and (job := next(source, _END)) is not _END:
                todo.put((job,))
                under_way += 1
            if under_way == 0:
                break
            item, result, failure = done.get()
            under_way -= 1
            error = error or failure
            if failure is None:
                yield item, result  # type: ignore[misc]
        if error is not None:
            raise error
    finally:
        for _ in workers:
            todo.put(None)


_END: Any = object()
