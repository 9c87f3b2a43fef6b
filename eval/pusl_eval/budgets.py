"""μ, the mean number of keyphrases per item -> the budgets written `mu` and `2mu`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pusl_eval.files import InputError

K_WORDS = {"mu": 1, "2mu": 2}


def budget(mu: float, times: int = 1) -> int:
    """`times` μ as an integer: rounded to the nearest, a half upwards, at least 1.

    >>> budget(2.5), budget(2.6, 2), budget(0.1)
    (3, 5, 1)
    """
    return max(1, math.floor(times * mu + 0.5))


def budgets(mu: float) -> tuple[int, int]:
    """μ and 2μ as integers.

    >>> budgets(6.8), budgets(0.3)
    ((7, 14), (1, 1))
    """
    return budget(mu), budget(mu, 2)


def resolve_k(wanted: Sequence[int | str], mu: float | None) -> list[int]:
    """`mu` and `2mu` become integers; repeats collapse.

    >>> resolve_k([3, "mu", "2mu"], 2.6)
    [3, 5]
    """
    found: list[int] = []
    for value in wanted:
        if isinstance(value, str):
            assert mu is not None
            value = budget(mu, K_WORDS[value])
        if value not in found:
            found.append(value)
    if not found:
        raise InputError("no k given; expected at least one integer, mu or 2mu")
    return found
