"""One declaration -> a metric that `evaluate`, the table, the report, the help and docs/reference/metrics.md know.

    @per_item("B@k", formula="|Ŷ:k ∩ Y| / k", meaning="right phrases per phrase asked for")
    def budget_accuracy(t: Tally) -> Floats:
        \"\"\"An example computed by hand.\"\"\"
        return t.hits / t.k

The decorated name is the metric itself: called with lists of phrases it scores them. `@k` in a name stands
for every cut the user asks for, `@O` for the item's own number of references (at most 100), `@M` for all
predictions, `(n items)` for every number in the setting `coverage_items`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from pusl_eval.diversity import WordTable
from pusl_eval.files import InputError
from pusl_eval.labels import LabelTable, count_labels
from pusl_eval.matching import Ragged, Vocabulary
from pusl_eval.presence import Texts, kinds_of
from pusl_eval.tallies import Gains, Tally, tally, tally_all

Floats = NDArray[np.float64]
Lists = Sequence[Sequence[str]]
Formula = TypeVar("Formula", bound=Callable[..., Any])
Cut = int | str  # a number, "O" or "M"

HIGHER, LOWER, NEITHER = "higher", "lower", "neither"
# What a metric may need besides references and predictions -> the flag that gives it.
NEEDS = {
    "train": "--train", "propensities": "--train", "universe": "--universe", "weights": "--weights",
    "rank weights": "--rank-weights", "texts": "texts in the references", "judge": "pusl judge",
}  # fmt: skip
# Headings of docs/reference/metrics.md and of the help, in their order.
ITEM = "Per item, then mean over items"
LABEL = "Over labels"
FREE = "Without ground truth"
FURTHER = "Further metrics"
TEXT = "Present and absent keyphrases"
SECTIONS = (ITEM, LABEL, FREE, FURTHER, TEXT)


@dataclass(eq=False)
class Metric(Generic[Formula]):
    """Everything there is to know about one metric."""

    names: tuple[str, ...]  # "P@k", "P@O"
    formula: str  # as people read it
    meaning: str  # one plain sentence
    compute: Formula
    needs: str | None = None  # a key of NEEDS
    better: str = HIGHER
    unit: str = "percent"  # or "number": printed as it is
    shown: str = ""  # how the first name is printed, if not as it stands
    section: str = FURTHER
    brief: bool = False  # shown where there is no room for every metric
    summary: bool = False  # a column in the report's first table
    kind: str = "all"  # or "present", "absent": which keyphrases are looked at
    with_empty: bool = False  # items without references count too

    def __post_init__(self) -> None:
        if self.better not in (HIGHER, LOWER, NEITHER) or self.unit not in ("percent", "number"):
            raise ValueError(f"{self.names[0]}: better is {self.better!r}, unit is {self.unit!r}")
        if self.needs not in (None, *NEEDS) or self.section not in SECTIONS:
            raise ValueError(f"{self.names[0]}: needs {self.needs!r}, section {self.section!r}")
        wrap: Callable[..., Any] = functools.update_wrapper  # its type knows functions only
        wrap(self, self.compute)

    def full_name(self, cut: Cut, drawn: int | None = None) -> str | None:
        """The name at one cut, None where the metric is not defined: `P@k` at 3 -> `P@3`."""
        place = "@k" if isinstance(cut, int) else f"@{cut}"
        for name in self.names:
            if place in name:
                return name.replace(place, f"@{cut}").replace("(n items)", f"({drawn} items)")
        return None

    @property
    def drawn(self) -> bool:
        """Whether it is given for every number in `coverage_items`."""
        return "(n items)" in self.names[0]


class ItemMetric(Metric[Callable[[Tally], Floats]]):
    """A tally -> one value per item; the score is their mean."""

    def values(self, found: Tally) -> Floats:
        """One value per item, NaN for an item that is left out of the mean."""
        per_item = np.asarray(self.compute(found), np.float64)
        return per_item if self.with_empty else _without_empty(per_item, found)

    def __call__(
        self, references: Lists, predictions: Lists, k: int | None = None, normalization: str = "basic",
        **given: Any,
    ) -> Floats:  # fmt: skip
        """One value per item of lists of phrases, NaN where an item is left out.

        `given` are propensities, weights or rank_weights (a number, or a list, per phrase) or texts (one per
        item), as the metric needs them.
        """
        return self.values(_tally_lists(self, references, predictions, k, normalization, **given))


class PooledMetric(Metric[Callable[[Tally], tuple[NDArray[Any], NDArray[Any]]]]):
    """A tally -> two numbers per item; the score is the sum of the first over the sum of the second."""

    def pooled(self, found: Tally, chosen: NDArray[np.bool_] | None = None) -> float | None:
        """The score over the chosen items, None where the second sum is 0."""
        top, bottom = self.compute(found)
        if not self.with_empty:
            filled = found.size > 0
            chosen = filled if chosen is None else chosen & filled
        if chosen is not None and not chosen.all():
            top, bottom = top[chosen], bottom[chosen]
        total = float(bottom.sum())
        return float(top.sum()) / total if total else None

    def __call__(
        self, references: Lists, predictions: Lists, k: int | None = None, normalization: str = "basic",
        **given: Any,
    ) -> float | None:  # fmt: skip
        """The score of lists of phrases; `given` as in `ItemMetric`, or `universe` and `train` lists of phrases."""
        return self.pooled(_tally_lists(self, references, predictions, k, normalization, **given))


class LabelMetric(Metric[Callable[[LabelTable], float | None]]):
    """Events per label -> one number; the label space is that of the references."""

    def __call__(
        self, references: Lists, predictions: Lists, k: int, normalization: str = "basic",
        train: Sequence[str] | None = None, **settings: Any,
    ) -> float | None:  # fmt: skip
        """The score of lists of phrases. `train`: labels seen in training; `settings`: alpha, beta, drawn."""
        _check(references, predictions, k)
        vocabulary = Vocabulary(normalization)
        truth = vocabulary.encode(references).as_sets()
        limit = vocabulary.size
        _, events = tally(truth, vocabulary.encode(predictions), [k], label_limit=limit)
        counts = count_labels(truth, events)[0]
        seen = None if train is None else vocabulary.find(train)[counts.ids]
        items = int(np.count_nonzero(truth.lengths))
        return self.compute(LabelTable(counts, items, seen, **settings)) if items else None


@dataclass
class Registry:
    """All declared metrics, in the order of their declaration."""

    metrics: dict[str, Metric[Any]] = field(default_factory=dict)  # by every name

    def add(self, metric: Metric[Any]) -> None:
        """Registers a metric; a name that is taken is an error."""
        for name in metric.names:
            if name in self.metrics:
                raise ValueError(f"two metrics are called {name}")
        self.metrics |= dict.fromkeys(metric.names, metric)

    def remove(self, metric: Metric[Any]) -> None:
        """Forgets a metric (for tests)."""
        for name in metric.names:
            del self.metrics[name]

    def __iter__(self) -> Iterator[Metric[Any]]:
        """Every metric once, section by section."""
        unique = list(dict.fromkeys(self.metrics.values()))
        return iter(sorted(unique, key=lambda metric: SECTIONS.index(metric.section)))

    def of(self, full_name: str) -> Metric[Any]:
        """The metric of a full name: `B@3_max` -> `B@k_max`."""
        return self.metrics[template(full_name)]


REGISTRY = Registry()


def template(full_name: str) -> str:
    """The declared name behind a full one.

    >>> template("B@3_max"), template("Cov@10 (1000 items)"), template("F1@O")
    ('B@k_max', 'Cov@k (n items)', 'F1@O')
    """
    return re.sub(r"\(\d+ items\)", "(n items)", re.sub(r"@\d+", "@k", full_name))


def shown_name(full_name: str) -> str:
    """A metric's name as it is printed: `K@3` -> `#K@3`."""
    metric = REGISTRY.metrics.get(template(full_name))
    if metric is None or not metric.shown:
        return full_name
    return metric.shown + full_name


