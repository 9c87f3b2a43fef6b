"""Metrics -> a few plain sentences: who is ahead, how sure that is, what it costs, what to do next.

`evaluate` and the report both open with them. The yardstick is B@k at the largest k asked for: it is the one
score that a system cannot raise by stopping early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pusl_eval.declarations import shown_name
from pusl_eval.table import number

Systems = Mapping[str, Mapping[str, Any]]  # name -> metrics, as in metrics.json
Gaps = Callable[[str, str, str], Mapping[str, Any] | None]  # system, other system, metric -> paired difference
LEAST = 0.005  # half a point: a smaller loss is not worth a sentence
NOISE = 1e-12  # of floating-point sums: what is smaller is 0


def verdict(systems: Systems, gaps: Gaps, k: int, complete: bool = False) -> list[str]:
    """The sentences for one system or several, at one k; `complete` says that no right label is missing."""
    ranked = sorted(systems, key=lambda name: -(_score(systems[name], f"B@{k}") or 0.0))
    if _score(systems[ranked[0]], f"B@{k}") is None:
        return ["No item has references, so nothing can be scored; fill in the keyphrases of the references."]
    if len(ranked) == 1:
        found = _alone(systems[ranked[0]], k, complete)
    else:
        found = _ahead(systems, ranked[0], ranked[1], gaps, k, complete)
    missing, short = missing_predictions(systems), short_lists(systems, k)
    if missing:
        return [missing, *found[:-1], short or "First generate the missing predictions."]
    return [*found[:-1], short] if short else found


def missing_predictions(systems: Systems) -> str:
    """Which systems lack predictions, and what that does to their scores; empty if none does."""
    listed = _counted(systems, lambda metrics: metrics["provenance"]["missing_predictions"])
    if not listed:
        return ""
    return f"Predictions are missing for {listed} items; these count as empty, so the scores are too low."


def short_lists(systems: Systems, k: int) -> str:
    """What to do about lists that hold fewer phrases than asked for; empty if there are none."""
    listed = _counted(systems, lambda metrics: metrics["provenance"]["short_lists"].get(str(k), 0))
    if not listed:
        return ""
    return (
        f"First generate at least {_phrases(k)} per item: {listed} prediction lists are shorter and not "
        f"marked exhausted, so B@{k} is too low."
    )


def _counted(systems: Systems, count: Callable[[Mapping[str, Any]], int]) -> str:
    """`3 of 100 (a) and 5 of 100 (b)` for the systems that have any; without the name if there is only one system."""
    listed = []
    for name, metrics in systems.items():
        if count(metrics):
            listed.append(f"{count(metrics):,} of {metrics['counts']['n_items']:,}" + f" ({name})" * (len(systems) > 1))
    return " and ".join(listed)


def _alone(metrics: Mapping[str, Any], k: int, complete: bool) -> list[str]:
    """One system."""
    name, ceiling = f"B@{k}", _score(metrics, f"B@{k}_max") or 1.0
    value = _score(metrics, name) or 0.0
    span = metrics["intervals"]["all"].get(name)
    sure = f" (95% interval {number(name, span[0])} to {number(name, span[1])})" if span else ""
    return [
        f"{name} is {number(name, value)}{sure}: {100 * value / ceiling:.0f}% of the "
        f"{number(name, ceiling)} that the labels allow.",
        f"Of the {_phrases(k)} asked for it gives {_shown(metrics, f'K@{k}')} distinct ones; "
        f"{_shown(metrics, f'P@{k}')}% of what it gives is among the labels"
        + ("." if complete else "; labels are incomplete, so the rest may be right too."),
        "Next: compare it with a baseline, for example `pusl baseline knn` and one more --predictions NAME=FILE.",
    ]


def _ahead(systems: Systems, first: str, second: str, gaps: Gaps, k: int, complete: bool) -> list[str]:
    """The best system against the next."""
    name = f"B@{k}"
    best, other = systems[first], systems[second]
    gap = gaps(first, second, name) or {}
    difference, span = gap.get("difference") or 0.0, gap.get("interval")
    digits = _digits([difference, *(span or ())])
    scores = f"{name} {_shown(best, name, digits)} against {_shown(other, name, digits)}"
    if _score(best, name) == _score(other, name):
        return [
            f"{first} and {second} are level: {scores}.",
            *_cost(best, other, second, k),
            "Next: choose by another metric below, or score more items.",
        ]
    certain = span is not None and span[0] > NOISE
    lead = f"{first} {'is ahead of' if certain else 'scores higher than'} {second}: {scores}, "
    lead += f"{_points(difference, digits)} points"
    if not span:
        return [
            f"{lead}; without bootstrap draws there is no telling whether that is chance.",
            *_cost(best, other, second, k),
            "Next: run again with --bootstrap 1000.",
        ]
    lead += f" (95% interval {_points(span[0], digits)} to {_points(span[1], digits)})"
    if certain:
        return [
            f"{lead}; the interval is above 0, so this is not chance.",
            *_cost(best, other, second, k),
            f"Next: use {first}."
            if complete
            else f"Next: use {first}; labels are incomplete, so let `pusl judge` or a person check what it adds before "
            "you trust the level of the scores.",
        ]
    items = best["counts"]["n_items"] - best["counts"]["n_without_references"]
    needed = _rounded(items * ((span[1] - span[0]) / 2 / max(difference, 1e-9)) ** 2)
    more = f"score about {needed:,} items" if needed <= 1000 * items else "score far more items"
    return [
        f"{lead}; the interval includes 0, so this may be chance.",
        *_cost(best, other, second, k),
        f"Next: to be sure of a difference this small, {more} (these are {items:,}), or treat the two as equal.",
    ]


def _cost(best: Mapping[str, Any], other: Mapping[str, Any], name_of_other: str, k: int) -> list[str]:
    """What the leader is worse at."""
    losses: list[str] = []
    for name in (f"P@{k}", "F1@O", f"Cov@{k}", f"R_unseen@{k}"):
        ours, theirs = _score(best, name), _score(other, name)
        if ours is not None and theirs is not None and theirs - ours >= LEAST:
            falls = "" if losses else "falls "
            losses.append(f"{shown_name(name)} {falls}from {number(name, theirs)} to {number(name, ours)}")
    ours, theirs = (_score(metrics, f"K@{k}") or 0.0 for metrics in (best, other))
    phrases = f"{ours:.1f} phrases per item instead of {theirs:.1f}"
    if abs(ours - theirs) < 0.05:
        phrases = f"{ours:.1f} phrases per item, as many as {name_of_other}"
    listed = " and ".join([*filter(None, [", ".join(losses[:-1])]), *losses[-1:]])
    return [f"It gives {phrases}; {listed or 'no other main score is worse'}."]


def _score(metrics: Mapping[str, Any], name: str) -> float | None:
    value: float | None = metrics["scores"]["all"].get(name)
    return value


def _shown(metrics: Mapping[str, Any], name: str, digits: int = 1) -> str:
    return number(name, _score(metrics, name), digits)


def _phrases(k: int) -> str:
    return "1 phrase" if k == 1 else f"{k} phrases"


def _digits(shares: Sequence[float]) -> int:
    """Digits after the point of a percentage: one, or as many more as show that a share is not 0, at most four."""
    percents = [100 * share for share in shares if abs(share) > NOISE]
    return next((digits for digits in (1, 2, 3) if all(round(percent, digits) for percent in percents)), 4)


def _points(share: float, digits: int) -> str:
    """Percentage points with their sign, which 0 does not have.

    >>> _points(0.0023, 1), _points(-0.0003, 2), _points(0.0, 1)
    ('+0.2', '-0.03', '0.0')
    """
    return f"{100 * share:+.{digits}f}" if abs(share) > NOISE else f"{0:.{digits}f}"


def _rounded(count: float) -> int:
    """Two digits are enough for advice: 1234.5 -> 1300."""
    step = 10 ** max(0, math.floor(math.log10(max(count, 1))) - 1)
    return int(math.ceil(count / step) * step)
