"""A time limit -> an error at the next step of a decoding that takes longer.

with time_limit(2.0):
    generator.generate(texts, k=10)

The engines ask before every step, so decoding ends between two steps and the generator stays usable.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator

Clock = Callable[[], float]


class OutOfTime(Exception):
    """Decoding took longer than its time limit."""


_clock: Clock = time.thread_time
_end = math.inf


@contextlib.contextmanager
def time_limit(seconds: float, clock: Clock = time.thread_time) -> Iterator[None]:
    """Inside the block, decoding raises OutOfTime after this many seconds of this thread's own processor time.

    Processor time, because a busy machine must not turn a small text into a slow one. A GPU's time is not this
    thread's: use `time.monotonic` there.
    """
    global _clock, _end
    before = _clock, _end
    _clock, _end = clock, clock() + seconds
    try:
        yield
    finally:
        _clock, _end = before


def check_time() -> None:
    """Raises OutOfTime if the limit is over; called by the engines before every step."""
    if _end != math.inf and _clock() > _end:
        raise OutOfTime
