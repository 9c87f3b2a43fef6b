"""Right keyphrases + popularity -> the few that were observed (self-selection bias).

Interactions per item follow a power law; each picks one of the item's keyphrases, head keyphrases
more often than others; repeats collapse. Rare items therefore show one or two of their keyphrases
and popular ones nearly all: labels are missing, and not at random.

Random numbers are drawn as plain uniforms and transformed here, so that a seed means the same bytes
whatever the version of numpy's distributions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def power_law_counts(uniforms: Floats, exponent: float, maximum: int) -> Ints:
    """Whole numbers n in 1..maximum with P(n) ~ n^-exponent, one per uniform number.

    >>> power_law_counts(np.array([0.0, 0.5, 0.999]), 1.65, 1000).tolist()
    [1, 2, 836]
    """
    mass = np.arange(1, maximum + 1, dtype=np.float64) ** -exponent
    cumulative = np.cumsum(mass)
    numbers: Ints = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right") + 1
    return np.minimum(numbers, maximum)


def zipf_weights(sizes: Ints, exponents: Floats, order: Floats) -> Floats:
    """Weights of a ragged array's entries: within an item, the entry of rank r gets r^-exponent.

    `order` ranks the entries of each item (smallest first); `sizes` are the items' lengths.
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)  # (entries,)
    starts = np.cumsum(sizes) - sizes
    ranks = np.empty(len(owner), dtype=np.float64)
    ranks[np.lexsort((order, owner))] = np.arange(len(owner)) - starts[owner] + 1
    return ranks ** -exponents[owner]


def draw_interactions(rng: np.random.Generator, sizes: Ints, weights: Floats, interactions: Ints) -> Ints:
    """How often each entry of a ragged array is picked when item i is picked from interactions[i] times.

    Every item needs at least one entry if it has interactions. (entries,) -> (entries,)
    """
    cumulative = np.cumsum(weights)
    ends = np.cumsum(sizes)
    low = np.concatenate([[0.0], cumulative])[ends - sizes]
    high = cumulative[ends - 1]
    owner = np.repeat(np.arange(len(sizes)), interactions)  # one row per interaction
    target = low[owner] + rng.random(len(owner)) * (high - low)[owner]
    entry = np.searchsorted(cumulative, target, side="right")
    # Rounding may carry a draw over an item's edge: bring it back inside.
    entry = np.clip(entry, (ends - sizes)[owner], ends[owner] - 1)
    return np.bincount(entry, minlength=len(weights)).astype(np.int64)
