"""Events per label -> TP, FP and FN per label, and bins of labels by training frequency.

For label l over all items with references: TP, FP and FN of "l in Ŷ:k" against "l in Y". The label
space is the labels of the references, or a set given by the user; there a label without any
reference has recall and F1 of 0, as in scikit-learn with zero_division=0. The formulas are in `label_metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pusl_eval.matching import Flags, Ints, Ragged
from pusl_eval.tallies import Events

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
BIN_EDGES = (1, 10, 100, 1000)


@dataclass(frozen=True)
class LabelCounts:
    """One entry per label of the space."""

    ids: Ints
    tp: Counts
    predicted: Counts  # TP + FP
    positive: Counts  # TP + FN

    @property
    def precision(self) -> Floats:
        """TP / (TP + FP), 0 if never predicted."""
        return _share(self.tp, self.predicted)

    @property
    def recall(self) -> Floats:
        """TP / (TP + FN)."""
        return _share(self.tp, self.positive)

    @property
    def f1(self) -> Floats:
        """2 TP / (2 TP + FP + FN)."""
        return _share(2 * self.tp, self.predicted + self.positive)

    def f_beta(self, beta: float) -> Floats:
        """(1 + β²) P R / (β² P + R), which is (1 + β²) TP / (β² (TP + FN) + TP + FP)."""
        weight = beta * beta
        return _share((1 + weight) * self.tp, weight * self.positive + self.predicted)


@dataclass(frozen=True)
class LabelTable:
    """What a metric over labels is made of."""

    counts: LabelCounts
    items: int  # with references
    seen: Flags | None = None  # per label of the space: whether training has it
    alpha: float = 0.5  # of αCov@k
    beta: float = 2.0  # of MacroF_β@k
    drawn: int = 0  # items drawn in "Cov@k (n items)"


def count_labels(
    references: Ragged, events: Sequence[Events], items: Flags | None = None, space: Ints | None = None
) -> list[LabelCounts]:
    """TP, predicted and positive per label at each cut, over the chosen `items` (all by default).

    `events` are what lies between the cuts (see `tallies.tally`). Without `space` (sorted label ids) the
    labels are those in the chosen items' references.
    """
    wanted = references.ids if items is None else references.ids[items[references.rows]]
    labels = _distinct(wanted) if space is None else space
    positive = _count(wanted, labels)
    found = []
    tp, predicted = np.zeros(len(labels), np.int64), np.zeros(len(labels), np.int64)
    for event in events:
        chosen = slice(None) if items is None else items[event.rows]
        ids, hits = event.ids[chosen], event.hits[chosen]
        predicted = predicted + _count(ids, labels)
        tp = tp + _count(ids[hits], labels)
        found.append(LabelCounts(labels, tp, predicted, positive))
    return found


def _distinct(ids: Ints) -> Ints:
    """The distinct ids, sorted."""
    if len(ids) * 8 > int(ids.max(initial=0)):
        return np.flatnonzero(np.bincount(ids)).astype(np.int32)
    return np.unique(ids)


def _count(ids: Ints, labels: Ints) -> Counts:
    """How often each of `labels` (sorted) is among `ids`."""
    if not len(labels):
        return np.zeros(0, np.int64)
    limit = int(labels[-1]) + 1
    if len(ids) * 8 > limit:
        return np.bincount(ids[ids < limit], minlength=limit)[labels]
    # A small group in a large label space: do not walk over all labels.
    spots = np.minimum(np.searchsorted(labels, ids), len(labels) - 1)
    return np.bincount(spots[labels[spots] == ids], minlength=len(labels))


def macro(values: Floats) -> float | None:
    """The mean over labels, None without labels."""
    return float(values.mean()) if values.size else None


def pooled_recall(counts: LabelCounts, chosen: Flags) -> float | None:
    """ΣTP / Σ(TP + FN) over the chosen labels (a flag per label of the space)."""
    positive = int(counts.positive[chosen].sum())
    return float(counts.tp[chosen].sum() / positive) if positive else None


def bin_names(edges: Sequence[int] = BIN_EDGES) -> list[str]:
    """The bins of training frequency by their lower edges; 0 (unseen) is always a bin of its own.

    >>> bin_names()
    ['0', '1-9', '10-99', '100-999', '1000+']
    """
    full = sorted({0, 1, *edges})
    names = [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(full)]
    return [*names, f"{full[-1]}+"]


def bin_of(frequency: NDArray[np.int64], edges: Sequence[int] = BIN_EDGES) -> NDArray[np.int64]:
    """The number of the bin of each training frequency.

    >>> bin_of(np.array([0, 1, 9, 10, 5000])).tolist()
    [0, 1, 1, 2, 4]
    """
    return np.asarray(np.searchsorted(np.asarray(sorted({1, *edges})), frequency, side="right"), np.int64)


def _share(top: NDArray[Any], bottom: NDArray[Any]) -> Floats:
    return np.asarray(np.divide(top, bottom, out=np.zeros(len(top)), where=bottom > 0), np.float64)
