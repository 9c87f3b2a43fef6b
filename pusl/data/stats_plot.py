"""Tallies of example files -> one picture: how skewed the labels are, how many each item has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pusl.data.stats import FileTally
from pusl_eval.files import InputError, open_atomic

COLORS = ("#3366a8", "#d1702b", "#3b8f5a", "#a8467f", "#7a6a53", "#6757b0")
INK, GRID = "#2b2b2b", "#e4e4e4"


def check_plot_path(path: str | Path) -> str:
    """The picture's format by its ending."""
    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in ("png", "svg"):
        raise InputError(f"--plot {path}: expected a file name that ends in .png or .svg")
    return kind


def plot(tallies: Sequence[FileTally], path: str | Path, force: bool = False) -> None:
    """Label frequency by rank, and the histogram of keyphrases per item, for every file."""
    kind = check_plot_path(path)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

    style: Any = {
        "font.size": 10, "axes.edgecolor": "#9a9a9a", "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK,
        "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": GRID, "axes.axisbelow": True, "legend.frameon": False, "svg.hashsalt": "pusl",
    }  # fmt: skip
    with pyplot.rc_context(style):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained")
        last = _last_bar(tallies)
        for number, one in enumerate(tallies):
            color = COLORS[number % len(COLORS)]
            _rank_plot(left, one, color)
            _histogram(right, one, color, number, len(tallies), last)
        left.set(xlabel="label rank", ylabel="items with the label")
        if any(one.labels for one in tallies):
            left.set(xscale="log", yscale="log")
        for axis in (left.xaxis, left.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axis.set_minor_formatter(NullFormatter())
        left.set_title("Label frequency", loc="left", fontsize=11, fontweight="bold")
        right.set(xlabel="keyphrases per item", ylabel="share of items")
        right.set_title("Keyphrases per item", loc="left", fontsize=11, fontweight="bold")
        right.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        right.grid(axis="x", visible=False)
        _ticks(right, min(min(one.per_item) for one in tallies), last)
        _boundary(right, tallies[0])
        right.legend(loc="upper right", frameon=True, framealpha=1.0, edgecolor="none", borderpad=0.2)
        with open_atomic(path, force, "wb") as stream:
            figure.savefig(stream, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        pyplot.close(figure)


def _rank_plot(axes: Any, one: FileTally, color: str) -> None:
    frequencies = np.sort(np.fromiter(one.labels.values(), np.int64, len(one.labels)))[::-1]
    ranks = np.arange(1, len(frequencies) + 1)
    # A million ranks make a huge SVG: keep the steps and a few hundred points in between.
    keep = np.unique(np.geomspace(1, max(len(ranks), 1), 400).astype(int)) - 1 if len(ranks) else ranks
    axes.plot(ranks[keep], frequencies[keep], color=color, linewidth=1.8, label=one.name)


def _last_bar(tallies: Sequence[FileTally]) -> int:
    """Where the histogram ends: all but the last two percent of the items fit, the rest share one bar."""
    ends = [np.quantile(np.frombuffer(one.per_item, dtype=np.int64), 0.98) for one in tallies]
    return max(5, int(max(ends)))


def _histogram(axes: Any, one: FileTally, color: str, number: int, files: int, last: int) -> None:
    per_item = np.frombuffer(one.per_item, dtype=np.int64)
    shares = np.bincount(np.minimum(per_item, last), minlength=last + 1) / len(per_item)
    mu, cv = per_item.mean(), per_item.std() / per_item.mean() if per_item.any() else 0.0
    width = 0.84 / files
    places = np.arange(last + 1) - 0.42 + width * (number + 0.5)
    label = f"{one.name}  (μ = {mu:.1f}, CV = {cv:.2f})"
    axes.bar(places, shares, width=width, color=color, label=label)


def _ticks(axes: Any, first: int, last: int) -> None:
    step = max(1, round(last / 12))
    ticks = [tick for tick in range(min(first, 1), last, step) if last - tick > 0.7 * step]
    axes.set_xticks([*ticks, last], [*map(str, ticks), f"{last}+"])
    axes.set_xlim(min(first, 1) - 0.6, last + 0.6)


def _boundary(axes: Any, first: FileTally) -> None:
    """Where narrow ends and diverse begins, by the first file's μ."""
    edge = 2 * float(np.frombuffer(first.per_item, dtype=np.int64).mean())
    axes.axvline(edge, color="#6a6a6a", linestyle=(0, (3, 3)), linewidth=1.2, zorder=0.5)
    axes.annotate(
        "diverse: > 2μ", (edge, 0.5), xycoords=("data", "axes fraction"), xytext=(5, 0), textcoords="offset points",
        fontsize=9, color="#6a6a6a",
    )  # fmt: skip
