"""One function + a list of arguments -> results in order, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_parallel(work: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], jobs: int = 0) -> Iterator[Result]:
    """Runs several tasks in `jobs` processes (0 = one per core), a single one in this process."""
    if jobs == 1 or len(tasks) < 2:
        yield from (work(*task) for task in tasks)
        return
    from joblib import Parallel, delayed

    # joblib starts fresh interpreters, so callers need no main guard, and shares large arrays as memory maps.
    yield from Parallel(n_jobs=jobs or -1, return_as="generator")(delayed(work)(*task) for task in tasks)
