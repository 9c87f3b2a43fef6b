"""Tallies of example files -> one SVG picture: how skewed the labels are, how many each item has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pusl.data.stats import FileTally
from pusl_eval.charts import bar_chart, log_log_chart, standalone
from pusl_eval.files import InputError, open_atomic

MOST_POINTS, MOST_BARS = 400, 60


def check_plot_path(path: str | Path) -> None:
    """Refuses a name that does not end in .svg."""
    if Path(path).suffix.lower() != ".svg":
        raise InputError(f"--plot {path}: expected a file name that ends in .svg")


def plot(tallies: Sequence[FileTally], path: str | Path, force: bool = False) -> None:
    """Label frequency by rank, and below it the histogram of keyphrases per item, for every file."""
    check_plot_path(path)
    ranks = log_log_chart({one.name: _ranks(one) for one in tallies}, "label rank", "items with the label")
    picture = standalone((ranks, [_described(one) for one in tallies]), (_histogram(tallies), []))
    with open_atomic(path, force) as stream:
        stream.write(picture)


def _per_item(one: FileTally) -> NDArray[np.int64]:
    return np.frombuffer(one.per_item, dtype=np.int64)


def _described(one: FileTally) -> str:
    per_item = _per_item(one)
    cv = per_item.std() / per_item.mean() if per_item.any() else 0.0
    return f"{one.name} (μ = {per_item.mean():.1f}, CV = {cv:.2f})"


def _ranks(one: FileTally) -> list[tuple[float, float | None]]:
    """Rank and frequency; of a million labels a few hundred points, as far apart on the logarithmic axis."""
    frequencies = np.sort(np.fromiter(one.labels.values(), np.int64, len(one.labels)))[::-1]
    if not len(frequencies):
        return []
    kept = np.unique(np.geomspace(1, len(frequencies), MOST_POINTS).astype(int))
    return [(float(rank), float(frequencies[rank - 1])) for rank in kept]


def _histogram(tallies: Sequence[FileTally]) -> str:
    """Shares of the items. All but the last two percent of them fit, the rest share the last bar."""
    last = max(5, int(max(np.quantile(_per_item(one), 0.98) for one in tallies)))
    first = min(1, *(int(_per_item(one).min()) for one in tallies))
    width = 1 + (last - first) // MOST_BARS  # numbers that share a bar
    starts = list(range(first, last, width))
    names = [str(start) if width == 1 else f"{start}–{min(start + width, last) - 1}" for start in starts]
    shares: dict[str, list[float | None]] = {}
    for one in tallies:
        counts, _ = np.histogram(np.minimum(_per_item(one), last), bins=[*starts, last, last + 1])
        shares[one.name] = list(counts / counts.sum())
    # Where narrow ends and diverse begins, by the first file's μ.
    edge = (2 * float(_per_item(tallies[0]).mean()) - first - (width - 1) / 2) / width
    marks = {"diverse: > 2μ": edge} if edge >= 0 else {}
    return bar_chart(
        [*names, f"{last}+"], shares, "share of items", x_label="keyphrases per item", marks=marks
    )  # fmt: skip