def per_item(*names: str, **about: Any) -> Callable[[Callable[[Tally], Floats]], ItemMetric]:
    """Declares a metric that has a value per item."""
    return functools.partial(_declare, ItemMetric, names, about)


def pooled(*names: str, **about: Any) -> Callable[[Callable[[Tally], tuple[Any, Any]]], PooledMetric]:
    """Declares a metric that divides two sums over items."""
    return functools.partial(_declare, PooledMetric, names, about)


def over_labels(*names: str, **about: Any) -> Callable[[Callable[[LabelTable], float | None]], LabelMetric]:
    """Declares a metric over labels."""
    return functools.partial(_declare, LabelMetric, names, {"section": LABEL, **about})


def by_judge(name: str, **about: Any) -> Metric[Any]:
    """Declares a metric that `pusl judge` gives and `evaluate` does not."""
    return _declare(Metric, (name,), {"needs": "judge", "section": FREE, **about}, by_judge)


AnyMetric = TypeVar("AnyMetric", bound=Metric[Any])


def _declare(kind: type[AnyMetric], names: tuple[str, ...], about: Mapping[str, Any], formula: Any) -> AnyMetric:
    metric = kind(names=names, compute=formula, **about)
    REGISTRY.add(metric)
    return metric


def _without_empty(per_item: Floats, found: Tally) -> Floats:
    if not found.size.all():
        per_item[found.size == 0] = np.nan
    return per_item


