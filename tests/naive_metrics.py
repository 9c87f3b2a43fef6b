"""Lists of phrases -> every metric of docs/reference/metrics.md, in plain Python, written for reading, not for speed.

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
    rank_weights: Mapping[str, Sequence[float]] | None = None,
    texts: Sequence[str] | None = None,
    beta: float = 2.0,
) -> dict[str, float | None]:
    """Metric name -> value, for all items. `weights` and `rank_weights` have normalized phrases."""
    truths = [as_set(phrases, normalize) for phrases in references]
    counts = Counter(label for phrases in train for label in as_set(phrases, normalize))
    known = {normalize(phrase) for phrase in universe} - {""}
    inverse = {label: 1 / jpv(counts[label], len(train)) for label in set().union(*truths)}
    found = dict(zip(("P@O", "R@O", "F1@O"), at_own(truths, predictions, normalize), strict=True))
    for k in ks:
        tops = [first_k(phrases, k, normalize) for phrases in predictions]
        found |= {f"{name}@{k}": value for name, value in per_item(truths, tops, k, inverse, weights or {}).items()}
        found[f"nDCG@{k}_k"] = found.pop(f"nDCG_k@{k}")
        found |= by_propensity(truths, tops, k, inverse)
        found |= {f"{name}@{k}": value for name, value in micro(truths, tops).items()}
        found[f"B@{k}_max"] = average([min(len(truth), k) / k for truth in truths if truth])
        found |= {f"{name}@{k}": value for name, value in over_labels(truths, tops, counts, alpha, beta).items()}
        if rank_weights:
            found[f"rank-weighted P@{k}"] = average([
                sum(at_rank(rank_weights.get(phrase, ()), rank) for phrase, rank in top.items() if phrase in truth) / k
                for truth, top in zip(truths, tops, strict=True) if truth
            ])  # fmt: skip
        found[f"Cov@{k} ({drawn} items)"] = drawn_coverage(truths, tops, drawn)
        every = [phrase for top in tops for phrase in top]
        found[f"Uni@{k}"] = average([phrase in known for phrase in every])
        found[f"New@{k}"] = average([phrase not in counts for phrase in every])
    if texts is not None:
        found |= by_presence(truths, predictions, texts, ks, normalize)
    return found


def at_rank(weights: Sequence[float], rank: int) -> float:
    """The weight of a rank (from 1), 0 beyond the list."""
    return weights[rank - 1] if rank <= len(weights) else 0.0


def by_propensity(
    truths: Sequence[set[str]], tops: Sequence[Mapping[str, int]], k: int, inverse: Mapping[str, float]
) -> dict[str, float | None]:
    """PSR@k and the scores that are divided by the best reachable ones."""
    gain = reachable = discounted = reachable_discounted = 0.0
    recalls = []
    for truth, top in zip(truths, tops, strict=True):
        best = sorted((inverse[label] for label in truth), reverse=True)[:k]
        own = sum(inverse[phrase] for phrase in top if phrase in truth)
        gain += own
        reachable += sum(best)
        discounted += sum(inverse[phrase] / math.log2(rank + 1) for phrase, rank in top.items() if phrase in truth)
        reachable_discounted += sum(value / math.log2(rank + 1) for rank, value in enumerate(best, 1))
        if truth:
            recalls.append(own / len(truth))
    return {
        f"PSP@{k}_norm": gain / reachable if reachable else None,
        f"PSnDCG@{k}_norm": discounted / reachable_discounted if reachable_discounted else None,
        f"PSR@{k}": average(recalls),
    }


def micro(truths: Sequence[set[str]], tops: Sequence[Mapping[str, int]]) -> dict[str, float | None]:
    """TP, FP and FN pooled over all items with references."""
    tp = fp = fn = 0
    for truth, top in zip(truths, tops, strict=True):
        if truth:
            hits = sum(phrase in truth for phrase in top)
            tp, fp, fn = tp + hits, fp + len(top) - hits, fn + len(truth) - hits
    return {
        "MicroP": tp / (tp + fp) if tp + fp else None,
        "MicroR": tp / (tp + fn) if tp + fn else None,
        "MicroF1": 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else None,
    }


def words_of(text: str) -> list[str]:
    """Runs of letters and digits."""
    return "".join(sign if sign.isalnum() else " " for sign in text).split()


def stands_in(phrase: str, text: str) -> bool:
    """Whether the words of the phrase stand next to each other in the text."""
    wanted, words = words_of(phrase), words_of(text)
    return bool(wanted) and any(words[i : i + len(wanted)] == wanted for i in range(len(words)))


def by_presence(
    truths: Sequence[set[str]], predictions: Sequence[Sequence[str]], texts: Sequence[str], ks: Sequence[int],
    normalize: Callable[[str], str],
) -> dict[str, float | None]:  # fmt: skip
    """Present and absent keyphrases."""
    values: dict[str, list[float]] = {}
    for truth, phrases, text in zip(truths, predictions, map(normalize, texts), strict=True):
        forms = [form for form in map(normalize, phrases) if form]
        for kind, wanted in (("present", True), ("absent", False)):
            own = {label for label in truth if stands_in(label, text) is wanted}
            ranked = [form for form in forms if stands_in(form, text) is wanted]
            for k in (*ks, "M"):
                top = set(ranked if k == "M" else ranked[:k])
                if own:
                    values.setdefault(f"{kind} F1@{k}", []).append(2 * len(top & own) / (len(top) + len(own)))
                    if kind == "absent" and k != "M":
                        values.setdefault(f"absent R@{k}", []).append(len(top & own) / len(own))
    return {name: average(found) for name, found in values.items()}


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
    names = ("B", "P", "R", "F1", "nDCG", "nDCG_k", "Success", "Abandonment", "PSP", "PSnDCG", "weighted P")
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
        lists["nDCG_k"].append(sum(1 / math.log2(rank + 1) for _, rank in hits) / full)
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
    truths: Sequence[set[str]], tops: Sequence[Mapping[str, int]], counts: Mapping[str, int], alpha: float, beta: float
) -> dict[str, float | None]:
    """The table "over labels"; `counts` are training frequencies."""
    tp = right_per_label(truths, tops)
    predicted = Counter(phrase for truth, top in zip(truths, tops, strict=True) if truth for phrase in top)
    positive = Counter(label for truth in truths for label in truth)
    seen = [label for label in positive if label in counts]
    unseen = [label for label in positive if label not in counts]
    total = sum(tp.values())

    def f_beta(label: str) -> float:
        p = tp[label] / predicted[label] if predicted[label] else 0.0
        r = tp[label] / positive[label]
        return (1 + beta**2) * p * r / (beta**2 * p + r) if p + r else 0.0

    return {
        "MacroF_β": average([f_beta(x) for x in positive]),
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
