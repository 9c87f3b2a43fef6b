"""Lists of phrases -> every metric of docs/METRICS.md, in plain Python, written for reading and not for speed.

Shares no code with `pusl_eval`: the tests hold the two against each other, and scripts/bench/evaluation.py times them.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations


def basic(text: str) -> str:
    """NFKC, casefold, runs of white space to one space, strip."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def jpv(count: int, n: int, a: float = 0.55, b: float = 1.5) -> float:
    """The default propensity of a label that `count` of n training items have."""
    c = (math.log(n) - 1) * (b + 1) ** a
    return min(1.0, 1 / (1 + c * math.exp(-a * math.log(count + b))))


def first_k(phrases: Sequence[str], k: int, normalize: Callable[[str], str]) -> dict[str, int]:
    """Ŷ:k with the rank of each phrase."""
    ranks: dict[str, int] = {}
    for rank, phrase in enumerate(phrases[:k], 1):
        form = normalize(phrase)
        if form and form not in ranks:
            ranks[form] = rank
    return ranks


def as_set(phrases: Sequence[str], normalize: Callable[[str], str]) -> set[str]:
    """Y: normalized, blanks dropped, repeats collapsed."""
    return {normalize(phrase) for phrase in phrases} - {""}


def average(values: Sequence[float]) -> float | None:
    """The mean, None of nothing."""
    return math.fsum(values) / len(values) if values else None


def scores(
    references: Sequence[Sequence[str]],
    predictions: Sequence[Sequence[str]],
    ks: Sequence[int],
    train: Sequence[Sequence[str]],
    universe: Sequence[str],
    normalize: Callable[[str], str] = basic,
    alpha: float = 0.5,
    drawn: int = 1000,
    weights: Mapping[str, float] | None = None,
) -> dict[str, float | None]:
    """Metric name -> value, for all items."""
    truths = [as_set(phrases, normalize) for phrases in references]
    counts = Counter(label for phrases in train for label in as_set(phrases, normalize))
    known = {normalize(phrase) for phrase in universe} - {""}
    inverse = {label: 1 / jpv(counts[label], len(train)) for label in set().union(*truths)}
    found = dict(zip(("P@O", "R@O", "F1@O"), at_own(truths, predictions, normalize), strict=True))
    for k in ks:
        tops = [first_k(phrases, k, normalize) for phrases in predictions]
        found |= {f"{name}@{k}": value for name, value in per_item(truths, tops, k, inverse, weights or {}).items()}
        best = sum(sum(sorted((inverse[label] for label in truth), reverse=True)[:k]) for truth in truths)
        hits = sum(inverse[label] for truth, top in zip(truths, tops, strict=True) for label in top if label in truth)
        found[f"PSP@{k}_norm"] = hits / best if best else None
        found[f"B@{k}_max"] = average([min(len(truth), k) / k for truth in truths if truth])
        found |= {f"{name}@{k}": value for name, value in over_labels(truths, tops, counts, alpha).items()}
        found[f"Cov@{k} ({drawn} items)"] = drawn_coverage(truths, tops, drawn)
        every = [phrase for top in tops for phrase in top]
        found[f"Uni@{k}"] = average([phrase in known for phrase in every])
        found[f"New@{k}"] = average([phrase not in counts for phrase in every])
    return found


def at_own(
    truths: Sequence[set[str]], predictions: Sequence[Sequence[str]], normalize: Callable[[str], str]
) -> tuple[float | None, float | None, float | None]:
    """P@O, R@O, F1@O."""
    precisions, recalls, f1s = [], [], []
    for truth, phrases in zip(truths, predictions, strict=True):
        if truth:
            top = first_k(phrases, min(len(truth), 100), normalize)
            p, r = rates(truth, top)
            precisions.append(p)
            recalls.append(r)
            f1s.append(2 * p * r / (p + r) if p + r else 0.0)
    return average(precisions), average(recalls), average(f1s)


def rates(truth: set[str], top: Mapping[str, int]) -> tuple[float, float]:
    """Precision and recall of one item."""
    hits = sum(phrase in truth for phrase in top)
    return (hits / len(top) if top else 0.0), hits / len(truth)