def _tally_lists(
    metric: Metric[Any], references: Lists, predictions: Lists, k: int | None, normalization: str,
    propensities: Mapping[str, float] | None = None, weights: Mapping[str, float] | None = None,
    rank_weights: Mapping[str, Sequence[float]] | None = None, texts: Sequence[str] | None = None,
    universe: Sequence[str] | None = None, train: Sequence[str] | None = None,
) -> Tally:  # fmt: skip
    """The tally that one metric needs, from lists of phrases."""
    _check(references, predictions, k)
    if k is None and metric.full_name("O") is None and metric.full_name("M") is None:
        raise InputError(f"{metric.names[0]} needs k")
    given = {"propensities": propensities, "weights": weights, "rank weights": rank_weights, "texts": texts}
    given |= {"universe": universe, "train": train}
    if metric.needs and given[metric.needs] is None:
        raise InputError(f"{metric.names[0]} needs {metric.needs.replace(' ', '_')}=...")
    vocabulary = Vocabulary(normalization)
    truth = vocabulary.encode(references).as_sets()
    rows = vocabulary.encode(predictions)
    if texts is not None and metric.kind != "all":
        truth, rows = _of_kind(metric.kind, truth, rows, texts, vocabulary)
    if k is None and metric.full_name("O") is None:
        return tally_all(truth, rows)
    gains = Gains(
        inverse_propensity=_by_id(vocabulary, propensities, 1.0, lambda p: 1 / p),
        weight=_by_id(vocabulary, weights, 0.0, float),
        rank_weight=_matrix_by_id(vocabulary, rank_weights),
        in_universe=None if universe is None else vocabulary.find(universe),
        in_training=None if train is None else vocabulary.find(train),
    )
    words = WordTable(vocabulary.phrases()) if "Diversity@k" in metric.names else None
    return tally(truth, rows, [k or 0], gains, words, vocabulary.size)[0][k or 0]


def _of_kind(
    kind: str, truth: Ragged, rows: Ragged, texts: Sequence[str | None], vocabulary: Vocabulary
) -> tuple[Ragged, Ragged]:
    read = Texts(vocabulary.how)
    read.extend(texts)
    phrases = read.phrases(vocabulary)
    return kinds_of(read, truth, phrases)[kind], kinds_of(read, rows, phrases)[kind]


def _check(references: Lists, predictions: Lists, k: int | None) -> None:
    if len(references) != len(predictions):
        raise InputError(f"{len(references)} references, {len(predictions)} predictions; expected one list per item")
    if k is not None and k < 1:
        raise InputError(f"k is {k}; expected an integer of at least 1")
    if any(isinstance(phrases, str) for phrases in (*references, *predictions)):
        raise InputError("an item is a string; expected a list of phrases per item")


def _by_id(
    vocabulary: Vocabulary, given: Mapping[str, float] | None, otherwise: float, turn: Callable[[float], float]
) -> Floats | None:
    if given is None:
        return None
    known = {vocabulary[phrase]: turn(value) for phrase, value in given.items()}
    found = np.full(vocabulary.size + 1, otherwise)  # one more, for BLANK
    found[list(known)] = list(known.values())
    return found


def _matrix_by_id(vocabulary: Vocabulary, given: Mapping[str, Sequence[float]] | None) -> Floats | None:
    if given is None:
        return None
    known = {vocabulary[phrase]: row for phrase, row in given.items()}
    found = np.zeros((vocabulary.size + 1, max(map(len, known.values()), default=0)))
    for name, row in known.items():
        found[name, : len(row)] = row
    return found
