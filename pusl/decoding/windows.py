"""A text longer than the model reads -> overlapping windows; the phrases of all windows -> one ranking.

A phrase that several windows give gets the probability that at least one of them has it, 1 - Π(1 - p). Windows are
searched like texts of their own, so batches, engines and worker processes change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pusl.decoding.rules import Phrase

LONG = ("cut", "window")  # what happens to texts that are too long
OVERLAP = 0.25  # of a window that the next one reads again, so that no phrase is cut in two


def text_windows(ids: Sequence[int], size: int) -> list[list[int]]:
    """Windows of at most `size` ids; the last one is as long as the others and overlaps more.

    >>> text_windows([1, 2, 3, 4, 5, 6, 7, 8, 9], 4)
    [[1, 2, 3, 4], [4, 5, 6, 7], [6, 7, 8, 9]]
    >>> text_windows([1, 2], 4)
    [[1, 2]]
    """
    step = max(1, size - int(OVERLAP * size))
    starts = [*range(0, max(0, len(ids) - size), step), max(0, len(ids) - size)]
    return [list(ids[start : start + size]) for start in starts]


def join_windows(
    found: Sequence[Sequence[Phrase]], numbers: Sequence[int], form: Callable[[tuple[int, ...]], str]
) -> list[list[Phrase]]:
    """One list per text from one list per window; `numbers` count each text's windows from 0.

    >>> half, more = Phrase((1,), math.log(0.5)), Phrase((2,), math.log(0.6))
    >>> first, second = join_windows([[half, more], [half], [more]], [0, 1, 0], str)
    >>> [(one.ids, round(math.exp(one.logprob), 2)) for one in first], len(second)
    ([((1,), 0.75), ((2,), 0.6)], 1)
    """
    texts: list[list[Sequence[Phrase]]] = []
    for number, phrases in zip(numbers, found, strict=True):
        if number == 0:
            texts.append([])
        texts[-1].append(phrases)
    return [list(windows[0]) if len(windows) == 1 else _joined(windows, form) for windows in texts]


def _joined(found: Sequence[Sequence[Phrase]], form: Callable[[tuple[int, ...]], str]) -> list[Phrase]:
    """The windows' phrases, most probable first; equal ones stand in the order of the text."""
    seen: dict[str, list[Phrase]] = {}
    for phrases in found:
        own: dict[str, Phrase] = {}
        for one in phrases:  # within a window a phrase counts once, by its best spelling
            name = form(one.ids)
            if name not in own or one.logprob > own[name].logprob:
                own[name] = one
        for name, one in own.items():
            seen.setdefault(name, []).append(one)
    joined = []
    for same in seen.values():
        best = max(same, key=lambda one: one.logprob)
        joined.append(Phrase(best.ids, any_of([one.logprob for one in same])))
    return sorted(joined, key=lambda one: -one.logprob)


def any_of(logprobs: Sequence[float]) -> float:
    """log(1 - Π(1 - p)) from the logarithms of p; exact for tiny p, where the product would be 1.

    >>> round(math.exp(any_of([math.log(0.5), math.log(0.5)])), 6), any_of([-800.0]), any_of([0.0, -3.0])
    (0.75, -800.0, 0.0)
    """
    if len(logprobs) == 1:
        return logprobs[0]
    if max(logprobs) >= 0:
        return 0.0
    none = math.fsum(math.log1p(-math.exp(value)) for value in logprobs)
    if none < -1e-12:
        return math.log(-math.expm1(none))
    top = max(logprobs)  # the products of two are beyond the numbers' precision
    return top + math.log(math.fsum(math.exp(value - top) for value in logprobs))
