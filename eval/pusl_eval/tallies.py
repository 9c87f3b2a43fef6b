"""Matched predictions -> what every metric is made of: counts and sums per item, and events per label.

One pass over the items in blocks; at each wanted cut the running sums are put aside as a `Tally`.
`FORMULAS` turns a tally into the per-item value of each metric: the only place where they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pusl_eval.diversity import WordTable
from pusl_eval.matching import Block, Flags, Ints, Ragged, match

Floats = NDArray[np.float64]
LONGEST_CUT = 100  # the cap of O in P@O, R@O and F1@O


@dataclass(frozen=True)
class Gains:
    """What a phrase is worth, by phrase id; None where the user gave nothing to know it from."""

    inverse_propensity: Floats | None = None
    weight: Floats | None = None
    in_universe: Flags | None = None
    in_training: Flags | None = None


@dataclass
class Tally:
    """Per item, within the first k places: arrays with one entry per item, None where it cannot be known."""

    k: int  # 0 stands for the cut at O
    size: Ints  # |Y|
    hits: Ints  # |Ŷ:k ∩ Y|
    unique: Ints  # |Ŷ:k|
    dcg: Floats | None = None  # Σ over hits 1/log2(rank + 1)
    inverse: Floats | None = None  # Σ over hits 1/p
    inverse_dcg: Floats | None = None  # Σ over hits 1/(p log2(rank + 1))
    best_inverse: Floats | None = None  # Σ of the k largest 1/p in Y
    weight: Floats | None = None  # Σ over hits w
    in_universe: Ints | None = None  # phrases of Ŷ:k that the universe has
    new: Ints | None = None  # phrases of Ŷ:k that no training item has
    overlap: Floats | None = None  # Σ over pairs in Ŷ:k of Jaccard(words)


@dataclass(frozen=True)
class Events:
    """Predictions inside the label space by items with references, between two cuts."""

    rows: Ints
    ids: Ints
    hits: Flags


def discounts(width: int) -> Floats:
    """1/log2(rank + 1) for ranks 1..width."""
    return np.asarray(1 / np.log2(np.arange(2, width + 2)), np.float64)


def _divide(top: NDArray[np.generic], bottom: NDArray[np.generic] | float, empty: float = 0.0) -> Floats:
    """top / bottom, and `empty` where the bottom is 0."""
    top, bottom = np.broadcast_arrays(np.asarray(top, np.float64), np.asarray(bottom, np.float64))
    return np.asarray(np.divide(top, bottom, out=np.full(top.shape, empty), where=bottom != 0), np.float64)


def _ideal(tally: Tally) -> Floats:
    sums = np.concatenate(([0.0], np.cumsum(discounts(tally.k))))
    return np.asarray(sums[np.minimum(tally.size, tally.k)], np.float64)


def _some(values: NDArray[np.generic] | None) -> Floats:
    assert values is not None
    return np.asarray(values, np.float64)


def _diversity(tally: Tally) -> Floats:
    pairs = tally.unique.astype(np.float64) * (tally.unique - 1) / 2
    return np.where(pairs > 0, 1 - _divide(_some(tally.overlap), pairs), np.nan)


# Metric -> (tally -> value per item). Metrics whose name is in NEEDS_REFERENCES skip items with empty Y.
FORMULAS: dict[str, Callable[[Tally], Floats]] = {
    "P": lambda t: _divide(t.hits, t.unique),
    "R": lambda t: _divide(t.hits, t.size),
    "F1": lambda t: _divide(2.0 * t.hits, t.unique + t.size),  # the harmonic mean of P and R
    "B": lambda t: t.hits / t.k,
    "B_max": lambda t: np.minimum(t.size, t.k) / t.k,
    "K": lambda t: t.unique.astype(np.float64),
    "nDCG": lambda t: _divide(_some(t.dcg), _ideal(t)),
    "Success": lambda t: (t.hits > 0).astype(np.float64),
    "Abandonment": lambda t: (t.hits == 0).astype(np.float64),
    "PSP": lambda t: _some(t.inverse) / t.k,
    "PSP_best": lambda t: _some(t.best_inverse) / t.k,
    "PSnDCG": lambda t: _some(t.inverse_dcg) / float(discounts(t.k).sum()),
    "weighted P": lambda t: _some(t.weight) / t.k,
    "Diversity": _diversity,
}
NEEDS_REFERENCES = frozenset(FORMULAS) - {"K", "Diversity"}


def values(name: str, tally: Tally) -> Floats:
    """The metric's value for each item; NaN where the item is left out."""
    found = FORMULAS[name](tally)
    if name in NEEDS_REFERENCES and not tally.size.all():
        found[tally.size == 0] = np.nan
    return found


