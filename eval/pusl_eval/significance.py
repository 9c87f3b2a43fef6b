"""Per-item values -> bootstrap intervals, and differences that are or are not chance.

Items are drawn with replacement; the same draw serves every metric. Up to `EXACT_ITEMS` items the
draws are one matrix of weights times the values. Beyond that, each metric's values are first sorted
into at most `CELLS` cells of equal width, each cell stands for the mean of its values, and the cells
are drawn: the mean is kept exactly, the variance to a few parts in 10^5, at any number of items.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
EXACT_ITEMS = 20_000
CELLS = 128
LEVEL = 0.95
Interval = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """System A minus system B on one metric, item by item."""

    difference: float | None
    interval: Interval | None
    p: float | None  # two-sided


def mean(values: Floats) -> float | None:
    """The mean of the items that count (not NaN), None when there is none."""
    total = float(values.sum())
    if math.isnan(total):
        counted = values[~np.isnan(values)]
        return float(counted.mean()) if counted.size else None
    return total / values.size if values.size else None


def intervals(
    values: Mapping[str, Floats], samples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float] | None]:
    """The 95% percentile interval of each mean; None where no item counts.

    >>> intervals({"B@1": np.array([0.0, 1.0] * 50)}, seed=1)
    {'B@1': (0.4, 0.59)}
    """
    return {name: _interval(drawn) for name, drawn in bootstrap(values, samples, seed).items()}


def paired(
    left: Mapping[str, Floats], right: Mapping[str, Floats], samples: int = 1000, seed: int = 0
) -> dict[str, Difference]:
    """Paired bootstrap of left - right for every metric that both have, over the same items.

    p is twice the smaller share of drawn differences on either side of 0 (0 counts on both), with one
    added above and below, so that it is never 0.
    """
    gaps = {name: values - right[name] for name, values in left.items() if name in right}
    found = {}
    for name, drawn in bootstrap(gaps, samples, seed).items():
        counted = drawn[~np.isnan(drawn)]
        p = None
        if counted.size:
            tail = min(int(np.sum(counted <= 0)), int(np.sum(counted >= 0)))
            p = min(1.0, 2 * (tail + 1) / (counted.size + 1))
        found[name] = Difference(mean(gaps[name]), _interval(drawn), p)
    return found


def bootstrap(values: Mapping[str, Floats], samples: int, seed: int) -> dict[str, Floats]:
    """For each metric the means of `samples` draws of the items (NaN where a draw has no item that counts)."""
    if not values or not samples:
        return {name: np.zeros(0) for name in values}
    items = len(next(iter(values.values())))
    if items > EXACT_ITEMS:
        return {name: _draw_cells(array[~np.isnan(array)], samples, seed) for name, array in values.items()}
    table = _in_order(np.stack(list(values.values()), axis=1))  # (items, metrics)
    counted = ~np.isnan(table)
    table = np.where(counted, table, 0.0)
    partial = np.flatnonzero(~counted.all(axis=0))  # metrics that leave out some items
    rng = np.random.default_rng(seed)
    means = np.empty((samples, len(values)))
    step = max(1, 4_000_000 // max(1, items))
    for low in range(0, samples, step):
        high = min(low + step, samples)
        weights = _weights(rng, high - low, items)  # (draws, items)
        sums, sizes = weights @ table, np.full((high - low, len(values)), float(items))
        sizes[:, partial] = weights @ counted[:, partial].astype(np.float64)
        means[low:high] = np.divide(sums, sizes, out=np.full(sums.shape, np.nan), where=sizes > 0)
    return dict(zip(values, means.T, strict=True))


def _in_order(table: Floats) -> Floats:
    """The items sorted by their values, so that the draws do not depend on the order of the file."""
    if not table.size:
        return table
    keys = np.ascontiguousarray(table).view(np.dtype((np.void, table.itemsize * table.shape[1])))
    return np.asarray(table[np.argsort(keys.ravel(), kind="stable")], np.float64)


def _weights(rng: np.random.Generator, draws: int, items: int) -> Floats:
    """(draws, items): how often each item was drawn."""
    picks = rng.integers(0, items, (draws, items)) if items else np.zeros((draws, 0), np.int64)
    picks += np.arange(draws)[:, None] * items
    return np.bincount(picks.ravel(), minlength=draws * items).reshape(draws, items).astype(np.float64)


def _draw_cells(values: Floats, samples: int, seed: int) -> Floats:
    if not values.size:
        return np.full(samples, np.nan)
    low, high = float(values.min()), float(values.max())
    if low == high:
        return np.full(samples, low)
    cell = np.minimum(((values - low) * (CELLS / (high - low))).astype(np.int32), CELLS - 1)
    counts = np.bincount(cell, minlength=CELLS)
    sums = np.bincount(cell, values, CELLS)
    used = counts > 0
    drawn = np.random.default_rng(seed).multinomial(values.size, counts[used] / values.size, samples)
    return np.asarray(drawn @ (sums[used] / counts[used]) / values.size, np.float64)


def _interval(drawn: Floats) -> Interval | None:
    counted = drawn[~np.isnan(drawn)]
    if not counted.size:
        return None
    low, high = np.quantile(counted, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
