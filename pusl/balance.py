"""Scored predictions + what is wanted of precision and coverage -> β of the coverage rule.

Expected P@k and expected coverage follow from the scores alone: P@k = Σ η / (n k) over what is chosen, coverage = the
mean over candidate labels of 1 − f at the end. Three ways to name the wanted balance instead of β:
a least precision (P@k ≥ α, coverage as large as that allows), a weight (w·P@k + (1 − w)·coverage, which the greedy
rule with β = w m / ((1 − w) n k) maximizes step by step), and the harmonic mean of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pusl_eval.files import InputError

BETAS = (0.0, *np.geomspace(0.001, 100.0, 16).tolist())  # tried for the harmonic mean
STEPS = 14  # halvings for the least precision


@dataclass
class Candidates:
    """Every item's candidate labels (numbers over the catalog) and their probabilities."""

    labels: list[np.ndarray]
    chances: list[np.ndarray]
    size: int  # different labels


def gather(items: Iterable[tuple[Sequence[str], np.ndarray]]) -> Candidates:
    """(normalized phrases, η) of each item -> numbered candidates."""
    index: dict[str, int] = {}
    labels, chances = [], []
    for phrases, values in items:
        labels.append(np.array([index.setdefault(phrase, len(index)) for phrase in phrases], np.int64))
        chances.append(np.asarray(values, np.float64))
    return Candidates(labels, chances, len(index))


def expected(candidates: Candidates, k: int, beta: float) -> tuple[float, float]:
    """Expected P@k and coverage of the greedy rule, if the scores are right.

    >>> few = gather([(["cat", "dog"], np.array([0.9, 0.3]))] * 2)
    >>> [round(value, 3) for value in expected(few, 1, 0.0)]  # cat, then dog: (.9 + .3)/2 of each
    [0.6, 0.6]
    >>> [round(value, 3) for value in expected(few, 1, 10.0)]  # cat twice: 1 - .1² of one label of two
    [0.9, 0.495]
    """
    missing = np.ones(candidates.size)
    total = 0.0
    for labels, chances in zip(candidates.labels, candidates.chances, strict=True):
        gains = (missing[labels] + beta) * chances
        best = np.argsort(-gains, kind="stable")[:k]
        missing[labels[best]] *= 1 - chances[best]
        total += float(chances[best].sum())
    items = max(1, len(candidates.labels))
    return total / (items * k), float(np.mean(1 - missing)) if candidates.size else 0.0


def least_precision(candidates: Candidates, k: int, alpha: float) -> float:
    """The smallest β with an expected P@k of at least α; an InputError if no choice reaches it."""
    if expected(candidates, k, 0.0)[0] >= alpha:
        return 0.0
    high = 1e6
    reach = expected(candidates, k, high)[0]
    if reach < alpha:
        raise InputError(f"--min-precision {alpha:g}: the scores promise at most {reach:.3f} at k = {k}; ask for less")
    low_log, high_log = np.log(1e-6), np.log(high)
    for _ in range(STEPS):
        middle = (low_log + high_log) / 2
        if expected(candidates, k, float(np.exp(middle)))[0] >= alpha:
            high_log = middle
        else:
            low_log = middle
    return float(np.exp(high_log))


def weighted(candidates: Candidates, k: int, weight: float) -> float:
    """β for weight · P@k + (1 − weight) · coverage.

    >>> weighted(Candidates([np.arange(4)] * 2, [np.zeros(4)] * 2, 4), 1, 0.5)  # m / (n k)
    2.0
    """
    if not 0 <= weight < 1:
        raise InputError(f"--precision-weight is {weight:g}; expected a number from 0 up to, but not including, 1")
    return weight * candidates.size / ((1 - weight) * max(1, len(candidates.labels)) * k)


def harmonic(candidates: Candidates, k: int) -> float:
    """The β of BETAS whose expected P@k and coverage have the largest harmonic mean; the smallest of equals."""

    def mean(beta: float) -> float:
        precision, coverage = expected(candidates, k, beta)
        return 2 * precision * coverage / (precision + coverage) if precision + coverage else 0.0

    return max(BETAS, key=lambda beta: (mean(beta), -beta))