def tally(
    references: Ragged,
    predictions: Ragged,
    cuts: Sequence[int],
    gains: Gains | None = None,
    words: WordTable | None = None,
    label_limit: int = 0,
) -> tuple[dict[int, Tally], list[Events]]:
    """Counts everything at every cut; cut 0 is O, the item's own number of references (at most 100).

    `references` are sets. Labels with ids below `label_limit` make up the label space: their events
    are given in one `Events` per rising cut (0 aside), each with what lies between it and the cut
    before. `words` is needed only for Diversity.
    """
    gains = gains or Gains()
    ordered = sorted(set(cuts) - {0})
    size = references.lengths.astype(np.int32)
    own = np.minimum(size, LONGEST_CUT)
    longest = int(predictions.lengths.max(initial=0))
    width = min(longest, max([0, *ordered, int(own.max(initial=0)) if 0 in cuts else 0]))
    parts: dict[int, list[dict[str, NDArray[Any]]]] = {k: [] for k in cuts}
    slabs: list[list[Events]] = [[] for _ in ordered]
    for block in match(references, predictions, width):
        here = slice(block.low, block.high)
        if 0 in parts:
            inside = np.arange(width)[:, None] < own[here]  # (width, items)
            parts[0].append({"hits": _total(block.hits & inside), "unique": _total(block.first & inside)})
        for k, sums in _walk(block, ordered, gains, words).items():
            parts[k].append(sums)
        wanted = block.first & (block.ids < label_limit) & (size[here] > 0)
        for slab, low, high in zip(slabs, [0, *ordered], ordered, strict=False):
            place, item = np.nonzero(wanted[low:high])
            spots = (place + low, item)
            slab.append(Events((item + block.low).astype(np.int32), block.ids[spots], block.hits[spots]))
    tallies = {k: Tally(k, size, **{name: _join([p[name] for p in parts[k]]) for name in parts[k][0]}) for k in cuts}
    if gains.inverse_propensity is not None:
        for k in ordered:
            tallies[k].best_inverse = _best(references, gains.inverse_propensity, k)
    return tallies, [
        Events(_join([e.rows for e in slab]), _join([e.ids for e in slab]), _join([e.hits for e in slab]))
        for slab in slabs
    ]


def _walk(
    block: Block, cuts: Sequence[int], gains: Gains, words: WordTable | None
) -> dict[int, dict[str, NDArray[Any]]]:
    """Running sums over the places of one block, put aside at each cut."""
    deepest = min(len(block.ids), max(cuts, default=0))
    items = block.high - block.low
    sums: dict[str, NDArray[Any]] = {name: np.zeros(items, np.int32) for name in ("hits", "unique")}
    sums["dcg"] = np.zeros(items)
    if gains.inverse_propensity is not None:
        sums |= {"inverse": np.zeros(items), "inverse_dcg": np.zeros(items)}
    if gains.weight is not None:
        sums["weight"] = np.zeros(items)
    if gains.in_universe is not None:
        sums["in_universe"] = np.zeros(items, np.int32)
    if gains.in_training is not None:
        sums["new"] = np.zeros(items, np.int32)
    overlap = words.overlap(block.ids[:deepest], block.first[:deepest]) if words else None
    if overlap is not None:
        sums["overlap"] = np.zeros(items)
    kept = {}
    for place, discount in enumerate(discounts(deepest)):
        ids, first = block.ids[place], block.first[place]
        right = np.flatnonzero(block.hits[place])
        sums["unique"] += first
        sums["hits"][right] += 1
        sums["dcg"][right] += discount
        if gains.inverse_propensity is not None:
            gain = gains.inverse_propensity[ids[right]]
            sums["inverse"][right] += gain
            sums["inverse_dcg"][right] += gain * discount
        if gains.weight is not None:
            sums["weight"][right] += gains.weight[ids[right]]
        if gains.in_universe is not None:
            sums["in_universe"] += first & gains.in_universe[ids]
        if gains.in_training is not None:
            sums["new"] += first & ~gains.in_training[ids]
        if overlap is not None:
            sums["overlap"] += overlap[place]
        if place + 1 in cuts:
            kept[place + 1] = {name: array.copy() for name, array in sums.items()}
    return kept | {k: sums for k in cuts if k not in kept}  # cuts beyond the longest prediction


def _best(references: Ragged, gain: Floats, k: int) -> Floats:
    """Per item the sum of the k largest gains of its reference set."""
    rows, worth = references.rows, gain[references.ids]
    crowded = references.lengths > k
    if crowded.any():
        inside = crowded[rows]
        order = np.lexsort((-worth[inside], rows[inside]))
        starts = np.concatenate(([0], np.cumsum(references.lengths[crowded])))[:-1]
        rank = np.arange(len(order)) - np.repeat(starts, references.lengths[crowded])
        cut = np.flatnonzero(inside)[order[rank >= k]]
        worth[cut] = 0
    return np.asarray(np.bincount(rows, worth, len(references.starts) - 1), np.float64)


def _total(flags: Flags) -> Ints:
    return np.asarray(flags.sum(axis=0, dtype=np.int32))


def _join(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts)
