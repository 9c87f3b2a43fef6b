"""Events per label -> macro scores and coverage: the declarations of all metrics over labels.

For label l over all items with references: TP, FP and FN of "l in Ŷ:k" against "l in Y". The label space
is the labels of the references, or a set given by the user.
"""

from __future__ import annotations

import numpy as np

from pusl_eval.declarations import FURTHER, over_labels
from pusl_eval.labels import LabelTable, macro, pooled_recall


@over_labels(
    "MacroP@k", formula="mean over labels of TP/(TP+FP), 0 if never predicted",
    meaning="Precision per label, averaged: a rare label counts as much as a frequent one.",
)  # fmt: skip
def macro_precision(table: LabelTable) -> float | None:
    """Label a: TP 1, FP 1. Label b: never predicted.

    >>> macro_precision([["a"], ["b"]], [["a"], ["a"]], k=1)
    0.25
    """
    return macro(table.counts.precision)


@over_labels(
    "MacroR@k", formula="mean over labels of TP/(TP+FN)", meaning="Recall per label, averaged over labels.",
)  # fmt: skip
def macro_recall(table: LabelTable) -> float | None:
    """Label a is found, label b is not.

    >>> macro_recall([["a"], ["b"]], [["a"], ["a"]], k=1)
    0.5
    """
    return macro(table.counts.recall)


@over_labels(
    "MacroF1@k", formula="mean over labels of 2TP / (2TP + FP + FN)", brief=True, summary=True,
    meaning="F1 per label, averaged over labels; `bins` has it by training frequency.",
)  # fmt: skip
def macro_f1(table: LabelTable) -> float | None:
    """Label a: 2/3. Label b: 0.

    >>> round(macro_f1([["a"], ["b"]], [["a"], ["a"]], k=1), 4)
    0.3333
    """
    return macro(table.counts.f1)


@over_labels(
    "Cov@k", formula="share of labels with TP ≥ 1", brief=True, summary=True,
    meaning="Share of the labels that are found for at least one item.",
)  # fmt: skip
def coverage(table: LabelTable) -> float | None:
    """b is predicted, but not for its item.

    >>> coverage([["a", "b"], ["a"]], [["a"], ["b"]], k=1)
    0.5
    """
    return macro((table.counts.tp > 0).astype(np.float64))


@over_labels(
    "Cov@k (n items)", formula="mean over labels of 1 − (1 − TP/N)^n, N = items with references",
    meaning="Expected Cov@k when n items are drawn with replacement (--coverage-items).",
)  # fmt: skip
def expected_coverage(table: LabelTable) -> float | None:
    """a is right for 1 of 2 items; two draws meet it with 1 − (1/2)². b is never right.

    >>> expected_coverage([["a"], ["b"]], [["a"], ["x"]], k=1, drawn=2)
    0.375
    """
    return macro(1 - (1 - table.counts.tp / table.items) ** table.drawn)


@over_labels(
    "αCov@k", formula="share of labels with TP ≥ 1 and TP/(TP+FN) ≥ α",
    meaning="Share of the labels whose recall is at least α (--alpha).",
)  # fmt: skip
def alpha_coverage(table: LabelTable) -> float | None:
    """a has a recall of 1/2, b of 0. A label without any reference is not covered.

    >>> alpha_coverage([["a", "b"], ["a"]], [["a"], ["x"]], k=1, alpha=0.5)
    0.5
    """
    reached = (table.counts.tp > 0) & (table.counts.recall >= table.alpha)
    return macro(reached.astype(np.float64))


@over_labels(
    "Entropy@k", formula="−Σ ρ_l ln ρ_l, ρ_l = TP_l / Σ TP", unit="number",
    meaning="How evenly the hits are spread over labels, in nats.",
)  # fmt: skip
def entropy(table: LabelTable) -> float | None:
    """Two labels with one hit each: ln 2.

    >>> round(entropy([["a"], ["b"]], [["a"], ["b"]], k=1), 4)
    0.6931
    """
    found = table.counts.tp[table.counts.tp > 0].astype(np.float64)
    if not found.size:
        return None
    share = found / found.sum()
    return max(0.0, float(-np.sum(share * np.log(share))))  # never -0.0


@over_labels(
    "R_seen@k", formula="ΣTP / Σ(TP+FN) over labels that occur in training", needs="train",
    meaning="Recall of labels that training has.",
)  # fmt: skip
def recall_seen(table: LabelTable) -> float | None:
    """a is a training label and found once of twice.

    >>> recall_seen([["a", "b"], ["a"]], [["a"], ["x"]], k=1, train=["a"])
    0.5
    """
    return None if table.seen is None else pooled_recall(table.counts, table.seen)


@over_labels(
    "R_unseen@k", formula="ΣTP / Σ(TP+FN) over labels that do not occur in training", needs="train",
    meaning="Recall of labels that training never saw.",
)  # fmt: skip
def recall_unseen(table: LabelTable) -> float | None:
    """b is not a training label and is missed.

    >>> recall_unseen([["a", "b"], ["a"]], [["a"], ["x"]], k=1, train=["a"])
    0.0
    """
    return None if table.seen is None else pooled_recall(table.counts, ~table.seen)


@over_labels(
    "MacroF_β@k", formula="mean over labels of (1+β²)PR / (β²P + R), 0 if both are 0", section=FURTHER,
    meaning="MacroF1@k with recall β times as important as precision (--beta).",
)  # fmt: skip
def macro_f_beta(table: LabelTable) -> float | None:
    """Label a: P = 1/2, R = 1, so F_2 = 5 · 1/2 / (4 · 1/2 + 1) = 5/6. Label b: 0.

    >>> round(macro_f_beta([["a"], ["b"]], [["a"], ["a"]], k=1, beta=2), 4)
    0.4167
    """
    return macro(table.counts.f_beta(table.beta))
