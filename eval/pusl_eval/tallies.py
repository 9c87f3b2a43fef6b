"""Matched predictions -> what every metric is made of: counts and sums per item, and events per label.

One pass over the items in blocks; at each wanted cut the running sums are kept as a `Tally`. The formulas
that turn a tally into a metric are in `metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """What a phrase is worth, by phrase id; None where nothing was given to compute it from."""

    inverse_propensity: Floats | None = None
    weight: Floats | None = None
    rank_weight: Floats | None = None  # (phrases, ranks); 0 for the ranks beyond its width
    in_universe: Flags | None = None
    in_training: Flags | None = None


@dataclass
class Tally:
    """Per item, within the first k places: arrays with one entry per item, None where it is unknown."""

    k: int  # 0 where the cut is O (the item's own number of references) or M (all predictions)
    size: Ints  # |Y|
    hits: Ints  # |Ŷ:k ∩ Y|
    unique: Ints  # |Ŷ:k|
    dcg: Floats | None = None  # Σ over hits 1/log2(rank + 1)
    inverse: Floats | None = None  # Σ over hits 1/p
    inverse_dcg: Floats | None = None  # Σ over hits 1/(p log2(rank + 1))
    best_inverse: Floats | None = None  # Σ of the k largest 1/p in Y
    best_inverse_dcg: Floats | None = None  # the same, each divided by log2(rank + 1), the largest first
    weight: Floats | None = None  # Σ over hits w
    rank_weight: Floats | None = None  # Σ over hits W[label, rank]
    in_universe: Ints | None = None  # phrases of Ŷ:k that the universe has
    new: Ints | None = None  # phrases of Ŷ:k that no training item has
    overlap: Floats | None = None  # Σ over pairs in Ŷ:k of Jaccard(words)


@dataclass(frozen=True)
class Events:
    """Predictions of items with references that are in the label space, between two cuts."""

    rows: Ints
    ids: Ints
    hits: Flags


def discounts(width: int) -> Floats:
    """1/log2(rank + 1) for ranks 1..width."""
    return np.asarray(1 / np.log2(np.arange(2, width + 2)), np.float64)


def divide(top: NDArray[np.generic], bottom: NDArray[np.generic] | float, empty: float = 0.0) -> Floats:
    """top / bottom, and `empty` where the bottom is 0."""
    top, bottom = np.broadcast_arrays(np.asarray(top, np.float64), np.asarray(bottom, np.float64))
    return np.asarray(np.divide(top, bottom, out=np.full(top.shape, empty), where=bottom != 0), np.float64)


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
        best = _best_first(references, gains.inverse_propensity)
        for k in ordered:
            tallies[k].best_inverse = _best(references, gains.inverse_propensity, k)
            tallies[k].best_inverse_dcg = _best_dcg(references, *best, k)
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
    if gains.rank_weight is not None:
        sums["rank_weight"] = np.zeros(items)
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
        if gains.rank_weight is not None and place < gains.rank_weight.shape[1]:
            sums["rank_weight"][right] += gains.rank_weight[ids[right], place]
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


def _best_first(references: Ragged, gain: Floats) -> tuple[Floats, Ints]:
    """The gains of each reference set, the largest first, and each one's place in its set."""
    order = np.argsort(-gain, kind="stable")
    position = np.empty(len(gain), np.int64)
    position[order] = np.arange(len(gain))
    keys = (references.rows.astype(np.int64) << 32) | position[references.ids]
    keys.sort()
    place = np.arange(len(keys)) - references.starts[:-1][references.rows]
    return gain[order[keys & 0xFFFFFFFF]], place.astype(np.int32)


def _best_dcg(references: Ragged, worth: Floats, place: Ints, k: int) -> Floats:
    """Per item the discounted sum of the k largest gains of its reference set."""
    inside = place < k
    discounted = worth[inside] * discounts(k)[place[inside]]
    return np.asarray(np.bincount(references.rows[inside], discounted, len(references.starts) - 1), np.float64)


def tally_all(references: Ragged, predictions: Ragged) -> Tally:
    """The cut at M: hits and distinct phrases among all predictions.

    >>> from pusl_eval.matching import Vocabulary
    >>> words = Vocabulary()
    >>> found = tally_all(words.encode([["a", "b"]]).as_sets(), words.encode([["a", "A", "x", "y"]]))
    >>> found.hits.tolist(), found.unique.tolist(), found.size.tolist()
    ([1], [3], [2])
    """
    given = predictions.as_sets()
    keys, wanted = ((one.rows.astype(np.int64) << 32) | one.ids for one in (given, references))
    hits = given.rows[np.isin(keys, wanted, assume_unique=True)]
    items = len(references.starts) - 1
    return Tally(
        0, references.lengths.astype(np.int32), np.bincount(hits, minlength=items).astype(np.int32),
        given.lengths.astype(np.int32),
    )  # fmt: skip


def _total(flags: Flags) -> Ints:
    return np.asarray(flags.sum(axis=0, dtype=np.int32))


def _join(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts)
