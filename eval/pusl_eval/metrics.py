"""Lists of phrases -> one metric: the declarations of all metrics that are made of items.

    from pusl_eval import metrics

    metrics.budget_accuracy([["red shoe", "hat"]], [["Red shoe", "coat"]], k=2).mean()

`references` and `predictions` hold one list of phrases per item, in the same order. Below, Y is an item's
reference set, Ŷ:k the distinct phrases among its first k predictions. A metric per item gives an array with one
value per item, NaN for an item that is left out of the mean (one without references, as a rule); `mean`
averages the others. The other metrics give one number, None where there is nothing to average over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pusl_eval.declarations import FREE, ITEM, LOWER, NEITHER, REGISTRY, TEXT, by_judge, per_item, pooled
from pusl_eval.label_metrics import (
    alpha_coverage,
    coverage,
    entropy,
    expected_coverage,
    macro_f1,
    macro_f_beta,
    macro_precision,
    macro_recall,
    recall_seen,
    recall_unseen,
)
from pusl_eval.significance import mean
from pusl_eval.tallies import Tally, discounts, divide

__all__ = [
    "REGISTRY", "abandonment", "absent_f1", "absent_recall", "alpha_coverage", "budget_accuracy", "budget_ceiling",
    "coverage", "diversity", "entropy", "expected_coverage", "f1", "in_universe", "macro_f1", "macro_f_beta",
    "macro_precision", "macro_recall", "mean", "micro_f1", "micro_precision", "micro_recall", "ndcg", "ndcg_full",
    "new", "precision", "present_f1", "propensity_ndcg", "propensity_ndcg_normalized", "propensity_precision",
    "propensity_precision_normalized", "propensity_recall", "rank_weighted_precision", "recall", "recall_seen",
    "recall_unseen", "success", "unique_count", "weighted_precision",
]  # fmt: skip

Floats = NDArray[np.float64]
Sums = tuple[NDArray[Any], NDArray[Any]]


def _some(values: NDArray[Any] | None) -> Floats:
    assert values is not None
    return np.asarray(values, np.float64)


@per_item(
    "B@k", formula="|Ŷ:k ∩ Y| / k", section=ITEM, brief=True, summary=True,
    meaning="Right phrases per phrase asked for; precision@k in the XMC literature.",
)  # fmt: skip
def budget_accuracy(t: Tally) -> Floats:
    """A repeat wastes budget: of the four places one is a repeat and one is wrong.

    >>> budget_accuracy([["a", "b", "c"]], [["a", "A", "x", "b"]], k=4).tolist()
    [0.5]
    """
    return t.hits / t.k


@per_item(
    "B@k_max", formula="min(|Y|, k) / k", section=ITEM, better=NEITHER, brief=True,
    meaning="The highest B@k that the references allow.",
)  # fmt: skip
def budget_ceiling(t: Tally) -> Floats:
    """Three references for a budget of four.

    >>> budget_ceiling([["a", "b", "c"]], [[]], k=4).tolist()
    [0.75]
    """
    return np.asarray(np.minimum(t.size, t.k) / t.k)


@per_item(
    "K@k", formula="|Ŷ:k|", section=ITEM, shown="#", unit="number", brief=True, summary=True, with_empty=True,
    meaning="How many different phrases an item gets; items without references count too.",
)  # fmt: skip
def unique_count(t: Tally) -> Floats:
    """A repeat and a blank do not count.

    >>> unique_count([["a"]], [["a", "A ", "b", " "]], k=4).tolist()
    [2.0]
    """
    return t.unique.astype(np.float64)


@per_item(
    "P@k", "P@O", formula="|Ŷ:k ∩ Y| / |Ŷ:k|, 0 if nothing is predicted", section=ITEM, better=NEITHER, summary=True,
    meaning="Right phrases per phrase given; a system that stops early gains by it.",
)  # fmt: skip
def precision(t: Tally) -> Floats:
    """Two phrases given, one right. Without k the cut is O, the item's number of references.

    >>> precision([["a", "b", "c"]], [["a", "x"]], k=5).tolist()
    [0.5]
    """
    return divide(t.hits, t.unique)


@per_item(
    "R@k", "R@O", formula="|Ŷ:k ∩ Y| / |Y|", section=ITEM, summary=True,
    meaning="Share of an item's references that are found.",
)  # fmt: skip
def recall(t: Tally) -> Floats:
    """One of four references stands among the first two.

    >>> recall([["a", "b", "c", "d"]], [["a", "x", "b"]], k=2).tolist()
    [0.25]
    """
    return divide(t.hits, t.size)


@per_item(
    "F1@k", "F1@O", formula="harmonic mean of P and R of the item, 0 if both are 0", section=ITEM, brief=True,
    meaning="Balance of precision and recall; F1@O asks each item for as many phrases as it has references.",
)  # fmt: skip
def f1(t: Tally) -> Floats:
    """P@O = 1/2 and R@O = 1/2 for the first item; the second predicts its one phrase too late.

    >>> f1([["a", "b"], ["c"]], [["a", "x"], ["y", "c"]]).tolist()
    [0.5, 0.0]
    """
    return divide(2.0 * t.hits, t.unique + t.size)


@per_item(
    "nDCG@k", formula="Σ over hits 1/log2(rank + 1), over Σ 1/log2(i + 1) for i = 1 to min(k, |Y|)", section=ITEM,
    brief=True, summary=True, meaning="Like R@k, but an early hit counts more than a late one.",
)  # fmt: skip
def ndcg(t: Tally) -> Floats:
    """One hit at rank 2, one phrase to find: (1/log2 3) / 1.

    >>> ndcg([["a"]], [["x", "a"]], k=3).round(4).tolist()
    [0.6309]
    """
    ideal = np.concatenate(([0.0], np.cumsum(discounts(t.k))))
    return divide(_some(t.dcg), ideal[np.minimum(t.size, t.k)])


@per_item(
    "Success@k", formula="1 if |Ŷ:k ∩ Y| > 0, else 0", section=ITEM,
    meaning="Share of items with at least one hit.",
)  # fmt: skip
def success(t: Tally) -> Floats:
    """The second item's hit comes too late.

    >>> success([["a"], ["b"]], [["x", "a"], ["x", "y", "b"]], k=2).tolist()
    [1.0, 0.0]
    """
    return np.asarray(t.hits > 0, np.float64)


@per_item(
    "Abandonment@k", formula="1 − Success@k", section=ITEM, better=LOWER, meaning="Share of items without any hit.",
)  # fmt: skip
def abandonment(t: Tally) -> Floats:
    """The reverse of Success@k.

    >>> abandonment([["a"], ["b"]], [["x", "a"], ["x", "y", "b"]], k=2).tolist()
    [0.0, 1.0]
    """
    return np.asarray(t.hits == 0, np.float64)


@per_item(
    "PSP@k", formula="(1/k) Σ over hits 1/p_l", section=ITEM, needs="propensities", brief=True,
    meaning="B@k corrected for labels that are often missing; above 1 the propensity model does not fit.",
)  # fmt: skip
def propensity_precision(t: Tally) -> Floats:
    """One hit with p = 1/2 in a budget of 4: (1/4) · 2. A label that `propensities` lacks has p = 1.

    >>> propensity_precision([["a", "b"]], [["a", "x"]], k=4, propensities={"a": 0.5}).tolist()
    [0.5]
    """
    return _some(t.inverse) / t.k


@pooled(
    "PSP@k_norm", formula="Σ_i PSP_i / Σ_i (the k largest 1/p_l of Y_i, over k)", section=ITEM, needs="propensities",
    brief=True, with_empty=True, meaning="PSP@k as a share of the best reachable PSP@k.",
)  # fmt: skip
def propensity_precision_normalized(t: Tally) -> Sums:
    """The better of the two labels was missed: 2 of a reachable 4.

    >>> propensity_precision_normalized([["a", "b"]], [["a"]], k=1, propensities={"a": 0.5, "b": 0.25})
    0.5
    """
    return _some(t.inverse), _some(t.best_inverse)


@per_item(
    "PSnDCG@k", formula="Σ over hits 1/(p_l log2(rank + 1)), over Σ 1/log2(i + 1) for i = 1 to k", section=ITEM,
    needs="propensities", meaning="PSP@k in which an early hit counts more than a late one.",
)  # fmt: skip
def propensity_ndcg(t: Tally) -> Floats:
    """A hit of p = 1/2 at the only place.

    >>> propensity_ndcg([["a"]], [["a"]], k=1, propensities={"a": 0.5}).tolist()
    [2.0]
    """
    return _some(t.inverse_dcg) / float(discounts(t.k).sum())


@per_item(
    "weighted P@k", formula="(1/k) Σ over hits w_l", section=ITEM, needs="weights",
    meaning="B@k in which each label is worth what the user says; without a weight it is worth 0.",
)  # fmt: skip
def weighted_precision(t: Tally) -> Floats:
    """Two hits worth 3 and 1 in a budget of 2.

    >>> weighted_precision([["a", "b"]], [["a", "b"]], k=2, weights={"a": 3, "b": 1}).tolist()
    [2.0]
    """
    return _some(t.weight) / t.k


@per_item(
    "Diversity@k", formula="mean over pairs in Ŷ:k of 1 − Jaccard(words)", section=ITEM, better=NEITHER,
    with_empty=True, meaning="How little the phrases of an item share words; items with fewer than 2 are left out.",
)  # fmt: skip
def diversity(t: Tally) -> Floats:
    """One shared word of three: 1 − 1/3.

    >>> diversity([[]], [["red shoe", "red boot"]], k=2).round(4).tolist()
    [0.6667]
    """
    pairs = t.unique.astype(np.float64) * (t.unique - 1) / 2
    return np.where(pairs > 0, 1 - divide(_some(t.overlap), pairs), np.nan)


@pooled(
    "Uni@k", formula="share of all predicted phrases that the universe has", section=FREE, needs="universe",
    summary=True, with_empty=True, meaning="Share of the given phrases that are real queries or labels.",
)  # fmt: skip
def in_universe(t: Tally) -> Sums:
    """One of two predicted phrases is in the universe.

    >>> in_universe([["a"]], [["a", "x"]], k=2, universe=["A", "b"])
    0.5
    """
    return _some(t.in_universe), t.unique


@pooled(
    "New@k", formula="share of all predicted phrases that no training item has", section=FREE, needs="train",
    better=NEITHER, summary=True, with_empty=True, meaning="Share of the given phrases that training never saw.",
)  # fmt: skip
def new(t: Tally) -> Sums:
    """One of two predicted phrases is not a training label.

    >>> new([["a"]], [["a", "x"]], k=2, train=["A", "b"])
    0.5
    """
    return _some(t.new), t.unique


by_judge("G@k", formula="share of all predicted phrases that the judge calls relevant",
         meaning="Share of the given phrases that a language model finds relevant.")  # fmt: skip
by_judge("Rel@k", formula="share of all predicted phrases that are relevant AND in the universe",
         meaning="Share of the given phrases that are relevant and real queries (`--universe`).")  # fmt: skip


@per_item(
    "nDCG@k_k", formula="Σ over hits 1/log2(rank + 1), over Σ 1/log2(i + 1) for i = 1 to k",
    meaning="nDCG@k with the ideal of k hits, as some XMC papers report it.",
)  # fmt: skip
def ndcg_full(t: Tally) -> Floats:
    """One hit at rank 2; the ideal has hits at both ranks: 0.6309 / 1.6309.

    >>> ndcg_full([["a"]], [["x", "a"]], k=2).round(4).tolist()
    [0.3869]
    """
    return _some(t.dcg) / float(discounts(t.k).sum())


@per_item(
    "PSR@k", formula="(1/|Y|) Σ over hits 1/p_l", needs="propensities",
    meaning="R@k corrected for labels that are often missing.",
)  # fmt: skip
def propensity_recall(t: Tally) -> Floats:
    """One hit with p = 1/2, four references: 2 / 4.

    >>> propensity_recall([["a", "b", "c", "d"]], [["a"]], k=3, propensities={"a": 0.5}).tolist()
    [0.5]
    """
    return divide(_some(t.inverse), t.size)


@pooled(
    "PSnDCG@k_norm", formula="Σ_i PSnDCG_i / Σ_i (best reachable PSnDCG_i)", needs="propensities", with_empty=True,
    meaning="PSnDCG@k as a share of the best reachable PSnDCG@k.",
)  # fmt: skip
def propensity_ndcg_normalized(t: Tally) -> Sums:
    """Gains 2 at rank 1 of a reachable 4 + 2/log2 3 = 5.2619.

    >>> round(propensity_ndcg_normalized([["a", "b"]], [["a"]], k=2, propensities={"a": 0.5, "b": 0.25}), 4)
    0.3801
    """
    return _some(t.inverse_dcg), _some(t.best_inverse_dcg)


@per_item(
    "rank-weighted P@k", formula="(1/k) Σ over hits W[l, rank]", needs="rank weights",
    meaning="B@k in which a hit is worth what the user's matrix says for its label and rank.",
)  # fmt: skip
def rank_weighted_precision(t: Tally) -> Floats:
    """Label b is worth 3 at rank 2; label a is worth nothing there. A rank beyond the row is worth 0.

    >>> rank_weighted_precision([["a", "b"]], [["x", "b"]], k=2, rank_weights={"a": [5], "b": [4, 3]}).tolist()
    [1.5]
    """
    return _some(t.rank_weight) / t.k


@pooled(
    "MicroP@k", formula="Σ|Ŷ:k ∩ Y| / Σ|Ŷ:k|", better=NEITHER,
    meaning="Precision with hits and phrases pooled over all items: long lists count more.",
)  # fmt: skip
def micro_precision(t: Tally) -> Sums:
    """One hit of three phrases in all.

    >>> round(micro_precision([["a"], ["b"]], [["a", "x"], ["y"]], k=2), 4)
    0.3333
    """
    return t.hits, t.unique


@pooled(
    "MicroR@k", formula="Σ|Ŷ:k ∩ Y| / Σ|Y|", meaning="Recall with hits and references pooled over all items.",
)  # fmt: skip
def micro_recall(t: Tally) -> Sums:
    """One of four references in all.

    >>> micro_recall([["a", "b", "c"], ["d"]], [["a"], ["x"]], k=2)
    0.25
    """
    return t.hits, t.size


@pooled(
    "MicroF1@k", formula="2 Σ|Ŷ:k ∩ Y| / (Σ|Ŷ:k| + Σ|Y|)",
    meaning="F1 from the hits, phrases and references pooled over all items.",
)  # fmt: skip
def micro_f1(t: Tally) -> Sums:
    """One hit, two phrases, four references: 2 / 6.

    >>> round(micro_f1([["a", "b", "c"], ["d"]], [["a"], ["x"]], k=2), 4)
    0.3333
    """
    return 2 * t.hits, t.unique + t.size


@per_item(
    "present F1@k", "present F1@M", formula="F1 of the present predictions and the present references",
    section=TEXT, needs="texts", kind="present",
    meaning="F1 for keyphrases that stand in the text: the first k such predictions (M: all).",
)  # fmt: skip
def present_f1(t: Tally) -> Floats:
    """`red shoe` stands in the text, `boot` does not: of the first present prediction one is right.

    >>> present_f1([["red shoe", "boot"]], [["boot", "red shoe"]], k=1, texts=["A red shoe."]).tolist()
    [1.0]
    """
    return divide(2.0 * t.hits, t.unique + t.size)


@per_item(
    "absent F1@k", "absent F1@M", formula="F1 of the absent predictions and the absent references",
    section=TEXT, needs="texts", kind="absent",
    meaning="F1 for keyphrases that do not stand in the text: the first k such predictions (M: all).",
)  # fmt: skip
def absent_f1(t: Tally) -> Floats:
    """Two absent predictions, one absent reference, one hit: 2 / 3. Without k all predictions count.

    >>> absent_f1([["red shoe", "boot"]], [["cap", "red shoe", "boot"]], texts=["A red shoe."]).round(4).tolist()
    [0.6667]
    """
    return divide(2.0 * t.hits, t.unique + t.size)


@per_item(
    "absent R@k", formula="|absent Ŷ:k ∩ absent Y| / |absent Y|", section=TEXT, needs="texts", kind="absent",
    meaning="Share of the references that do not stand in the text and are found by the first k such predictions.",
)  # fmt: skip
def absent_recall(t: Tally) -> Floats:
    """Of two absent references one is found; the second item has none and is left out.

    >>> texts = ["A red shoe.", "A hat."]
    >>> absent_recall([["boot", "cap"], ["hat"]], [["red shoe", "boot"], ["x"]], k=1, texts=texts).tolist()
    [0.5, nan]
    """
    return divide(t.hits, t.size)
