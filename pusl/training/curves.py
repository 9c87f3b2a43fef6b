"""The history of a run -> an SVG picture: loss and dev scores over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pusl_eval.charts import Point, line_chart, plain, standalone
from pusl_eval.files import open_atomic

CURVE_FILE = "curve.svg"
METRICS = {"B@2mu": "B@2μ", "B@mu": "B@μ", "F1@O": "F1@O"}
MOST_POINTS, MOST_DOTS = 400, 50  # of a line; of a line whose points are drawn
LONGEST_MODEL = 36  # characters in the title


def curve_points(log: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The trainer's log -> points {step, epoch, loss, learning_rate} and {step, epoch, F1@O, ...}."""
    points = []
    for entry in log:
        kept = {
            name.removeprefix("eval_"): float(value)
            for name, value in entry.items()
            if (name in ("step", "epoch", "loss", "learning_rate", "grad_norm") or name.startswith("eval_"))
            and math.isfinite(value)
        }
        if "loss" in kept or "B@2mu" in kept:
            points.append(kept)
    return points


def draw_curve(path: str | Path, record: Mapping[str, Any]) -> None:
    """Writes the curve of one run (the content of its run.json): training loss, and below it the dev scores if any."""
    config, history = record["config"], record["history"]
    loss = thinned(_line(history, "loss"))
    dots = len(loss) <= MOST_DOTS
    panels: list[tuple[str, list[str]]] = [
        (
            line_chart(
                {"loss": loss},
                "step",
                "training loss per token",
                y_format=plain,
                dots=dots,
                y_max=None if loss else 1.0,
            ),
            [],
        )
    ]
    scores = {label: thinned(_line(history, metric)) for metric, label in METRICS.items()}
    scores = {label: line for label, line in scores.items() if line}
    if scores:
        dots = max(map(len, scores.values())) <= MOST_DOTS
        panels.append((line_chart(scores, "step", "dev scores", dots=dots), list(scores)))
    model = str(config["model"])
    model = model if len(model) <= LONGEST_MODEL else "…" + model[1 - LONGEST_MODEL :]
    with open_atomic(path, force=True) as stream:
        stream.write(standalone(*panels, title=f"{config['paradigm']} · {model}"))


def thinned(points: list[Point]) -> list[Point]:
    """At most MOST_POINTS points: each the mean of as many neighbors.

    >>> thinned([(float(step), 2.0 * step) for step in range(1, 801)])[:2]
    [(1.5, 3.0), (3.5, 7.0)]
    """
    size = math.ceil(len(points) / MOST_POINTS)
    if size <= 1:
        return points
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y or 0.0 for _, y in group) / len(group)) for group in groups]


def _line(history: list[dict[str, float]], name: str) -> list[Point]:
    return [(point["step"], point[name]) for point in history if name in point]
