"""Metrics by system -> one flat row per system, group and metric: for a DataFrame, a table of a database, a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict


class ScoreRow(TypedDict):
    """One number of metrics.json."""

    system: str
    group: str  # "all", "narrow", "diverse", "group:VALUE", "bin:1-9"
    metric: str
    value: float | None
    low: float | None  # of the 95% interval, where the metric has one
    high: float | None


def score_rows(systems: Mapping[str, Mapping[str, Any]]) -> list[ScoreRow]:
    """Every score of every system, as `pusl_eval.schema.Metrics` holds them.

    >>> from pusl_eval import evaluate
    >>> metrics = evaluate({"a": ["hat"]}, {"a": ["hat"]}, k=[1])
    >>> next(row for row in score_rows({"hats": metrics}) if row["metric"] == "B@1")
    {'system': 'hats', 'group': 'all', 'metric': 'B@1', 'value': 1.0, 'low': 1.0, 'high': 1.0}
    """
    rows: list[ScoreRow] = []
    for system, metrics in systems.items():
        for group, scores, intervals in _groups(metrics):
            for metric, value in scores.items():
                low, high = intervals.get(metric) or (None, None)
                rows.append(
                    {"system": system, "group": group, "metric": metric, "value": value, "low": low, "high": high}
                )
    return rows


def _groups(metrics: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """A group's name, its scores and their intervals."""
    intervals = metrics["intervals"]
    for name, scores in metrics["scores"].items():
        yield name, scores, intervals[name]
    for value, scores in metrics["groups"].items():
        yield f"group:{value}", scores, intervals["groups"][value]
    for name, scores in metrics["bins"].items():
        yield f"bin:{name}", {metric: x for metric, x in scores.items() if not isinstance(x, Mapping)}, {}
