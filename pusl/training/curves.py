"""The history of a run -> a picture: loss and dev scores over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pusl_eval.files import open_atomic

INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
SERIES = {"B@2mu": ("B@2μ", "#0b7285"), "B@mu": ("B@μ", "#5c940d"), "F1@O": ("F1@O", "#c2410c")}


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
    """Writes the curve of one run (the content of its run.json) as a PNG."""
    config = record["config"]
    draw_curves(path, {f"{config['paradigm']} · {config['model']}": record["history"]})


def draw_curves(path: str | Path, histories: Mapping[str, list[dict[str, float]]]) -> None:
    """One or several runs side by side: training loss on the left, dev scores on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    styles = ("-", "--", ":", "-.")
    several = len(histories) > 1
    for number, (name, points) in enumerate(histories.items()):
        style = styles[number % len(styles)]
        losses = [(point["step"], point["loss"]) for point in points if "loss" in point]
        if losses:
            left.plot(*zip(*losses, strict=True), style, color=INK, linewidth=1.4, label=name)
        for metric, (label, color) in SERIES.items():
            values = [(point["step"], point[metric]) for point in points if metric in point]
            if values:
                legend = f"{label}, {name}" if several else label
                right.plot(*zip(*values, strict=True), style, color=color, marker="o", markersize=3, label=legend)
    left.set(title="training loss per token", xlabel="step", ylim=(0, None))
    right.set(title="dev scores", xlabel="step", ylim=(0, None))
    if several:
        left.legend(frameon=False, fontsize=8)
    else:
        figure.suptitle(next(iter(histories), ""), fontsize=10, color=MUTED)
    if right.lines:
        right.legend(frameon=False, fontsize=8)
    else:
        right.text(0.5, 0.5, "no dev file", ha="center", va="center", color=MUTED, transform=right.transAxes)
    for axes in (left, right):
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=MUTED, labelsize=8)
        axes.title.set(fontsize=10, color=INK)
    with open_atomic(path, force=True, mode="wb") as stream:
        figure.savefig(stream, format="png", dpi=130)