def per_item(
    truths: Sequence[set[str]],
    tops: Sequence[Mapping[str, int]],
    k: int,
    inverse: Mapping[str, float],
    weights: Mapping[str, float],
) -> dict[str, float | None]:
    """The table "per item, then mean over items"."""
    names = ("B", "P", "R", "F1", "nDCG", "Success", "Abandonment", "PSP", "PSnDCG", "weighted P")
    lists: dict[str, list[float]] = {name: [] for name in (*names, "K", "Diversity")}
    full = sum(1 / math.log2(i + 1) for i in range(1, k + 1))
    for truth, top in zip(truths, tops, strict=True):
        lists["K"].append(len(top))
        if len(top) > 1:
            words = [set(phrase.split()) for phrase in top]
            pairs = [1 - len(a & b) / len(a | b) for a, b in combinations(words, 2)]
            lists["Diversity"].append(sum(pairs) / len(pairs))
        if not truth:
            continue
        hits = [(phrase, rank) for phrase, rank in top.items() if phrase in truth]
        p, r = rates(truth, top)
        ideal = sum(1 / math.log2(i + 1) for i in range(1, min(k, len(truth)) + 1))
        lists["B"].append(len(hits) / k)
        lists["P"].append(p)
        lists["R"].append(r)
        lists["F1"].append(2 * p * r / (p + r) if p + r else 0.0)
        lists["nDCG"].append(sum(1 / math.log2(rank + 1) for _, rank in hits) / ideal)
        lists["Success"].append(1.0 if hits else 0.0)
        lists["Abandonment"].append(0.0 if hits else 1.0)
        lists["PSP"].append(sum(inverse[phrase] for phrase, _ in hits) / k)
        lists["PSnDCG"].append(sum(inverse[phrase] / math.log2(rank + 1) for phrase, rank in hits) / full)
        lists["weighted P"].append(sum(weights.get(phrase, 0.0) for phrase, _ in hits) / k)
    return {name: average(values) for name, values in lists.items() if name != "weighted P" or weights}


def right_per_label(truths: Sequence[set[str]], tops: Sequence[Mapping[str, int]]) -> Counter[str]:
    """TP of each label."""
    return Counter(phrase for truth, top in zip(truths, tops, strict=True) for phrase in top if phrase in truth)


def over_labels(
    truths: Sequence[set[str]], tops: Sequence[Mapping[str, int]], counts: Mapping[str, int], alpha: float
) -> dict[str, float | None]:
    """The table "over labels"; `counts` are training frequencies."""
    tp = right_per_label(truths, tops)
    predicted = Counter(phrase for truth, top in zip(truths, tops, strict=True) if truth for phrase in top)
    positive = Counter(label for truth in truths for label in truth)
    seen = [label for label in positive if label in counts]
    unseen = [label for label in positive if label not in counts]
    total = sum(tp.values())
    return {
        "MacroP": average([tp[x] / predicted[x] if predicted[x] else 0.0 for x in positive]),
        "MacroR": average([tp[x] / positive[x] for x in positive]),
        "MacroF1": average([2 * tp[x] / (predicted[x] + positive[x]) for x in positive]),
        "Cov": average([float(tp[x] > 0) for x in positive]),
        "αCov": average([float(tp[x] > 0 and tp[x] / positive[x] >= alpha) for x in positive]),
        "Entropy": -sum(n / total * math.log(n / total) for n in tp.values()) if total else None,
        "R_seen": sum(tp[x] for x in seen) / sum(positive[x] for x in seen) if seen else None,
        "R_unseen": sum(tp[x] for x in unseen) / sum(positive[x] for x in unseen) if unseen else None,
    }


def drawn_coverage(truths: Sequence[set[str]], tops: Sequence[Mapping[str, int]], drawn: int) -> float | None:
    """Expected coverage of `drawn` items drawn with replacement."""
    tp, n = right_per_label(truths, tops), sum(1 for truth in truths if truth)
    return average([1 - (1 - tp[label] / n) ** drawn for label in set().union(*truths)])
