"""The form of metrics.json.

One system gives a `Metrics`; several give a `Comparison` with one `Metrics` per system inside. Scores
are fractions (K@k is a count, Entropy@k is in nats), `null` where there is nothing to average over or
where the file that the metric needs was not given.
"""

from __future__ import annotations

from typing import Any, TypedDict

Scores = dict[str, float | None]  # "F1@O", "B@3", "B@3_max", "Cov@3 (1000 items)", ...: see `pusl_eval.declarations`
Intervals = dict[str, list[float] | None]  # [low, high] for every mean over items


class ItemCounts(TypedDict):
    """How many items the numbers are based on."""

    n_items: int  # references in the file
    n_without_references: int  # of these, items whose keyphrases are all blank: left out where Y is needed
    n_missing_predictions: int  # of these, items that the predictions lack: counted as empty predictions


class GroupScores(TypedDict):
    """The three fixed groups. Without --train there is no μ, and every narrow and diverse score is null."""

    all: Scores
    narrow: Scores  # 1 ≤ |Y| ≤ 2μ
    diverse: Scores  # |Y| > 2μ


class GroupIntervals(TypedDict):
    """95% bootstrap intervals of every per-item mean."""

    all: Intervals
    narrow: Intervals
    diverse: Intervals
    groups: dict[str, Intervals]  # by value of the `group` field


class Provenance(TypedDict):
    """Where the numbers come from."""

    files: dict[str, dict[str, Any]]  # per role: file, bytes, sha256
    data: dict[str, dict[str, Any]]  # references and train: n_items, mu, sigma, cv, quadrants (with counts)
    group_sizes: dict[str, int]  # items in narrow and diverse, and under "group:VALUE"
    given: list[str]  # what metrics may need and was there: train, propensities, universe, weights, texts, ...
    n_labels: int  # size of the label space of "all"
    normalization: str
    propensity: dict[str, Any]  # model, parameters (given or fitted), prior
    alpha: float  # of αCov@k
    beta: float  # of MacroF_β@k
    bootstrap: int  # draws
    seed: int
    versions: dict[str, str]
    missing_predictions: int  # items with references that the predictions lack
    short_lists: dict[str, int]  # cut -> items with fewer predictions than the cut that are not marked exhausted
    warnings: list[str]


class Metrics(TypedDict):
    """One system."""

    counts: ItemCounts
    k: list[int]
    mu: float | None  # keyphrases per training item; null without --train
    scores: GroupScores
    groups: dict[str, Scores]  # by value of the `group` field
    bins: dict[str, dict[str, Any]]  # training frequency -> n_labels, MacroF1@k, and the same under narrow, diverse
    intervals: GroupIntervals
    provenance: Provenance


class Gap(TypedDict):
    """One metric of one pair of systems, a - b."""

    difference: float | None
    interval: list[float] | None
    p: float | None  # two-sided, paired bootstrap


class Pair(TypedDict):
    """Two systems compared item by item."""

    a: str
    b: str
    scores: dict[str, dict[str, Gap]]  # "all", "narrow", "diverse" -> metric -> gap


class Comparison(TypedDict):
    """Two or more systems on the same references."""

    k: list[int]
    mu: float | None
    systems: dict[str, Metrics]
    comparisons: list[Pair]
