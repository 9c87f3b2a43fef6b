"""One system's tallies -> its scores for all items, for narrow and diverse ones, and for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pusl_eval.declarations import SECTIONS, Cut, ItemMetric, LabelMetric, Metric, PooledMetric
from pusl_eval.labels import LabelCounts, LabelTable, bin_names, bin_of, count_labels, macro
from pusl_eval.matching import Flags, Ints, Ragged
from pusl_eval.metrics import REGISTRY
from pusl_eval.settings import Settings
from pusl_eval.significance import mean
from pusl_eval.tallies import Events, Tally, tally, tally_all

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Subset:
    """Some of the items."""

    name: str
    kind: str  # "all", "fixed" (narrow, diverse) or "group"
    chosen: Flags | None  # None: every item
    size: int | None  # None: unknown without μ; no item is chosen

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
    predictions: Ragged
    kinds: dict[str, tuple[Ragged, Ragged]]  # present, absent -> references and predictions of that kind
    given: frozenset[str]  # what is there beside references and predictions: keys of declarations.NEEDS
    tallies: dict[tuple[str, Cut], Tally]  # by kind and cut; filled when asked for
    events: list[Events]  # by rising k
    space: Ints | None  # label ids given by the user
    frequency: NDArray[np.int64] | None  # training items with the label, by id
    counted: dict[str, list[LabelCounts]] = field(default_factory=dict)  # kept for the subsets that have bins

    def has(self, metric: Metric[Any]) -> bool:
        """Whether what the metric needs was given."""
        return metric.needs is None or metric.needs in self.given

    def tally(self, kind: str, cut: Cut) -> Tally:
        """The counts of one kind of keyphrases (all, present, absent) at one cut (a number, O or M)."""
        if (kind, cut) not in self.tallies:
            pair = self.kinds[kind] if kind != "all" else (self.references, self.predictions)
            if cut == "M":
                self.tallies[kind, cut] = tally_all(*pair)
            else:
                found, _ = tally(*pair, [0, *self.ks])
                self.tallies.update({(kind, k or "O"): one for k, one in found.items()})
        return self.tallies[kind, cut]

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
        none = np.zeros(len(sizes), np.bool_)
        found += [Subset("narrow", "fixed", none, None), Subset("diverse", "fixed", none, None)]
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


def item_values(system: System) -> dict[str, Floats]:
    """Metric name -> one value per item, for every metric that is a mean over items.

    The sections follow each other, so that a further metric does not change the bootstrap draws of the others.
    """
    found: dict[str, Floats] = {}
    for section in SECTIONS:
        declared = [metric for metric in REGISTRY if metric.section == section and isinstance(metric, ItemMetric)]
        for metric in sorted(declared, key=lambda metric: not metric.brief):  # at O: F1 first
            for cut in ("O", "M"):
                if (name := metric.full_name(cut)) and system.has(metric):
                    found[name] = metric.values(system.tally(metric.kind, cut))
        for k in system.ks:
            for metric in declared:
                if (name := metric.full_name(k)) and system.has(metric):
                    found[name] = metric.values(system.tally(metric.kind, k))
    return found


def score_subset(system: System, subset: Subset, per_item: Mapping[str, Floats]) -> dict[str, float | None]:
    """Every metric for one subset; a metric with nothing to average over is None."""
    means = {name: mean(array) for name, array in subset.cut(per_item).items()}
    lengths = system.references.lengths
    filled = int(np.count_nonzero(lengths if subset.chosen is None else lengths[subset.chosen]))
    counted = dict(zip(sorted(system.ks), system.label_counts(subset), strict=True))
    scores: dict[str, float | None] = {}
    cuts: list[Cut] = ["O", "M", *system.ks]
    for cut in cuts:
        for metric in REGISTRY if isinstance(cut, int) else sorted(REGISTRY, key=lambda metric: not metric.brief):
            if isinstance(metric, LabelMetric) and isinstance(cut, int):
                scores |= _label_scores(system, metric, counted[cut], cut, filled)
            elif (name := metric.full_name(cut)) is None:
                continue
            elif isinstance(metric, ItemMetric):
                scores[name] = means.get(name)
            elif isinstance(metric, PooledMetric):
                found = system.tally(metric.kind, cut) if system.has(metric) else None
                scores[name] = None if found is None else metric.pooled(found, subset.chosen)
    return scores


def _label_scores(
    system: System, metric: LabelMetric, counts: LabelCounts, k: int, items: int
) -> dict[str, float | None]:
    seen = None if system.frequency is None else system.frequency[counts.ids] > 0
    scores: dict[str, float | None] = {}
    for drawn in system.settings.coverage_items if metric.drawn else (0,):
        name = metric.full_name(k, drawn)
        if name is not None:
            table = LabelTable(counts, items, seen, system.settings.alpha, system.settings.beta, drawn)
            # A label space given by the user has labels even where no item has references.
            scores[name] = metric.compute(table) if items and system.has(metric) else None
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
