"""Lists of phrases -> one metric, item by item.

    from pusl_eval.metrics import budget_accuracy

    budget_accuracy([["red shoe", "hat"]], [["Red shoe", "coat"]], k=2).mean()

`references` and `predictions` hold one list of phrases per item, in the same order. Below, Y is an item's
reference set, Ŷ:k the different phrases among its first k predictions. Each function gives an array with
one value per item, NaN for an item that is left out of the mean (one without references, as a rule);
`mean` averages the others. Scores over labels give one number, None where nothing can be averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pusl_eval import coverage as _coverage
from pusl_eval.diversity import WordTable
from pusl_eval.files import InputError
from pusl_eval.labels import LabelCounts, count_labels, macro
from pusl_eval.matching import Vocabulary
from pusl_eval.significance import mean
from pusl_eval.tallies import Gains, tally, values

__all__ = [
    "abandonment", "budget_accuracy", "budget_ceiling", "coverage", "diversity", "f1", "macro_scores", "mean", "ndcg",
    "precision", "propensity_ndcg", "propensity_precision", "recall", "success", "unique_count", "weighted_precision",
]  # fmt: skip

Floats = NDArray[np.float64]
Lists = Sequence[Sequence[str]]


def precision(references: Lists, predictions: Lists, k: int | None = None, normalization: str = "basic") -> Floats:
    """P@k = |Ŷ:k ∩ Y| / |Ŷ:k|, 0 if nothing is predicted. Without k: P@O, the cut at |Y| (at most 100).

    >>> precision([["a", "b", "c"]], [["a", "x"]], k=5).tolist()
    [0.5]
    """
    return _score("P", references, predictions, k, normalization)


def recall(references: Lists, predictions: Lists, k: int | None = None, normalization: str = "basic") -> Floats:
    """R@k = |Ŷ:k ∩ Y| / |Y|. Without k: R@O, the cut at |Y| (at most 100).

    >>> recall([["a", "b", "c", "d"]], [["a", "x", "b"]], k=2).tolist()
    [0.25]
    """
    return _score("R", references, predictions, k, normalization)


def f1(references: Lists, predictions: Lists, k: int | None = None, normalization: str = "basic") -> Floats:
    """F1@k = the harmonic mean of P@k and R@k of the item, 0 if both are 0. Without k: F1@O.

    P@O = 1/2, R@O = 1/2 for the first item; the second predicts one phrase too late.

    >>> f1([["a", "b"], ["c"]], [["a", "x"], ["y", "c"]]).tolist()
    [0.5, 0.0]
    """
    return _score("F1", references, predictions, k, normalization)


def budget_accuracy(references: Lists, predictions: Lists, k: int, normalization: str = "basic") -> Floats:
    """B@k = |Ŷ:k ∩ Y| / k: what the budget of k phrases was good for. Precision@k in the XMC literature.

    A repeat wastes budget: of the four places one is a repeat and one is wrong.

    >>> budget_accuracy([["a", "b", "c"]], [["a", "A", "x", "b"]], k=4).tolist()
    [0.5]
    """
    return _score("B", references, predictions, k, normalization)


def budget_ceiling(references: Lists, predictions: Lists, k: int, normalization: str = "basic") -> Floats:
    """B@k_max = min(|Y|, k) / k, the best B@k that the item allows.

    >>> budget_ceiling([["a", "b", "c"]], [[]], k=4).tolist()
    [0.75]
    """
    return _score("B_max", references, predictions, k, normalization)


def unique_count(references: Lists, predictions: Lists, k: int, normalization: str = "basic") -> Floats:
    """K@k = |Ŷ:k|, the number of different phrases. Counts for items without references too.

    >>> unique_count([["a"]], [["a", "A ", "b", " "]], k=4).tolist()
    [2.0]
    """
    return _score("K", references, predictions, k, normalization)


def ndcg(references: Lists, predictions: Lists, k: int, normalization: str = "basic") -> Floats:
    """nDCG@k = Σ over hits 1/log2(rank + 1), over Σ_{i=1..min(k, |Y|)} 1/log2(i + 1).

    One hit at rank 2, one phrase to find: (1/log2 3) / 1.

    >>> ndcg([["a"]], [["x", "a"]], k=3).round(4).tolist()
    [0.6309]
    """
    return _score("nDCG", references, predictions, k, normalization)


def success(references: Lists, predictions: Lists, k: int, normalization: str = "basic") -> Floats:
    """Success@k = 1 if some hit is among the first k, else 0.

    >>> success([["a"], ["b"]], [["x", "a"], ["x", "y", "b"]], k=2).tolist()
    [1.0, 0.0]
    """
    return _score("Success", references, predictions, k, normalization)


def abandonment(references: Lists, predictions: Lists, k: int, normalization: str = "basic") -> Floats:
    """Abandonment@k = 1 - Success@k.

    >>> abandonment([["a"], ["b"]], [["x", "a"], ["x", "y", "b"]], k=2).tolist()
    [0.0, 1.0]
    """
    return _score("Abandonment", references, predictions, k, normalization)


def propensity_precision(
    references: Lists, predictions: Lists, k: int, propensities: Mapping[str, float], normalization: str = "basic"
) -> Floats:
    """PSP@k = (1/k) Σ over hits 1/p_l. A label that `propensities` lacks has p = 1.

    One hit with p = 1/2 in a budget of 4: (1/4) · 2.

    >>> propensity_precision([["a", "b"]], [["a", "x"]], k=4, propensities={"a": 0.5}).tolist()
    [0.5]
    """
    return _score("PSP", references, predictions, k, normalization, propensities=propensities)


def propensity_ndcg(
    references: Lists, predictions: Lists, k: int, propensities: Mapping[str, float], normalization: str = "basic"
) -> Floats:
    """PSnDCG@k = Σ over hits 1/(p_l log2(rank + 1)), over Σ_{i=1..k} 1/log2(i + 1).

    >>> propensity_ndcg([["a"]], [["a"]], k=1, propensities={"a": 0.5}).tolist()
    [2.0]
    """
    return _score("PSnDCG", references, predictions, k, normalization, propensities=propensities)


def weighted_precision(
    references: Lists, predictions: Lists, k: int, weights: Mapping[str, float], normalization: str = "basic"
) -> Floats:
    """weighted P@k = (1/k) Σ over hits w_l for a weight per label (0 if `weights` lacks it).

    >>> weighted_precision([["a", "b"]], [["a", "b"]], k=2, weights={"a": 3, "b": 1}).tolist()
    [2.0]
    """
    return _score("weighted P", references, predictions, k, normalization, weights=weights)


def diversity(references: Lists, predictions: Lists, k: int, normalization: str = "basic") -> Floats:
    """Diversity@k = mean over pairs in Ŷ:k of 1 - Jaccard(words); NaN for fewer than two phrases.

    One shared word of three: 1 - 1/3.

    >>> diversity([[]], [["red shoe", "red boot"]], k=2).round(4).tolist()
    [0.6667]
    """
    return _score("Diversity", references, predictions, k, normalization)


def macro_scores(
    references: Lists, predictions: Lists, k: int, normalization: str = "basic"
) -> dict[str, float | None]:
    """MacroP@k, MacroR@k, MacroF1@k: the mean over the references' labels of TP/(TP+FP), TP/(TP+FN), 2TP/(2TP+FP+FN)

    Label a: TP 1, FP 1. Label b: FN 1.

    >>> macro_scores([["a"], ["b"]], [["a"], ["a"]], k=1)
    {'precision': 0.25, 'recall': 0.5, 'f1': 0.3333333333333333}
    """
    counts = _labels(references, predictions, k, normalization)
    return {"precision": macro(counts.precision), "recall": macro(counts.recall), "f1": macro(counts.f1)}


def coverage(references: Lists, predictions: Lists, k: int, normalization: str = "basic") -> float | None:
    """Cov@k = share of the references' labels that are rightly predicted for at least one item.

    >>> coverage([["a", "b"], ["a"]], [["a"], ["b"]], k=1)
    0.5
    """
    return _coverage.coverage(_labels(references, predictions, k, normalization).tp)


def _score(
    name: str,
    references: Lists,
    predictions: Lists,
    k: int | None,
    normalization: str,
    *,
    propensities: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Floats:
    _check(references, predictions, k)
    vocabulary = Vocabulary(normalization)
    truth = vocabulary.encode(references).as_sets()
    rows = vocabulary.encode(predictions)
    size = vocabulary.size
    inverse = _by_id(vocabulary, propensities, 1.0, lambda p: 1 / p) if propensities is not None else None
    worth = _by_id(vocabulary, weights, 0.0, lambda w: w) if weights is not None else None
    words = WordTable(vocabulary.phrases()) if name == "Diversity" else None
    tallies, _ = tally(truth, rows, [k or 0], Gains(inverse, worth), words, size)
    return values(name, tallies[k or 0])


def _labels(references: Lists, predictions: Lists, k: int, normalization: str) -> LabelCounts:
    _check(references, predictions, k)
    vocabulary = Vocabulary(normalization)
    truth = vocabulary.encode(references).as_sets()
    limit = vocabulary.size
    _, events = tally(truth, vocabulary.encode(predictions), [k], label_limit=limit)
    return count_labels(truth, events)[0]


def _check(references: Lists, predictions: Lists, k: int | None) -> None:
    if len(references) != len(predictions):
        raise InputError(f"{len(references)} references, {len(predictions)} predictions; expected one list per item")
    if k is not None and k < 1:
        raise InputError(f"k is {k}; expected a whole number of at least 1")
    if any(isinstance(phrases, str) for phrases in (*references, *predictions)):
        raise InputError("an item is a string; expected a list of phrases per item")


def _by_id(
    vocabulary: Vocabulary, given: Mapping[str, float], otherwise: float, turn: Callable[[float], float]
) -> Floats:
    known = {vocabulary[phrase]: turn(value) for phrase, value in given.items()}
    found = np.full(vocabulary.size + 1, otherwise)  # one more, for BLANK
    found[list(known)] = list(known.values())
    return found
