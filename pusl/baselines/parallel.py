"""One function + a list of arguments -> results in order, on all cores."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker as standard_tracker
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result")


def run_parallel(work: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], jobs: int = 0) -> Iterator[Result]:
    """Runs several tasks in `jobs` processes (0 = one per core), a single one in this process."""
    if jobs == 1 or len(tasks) < 2:
        yield from (work(*task) for task in tasks)
        return
    from joblib import Parallel, delayed
    from joblib.externals.loky.backend import resource_tracker as tracker

    # joblib starts fresh interpreters, so callers need no main guard, and shares large arrays as memory maps.
    # What numpy warns of is the caller's choice, there as here.
    rules = dict(np.geterr())
    processes = min(jobs, len(tasks)) or -1
    for one in (tracker, standard_tracker):
        one.ensure_running()  # the start of either would end the block below too early
    with interrupts_held():  # the workers start here, and inherit that
        results = Parallel(n_jobs=processes, return_as="generator")(delayed(_run)(rules, work, task) for task in tasks)
    yield from results


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C waits for the end of the block; processes that start in it never get it. Their parent ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(rules: dict[str, Any], work: Callable[..., Result], task: tuple[Any, ...]) -> Result:
    with np.errstate(**rules):
        return work(*task)
