"""Right predictions per label -> how much of the label space is reached."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def coverage(tp: ArrayLike) -> float | None:
    """Share of labels with TP ≥ 1; None without labels.

    >>> coverage([3, 0, 1, 0])
    0.5
    """
    found = np.asarray(tp)
    return float(np.mean(found > 0)) if found.size else None


def expected_coverage(tp: ArrayLike, n: int, drawn: int) -> float | None:
    """Expected coverage when `drawn` of the n items are drawn with replacement: mean of 1 - (1 - TP/n)^drawn.

    >>> expected_coverage([2, 0], 4, 2)  # (1 - (1/2)^2 + 0) / 2
    0.375
    """
    found = np.asarray(tp, np.float64)
    return float(np.mean(1 - (1 - found / n) ** drawn)) if found.size and n else None


def alpha_coverage(tp: ArrayLike, positive: ArrayLike, alpha: float) -> float | None:
    """Share of labels with recall TP / (TP + FN) ≥ α; α = 0 means TP ≥ 1.

    A label without any reference (in a label space given by the user) is not covered.

    >>> alpha_coverage([1, 2, 0], [4, 2, 1], 0.5)
    0.3333333333333333
    """
    found, wanted = np.asarray(tp), np.asarray(positive)
    if not found.size:
        return None
    recall = np.divide(found, wanted, out=np.zeros(found.shape), where=wanted > 0)
    return float(np.mean((found > 0) & (recall >= alpha)))


def entropy(tp: ArrayLike) -> float | None:
    """-Σ ρ ln ρ over ρ = TP / Σ TP; None when nothing is right.

    >>> round(entropy([1, 1, 0]), 4)
    0.6931
    """
    found = np.asarray(tp, np.float64)
    found = found[found > 0]
    if not found.size:
        return None
    share = found / found.sum()
    return max(0.0, float(-np.sum(share * np.log(share))))  # never -0.0
