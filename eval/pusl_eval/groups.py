"""One system's tallies -> its scores for all items, for narrow and diverse ones, and for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pusl_eval import coverage
from pusl_eval.labels import LabelCounts, bin_names, bin_of, count_labels, macro, pooled_recall
from pusl_eval.matching import Flags, Ints, Ragged
from pusl_eval.settings import Settings
from pusl_eval.significance import mean
from pusl_eval.tallies import Events, Tally, values

Floats = NDArray[np.float64]
AT_O = ("F1", "P", "R")
AT_K = (
    "B", "B_max", "K", "P", "R", "F1", "nDCG", "Success", "Abandonment", "PSP", "PSnDCG", "weighted P", "Diversity",
)  # fmt: skip
_NEEDS = {"PSP": "inverse", "PSnDCG": "inverse", "weighted P": "weight", "Diversity": "overlap"}


@dataclass(frozen=True)
class Subset:
    """Some of the items."""

    name: str
    kind: str  # "all", "fixed" (narrow, diverse) or "group"
    chosen: Flags | None  # None: every item
    size: int | None  # None: it cannot be known who belongs to it (no μ), and nobody is chosen

    @property
    def label(self) -> str:
        """A name that no other subset has."""
        return f"group:{self.name}" if self.kind == "group" else self.name

    def cut(self, per_item: Mapping[str, Floats]) -> dict[str, Floats]:
        """The chosen items' values."""
        if self.chosen is None:
            return dict(per_item)
        places = np.flatnonzero(self.chosen)
        return {name: array[places] for name, array in per_item.items()}


@dataclass(frozen=True)
class System:
    """One system's predictions, counted."""

    ks: list[int]
    settings: Settings
    references: Ragged
    tallies: dict[int, Tally]
    events: list[Events]  # by rising k
    space: Ints | None  # label ids given by the user
    frequency: NDArray[np.int64] | None  # training items with the label, by id
    per_item: dict[str, Floats]
    counted: dict[str, list[LabelCounts]] = field(default_factory=dict)  # kept for the subsets that have bins

    def label_counts(self, subset: Subset) -> list[LabelCounts]:
        """Label counts at each k (rising) over the subset's items."""
        if subset.label not in self.counted:
            found = count_labels(self.references, self.events, subset.chosen, self.space)
            if subset.kind == "group":
                return found
            self.counted[subset.label] = found
        return self.counted[subset.label]


def subsets_of(sizes: NDArray[np.int64], mu: float | None, groups: Sequence[str | None] | None) -> list[Subset]:
    """all, narrow (1 ≤ |Y| ≤ 2μ), diverse (|Y| > 2μ), then each group value in alphabetical order."""
    found = [Subset("all", "all", None, len(sizes))]
    if mu is None:
        nobody = np.zeros(len(sizes), np.bool_)
        found += [Subset("narrow", "fixed", nobody, None), Subset("diverse", "fixed", nobody, None)]
    else:
        narrow, diverse = (sizes >= 1) & (sizes <= 2 * mu), sizes > 2 * mu
        found += [Subset("narrow", "fixed", narrow, int(narrow.sum()))]
        found += [Subset("diverse", "fixed", diverse, int(diverse.sum()))]
    if groups is not None:
        names = sorted({group for group in groups if group is not None})
        number = {name: position for position, name in enumerate(names)}
        codes = np.array([-1 if group is None else number[group] for group in groups], np.int32)
        for position, name in enumerate(names):
            chosen = codes == position
            found.append(Subset(name, "group", chosen, int(chosen.sum())))
    return found


def per_item_values(ks: Sequence[int], tallies: Mapping[int, Tally]) -> dict[str, Floats]:
    """Metric name -> one value per item, for every metric that is a mean over items."""
    found = {f"{name}@O": values(name, tallies[0]) for name in AT_O}
    for k in ks:
        for name in AT_K:
            if name not in _NEEDS or getattr(tallies[k], _NEEDS[name]) is not None:
                found[full_name(name, k)] = values(name, tallies[k])
    return found


