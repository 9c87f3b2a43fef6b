"""Metrics -> two or three plain sentences: who is ahead, how sure that is, what it costs, what to do next.

`evaluate` and the report both open with them. The yardstick is B@k at the largest k asked for: it is the one
score that a system cannot raise by stopping early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from pusl_eval.declarations import shown_name
from pusl_eval.table import number

Systems = Mapping[str, Mapping[str, Any]]  # name -> metrics, as in metrics.json
Gaps = Callable[[str, str, str], Mapping[str, Any] | None]  # system, other system, metric -> paired difference
LEAST = 0.005  # half a point: a smaller loss is not worth a sentence


def verdict(systems: Systems, gaps: Gaps, k: int, complete: bool = False) -> list[str]:
    """The sentences for one system or several, at one k; `complete` says that no right label is missing."""
    ranked = sorted(systems, key=lambda name: -(_score(systems[name], f"B@{k}") or 0.0))
    if _score(systems[ranked[0]], f"B@{k}") is None:
        return ["No item has references, so nothing can be scored; fill in the keyphrases of the references."]
    if len(ranked) == 1:
        found = _alone(systems[ranked[0]], k, complete)
    else:
        found = _ahead(systems, ranked[0], ranked[1], gaps, k, complete)
    warning = short_lists(systems, k)
    return [*found[:-1], warning] if warning else found


def short_lists(systems: Systems, k: int) -> str:
    """What to do about lists that hold fewer phrases than asked for; empty if there are none."""
    short = {name: metrics["provenance"]["short_lists"].get(str(k), 0) for name, metrics in systems.items()}
    listed = [f"{count:,} of {systems[name]['counts']['n_items']:,} ({name})" for name, count in short.items() if count]
    if not listed:
        return ""
    if len(systems) == 1:
        listed = [listed[0].rpartition(" (")[0]]
    return (
        f"First generate at least {k} phrases per item: {' and '.join(listed)} prediction lists are shorter and not "
        f"marked exhausted, so B@{k} is too low."
    )


def _alone(metrics: Mapping[str, Any], k: int, complete: bool) -> list[str]:
    """One system."""
    name, ceiling = f"B@{k}", _score(metrics, f"B@{k}_max") or 1.0
    value = _score(metrics, name) or 0.0
    span = metrics["intervals"]["all"].get(name)
    sure = f" (95% interval {number(name, span[0])} to {number(name, span[1])})" if span else ""
    return [
        f"{name} is {number(name, value)}{sure}: {100 * value / ceiling:.0f}% of the "
        f"{number(name, ceiling)} that the labels allow.",
        f"Of {k} phrases asked for it gives {_shown(metrics, f'K@{k}')} distinct ones; "
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
    scores = f"{name} {_shown(best, name)} against {_shown(other, name)}"
    if _score(best, name) == _score(other, name):
        return [
            f"{first} and {second} are level: {scores}.",
            *_cost(best, other, second, k),
            "Next: choose by another metric below, or score more items.",
        ]
    lead = f"{first} is ahead of {second}: {scores}, {_points(difference)} points"
    if not span:
        return [
            f"{lead}; without bootstrap draws there is no telling whether that is chance.",
            *_cost(best, other, second, k),
            "Next: run again with --bootstrap 1000.",
        ]
    lead += f" (95% interval {_points(span[0])} to {_points(span[1])})"
    if span[0] > 0:
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


def _shown(metrics: Mapping[str, Any], name: str) -> str:
    return number(name, _score(metrics, name))


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _rounded(count: float) -> int:
    """Two digits are enough for advice: 1234.5 -> 1300."""
    step = 10 ** max(0, math.floor(math.log10(max(count, 1))) - 1)
    return int(math.ceil(count / step) * step)
