"""One function + a list of arguments -> results in order, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_parallel(work: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], jobs: int = 0) -> Iterator[Result]:
    """Processes (0 = one per core) where joblib is at hand and there is more than one task; else one after another."""
    if jobs != 1 and len(tasks) > 1:
        try:
            from joblib import Parallel, delayed
        except ImportError:
            pass
        else:
            # loky: fresh interpreters, so callers need no main guard; big arrays are shared as memory maps.
            yield from Parallel(n_jobs=jobs or -1, return_as="generator")(delayed(work)(*task) for task in tasks)
            return
    for task in tasks:
        yield work(*task)
