"""One function + a list of arguments -> results in order, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_parallel(work: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], jobs: int = 0) -> Iterator[Result]:
    """Uses `jobs` processes (0 = one per core) if joblib is installed and there are several tasks."""
    if jobs != 1 and len(tasks) > 1:
        try:
            from joblib import Parallel, delayed
        except ImportError:
            pass
        else:
            # joblib starts fresh interpreters, so callers need no main guard, and shares large arrays as memory maps.
            yield from Parallel(n_jobs=jobs or -1, return_as="generator")(delayed(work)(*task) for task in tasks)
            return
    for task in tasks:
        yield work(*task)