def full_name(name: str, k: int) -> str:
    """`B` at 3 -> `B@3`; `B_max` -> `B@3_max`."""
    base, _, suffix = name.partition("_")
    return f"{base}@{k}" + (f"_{suffix}" if suffix else "")


def score_subset(system: System, subset: Subset) -> dict[str, float | None]:
    """Every metric for one subset; a metric with nothing to average over is None."""
    chosen = subset.chosen
    means = {name: mean(array) for name, array in subset.cut(system.per_item).items()}
    scores: dict[str, float | None] = {f"{name}@O": means[f"{name}@O"] for name in AT_O}
    sizes = system.references.lengths if chosen is None else system.references.lengths[chosen]
    labels = dict(zip(sorted(system.ks), system.label_counts(subset), strict=True))
    for k in system.ks:
        for name in AT_K:
            scores[full_name(name, k)] = means.get(full_name(name, k))
            if name == "PSP":
                scores[f"PSP@{k}_norm"] = _normalized(system.tallies[k], chosen)
        scores |= _label_scores(system, labels[k], k, int(np.sum(sizes > 0)))
        for name, part in (("Uni", "in_universe"), ("New", "new")):
            scores[f"{name}@{k}"] = _pooled_share(system.tallies[k], part, chosen)
    return scores


def score_bins(system: System, subsets: Sequence[Subset]) -> dict[str, dict[str, Any]]:
    """Training frequency -> number of labels and MacroF1@k, for all and, inside, for narrow and diverse."""
    if system.frequency is None:
        return {}
    bins: dict[str, dict[str, Any]] = {name: {} for name in bin_names(system.settings.bins)}
    for subset in subsets:
        if subset.kind == "group":
            continue
        counted = system.label_counts(subset)
        member = bin_of(system.frequency[counted[0].ids], system.settings.bins)
        f1 = {k: counts.f1 for k, counts in zip(sorted(system.ks), counted, strict=True)}
        for number, name in enumerate(bins):
            inside = member == number
            row: dict[str, Any] = {"n_labels": int(inside.sum())}
            row |= {f"MacroF1@{k}": macro(f1[k][inside]) for k in system.ks}
            if subset.kind == "all":
                bins[name] |= row
            else:
                bins[name][subset.name] = row
    return bins


def _label_scores(system: System, counts: LabelCounts, k: int, n: int) -> dict[str, float | None]:
    """The table "over labels"; n is the number of items with references."""
    nothing = n == 0  # a label space given by the user has labels even where no item is
    scores: dict[str, float | None] = {
        f"MacroP@{k}": macro(counts.precision),
        f"MacroR@{k}": macro(counts.recall),
        f"MacroF1@{k}": macro(counts.f1),
        f"Cov@{k}": coverage.coverage(counts.tp),
        **{
            f"Cov@{k} ({drawn} items)": coverage.expected_coverage(counts.tp, n, drawn)
            for drawn in system.settings.coverage_items
        },
        f"αCov@{k}": coverage.alpha_coverage(counts.tp, counts.positive, system.settings.alpha),
        f"Entropy@{k}": coverage.entropy(counts.tp),
        f"R_seen@{k}": None,
        f"R_unseen@{k}": None,
    }
    if system.frequency is not None:
        seen = system.frequency[counts.ids] > 0
        scores[f"R_seen@{k}"] = pooled_recall(counts, seen)
        scores[f"R_unseen@{k}"] = pooled_recall(counts, ~seen)
    return dict.fromkeys(scores) if nothing else scores


def _normalized(tally: Tally, chosen: Flags | None) -> float | None:
    """Σ PSP / Σ best reachable PSP."""
    if tally.inverse is None or tally.best_inverse is None:
        return None
    part = slice(None) if chosen is None else chosen
    best = float(tally.best_inverse[part].sum())
    return float(tally.inverse[part].sum()) / best if best else None


def _pooled_share(tally: Tally, part: str, chosen: Flags | None) -> float | None:
    """Σ part / Σ |Ŷ:k| over the chosen items."""
    array = getattr(tally, part)
    if array is None:
        return None
    taken = slice(None) if chosen is None else chosen
    total = int(tally.unique[taken].sum())
    return float(array[taken].sum()) / total if total else None
