"""References + predictions -> every metric, for one system or several.

from pusl_eval import compare, evaluate

result = evaluate("test.jsonl", "predictions.jsonl", k=[3, "2mu"], train="train.jsonl")
result["scores"]["all"]["B@3"], result["intervals"]["all"]["B@3"]
print(result.table())
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from itertools import combinations
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pusl_eval import inputs
from pusl_eval.budgets import resolve_k
from pusl_eval.diversity import WordTable
from pusl_eval.files import InputError
from pusl_eval.gains import inverse_propensities, label_weights, padded, rank_weights
from pusl_eval.groups import Subset, System, item_values, score_bins, score_subset, subsets_of
from pusl_eval.inputs import Source
from pusl_eval.matching import BLANK, Ints, Ragged, Vocabulary
from pusl_eval.presence import kinds_of
from pusl_eval.schema import Comparison, Gap, Metrics, Pair
from pusl_eval.score_rows import ScoreRow, score_rows
from pusl_eval.settings import Settings
from pusl_eval.significance import intervals, paired
from pusl_eval.tallies import LONGEST_CUT, Gains, tally

Floats = NDArray[np.float64]
log = logging.getLogger("pusl_eval")


class Evaluation(dict[str, Any]):
    """The metrics of one system (the form is `pusl_eval.schema.Metrics`), with the values per item beside them.

    >>> result = evaluate({"a": ["red shoe", "hat"]}, {"a": ["Red shoe", "coat"]}, k=[2])
    >>> result["scores"]["all"]["B@2"], result.per_item["B@2"].tolist()
    (0.5, [0.5])
    """

    ids: list[str]
    per_item: dict[str, Floats]  # metric -> one value per item in the order of ids, NaN where it is left out

    def table(self, color: bool = False) -> str:
        """The scores as text, in percent."""
        from pusl_eval.table import metrics_table

        return metrics_table(self, color)

    def rows(self, system: str = "predictions") -> list[ScoreRow]:
        """One row per group and metric, e.g. for `pandas.DataFrame(result.rows())`."""
        return score_rows({system: self})

    def verdict(self) -> str:
        """What the scores say, in a few plain sentences."""
        from pusl_eval.verdict import verdict

        return " ".join(verdict({"it": self}, lambda *_: None, max(self["k"])))


class Compared(dict[str, Any]):
    """Several systems (the form is `pusl_eval.schema.Comparison`)."""

    evaluations: dict[str, Evaluation]

    def table(self, color: bool = False) -> str:
        """The systems side by side and their differences, as text."""
        from pusl_eval.table import comparison_table

        return comparison_table(self, color)

    def rows(self) -> list[ScoreRow]:
        """One row per system, group and metric, e.g. for `pandas.DataFrame(compared.rows())`."""
        return score_rows(self["systems"])

    def verdict(self) -> str:
        """Who is ahead, how sure that is, what it costs and what to do next, in a few plain sentences."""
        from pusl_eval.verdict import verdict

        return " ".join(verdict(self["systems"], self.gap, max(self["k"])))

    def gap(self, a: str, b: str, metric: str) -> Gap | None:
        """The paired difference a - b over all items; None where no metric of that name has values per item."""
        for pair in self["comparisons"]:
            found = pair["scores"]["all"].get(metric)
            if found is not None and {pair["a"], pair["b"]} == {a, b}:
                return cast(Gap, found) if pair["a"] == a else _reversed(found)
        return None


def evaluate(references: Source, predictions: Source, k: Sequence[int | str] = (5, 10), **settings: Any) -> Evaluation:
    """Every metric for one system.

    `references` and `predictions` are paths, sequences of records or mappings from id to keyphrases;
    each `k` is a number, "mu" or "2mu". `settings` are the flags of `pusl evaluate`,
    with underscores: train, universe, label_space, weights, normalization, bootstrap, seed and others.

    Examples:
        >>> truth = {"a": ["red shoe", "sneaker"], "b": ["hat"]}
        >>> guess = {"a": ["red shoe", "red shoe", "boot"], "b": ["cap", "hat"]}
        >>> scores = evaluate(truth, guess, k=[2])["scores"]["all"]
        >>> scores["B@2"], scores["K@2"], scores["Cov@2"]
        (0.5, 1.5, 0.6666666666666666)
    """
    prepared = _prepare(references, {"predictions": predictions}, k, Settings(**settings))
    return _evaluate(prepared, "predictions", predictions)


def compare(
    references: Source, predictions: Mapping[str, Source], k: Sequence[int | str] = (5, 10), **settings: Any
) -> Compared:
    """Every metric for each named system, and the paired differences of every two of them.

    Examples:
        >>> truth = {str(i): ["hat"] for i in range(50)}
        >>> systems = {"hats": {str(i): ["hat"] for i in range(50)}, "caps": {str(i): ["cap"] for i in range(50)}}
        >>> found = compare(truth, systems, k=[1])["comparisons"][0]
        >>> found["a"], found["b"], found["scores"]["all"]["B@1"]["difference"]
        ('hats', 'caps', 1.0)
    """
    if not predictions:
        raise InputError("nothing to compare: expected at least one system")
    prepared = _prepare(references, predictions, k, Settings(**settings))
    found = {name: _evaluate(prepared, name, source) for name, source in predictions.items()}
    result: Comparison = {
        "k": prepared.ks,
        "mu": prepared.mu,
        "systems": {name: cast(Metrics, metrics) for name, metrics in found.items()},
        "comparisons": [_compare_pair(prepared, found, a, b) for a, b in combinations(found, 2)],
    }
    compared = Compared(result)
    compared.evaluations = found
    return compared


def paired_gap(a: Evaluation, b: Evaluation, metric: str, samples: int, seed: int) -> Gap:
    """The paired difference a - b of one metric over all items."""
    found = paired({metric: a.per_item[metric]}, {metric: b.per_item[metric]}, samples, seed)[metric]
    return {"difference": found.difference, "interval": _pair(found.interval), "p": found.p}


def _reversed(gap: Gap) -> Gap:
    """b - a from a - b."""
    difference, span = gap["difference"], gap["interval"]
    return {
        "difference": None if difference is None else -difference,
        "interval": None if span is None else [-span[1], -span[0]],
        "p": gap["p"],
    }


def _compare_pair(prepared: _Prepared, found: Mapping[str, Evaluation], a: str, b: str) -> Pair:
    s = prepared.settings
    scores: dict[str, dict[str, Gap]] = {}
    for subset in prepared.subsets:
        if subset.kind != "group":
            left, right = subset.cut(found[a].per_item), subset.cut(found[b].per_item)
            scores[subset.name] = {
                name: {"difference": gap.difference, "interval": _pair(gap.interval), "p": gap.p}
                for name, gap in paired(left, right, s.bootstrap, s.seed).items()
            }
    return {"a": a, "b": b, "scores": scores}


@dataclass
class _Prepared:
    """What all systems share."""

    settings: Settings
    ks: list[int]
    mu: float | None
    references: inputs.References
    predictions: dict[str, inputs.Predictions]  # by system
    kinds: dict[str, dict[str, tuple[Ragged, Ragged]]]  # system -> present, absent -> references, predictions
    given: frozenset[str]  # keys of declarations.NEEDS
    gains: Gains
    words: WordTable
    space: Ints | None
    label_limit: int
    frequency: NDArray[np.int64] | None  # training items with the label, by phrase id
    subsets: list[Subset]
    provenance: dict[str, Any]


def _prepare(references: Source, predictions: Mapping[str, Source], k: Sequence[int | str], s: Settings) -> _Prepared:
    wanted = s.check(k)
    vocabulary, notes = Vocabulary(s.normalization), list[str]()
    loaded = inputs.load_references(references, vocabulary, s.progress)
    space = None
    if s.label_space is not None:
        listed = inputs.load_phrases(s.label_space, "label_space")
        space = np.unique(np.fromiter((vocabulary[phrase] for phrase in listed), np.int32))
        space = space[space != BLANK]
    label_limit = vocabulary.size  # every label that can be right or in the space has an id below
    of = inputs.name_of(references, "the references")
    found = {
        name: inputs.load_predictions(source, loaded, vocabulary, of, s.progress)
        for name, source in predictions.items()
    }
    kinds = _kinds(loaded, found, vocabulary)
    words = WordTable(vocabulary.phrases())
    training = inputs.load_training(s.train, vocabulary, progress=s.progress) if s.train is not None else None
    inverse, propensity = inverse_propensities(s, training, vocabulary, label_limit, notes)
    weights = label_weights(s, vocabulary, label_limit, notes)
    by_rank = rank_weights(s, vocabulary, label_limit, notes)
    in_universe = vocabulary.find(inputs.load_phrases(s.universe, "universe")) if s.universe is not None else None
    frequency = padded(training.counts, vocabulary.size + 1) if training else None  # one more, for BLANK
    mu = training.mu if training else None
    subsets = subsets_of(loaded.sets.lengths, mu, loaded.groups)
    provenance = {
        "files": {
            role: inputs.fingerprint(source)
            for role, source in {"references": references, **s.sources()}.items()
            if source is not None
        },
        "data": {"references": loaded.summary} | ({"train": training.summary} if training else {}),
        "group_sizes": {subset.label: subset.size for subset in subsets if subset.kind != "all"},
        "n_labels": int(np.count_nonzero(np.bincount(loaded.sets.ids)) if space is None else space.size),
        "normalization": s.normalization,
        "propensity": propensity,
        "alpha": s.alpha,
        "beta": s.beta,
        "bootstrap": s.bootstrap,
        "seed": s.seed,
        "versions": _versions(),
        "warnings": notes,
    }
    _log(s, notes)
    parts: dict[str, object] = {
        "train": training, "propensities": inverse, "universe": in_universe, "weights": weights,
        "rank weights": by_rank, "texts": loaded.texts,
    }  # fmt: skip
    given = frozenset(name for name, part in parts.items() if part is not None)
    provenance["given"] = sorted(given)
    return _Prepared(
        settings=s, ks=resolve_k(wanted, mu), mu=mu, references=loaded, predictions=found, kinds=kinds,
        given=given,
        gains=Gains(inverse, weights, by_rank, in_universe, None if frequency is None else frequency > 0),
        words=words, space=space, label_limit=label_limit, frequency=frequency, subsets=subsets, provenance=provenance,
    )  # fmt: skip


def _kinds(
    references: inputs.References, predictions: Mapping[str, inputs.Predictions], vocabulary: Vocabulary
) -> dict[str, dict[str, tuple[Ragged, Ragged]]]:
    """System -> present and absent -> references and predictions of that kind; nothing without texts."""
    texts = references.texts
    if texts is None:
        return {name: {} for name in predictions}
    phrases = texts.phrases(vocabulary)
    wanted = kinds_of(texts, references.sets, phrases)
    found = {}
    for name, one in predictions.items():
        own = kinds_of(texts, one.rows, phrases)
        found[name] = {kind: (wanted[kind], own[kind]) for kind in wanted}
    return found


def _evaluate(prepared: _Prepared, name: str, source: Source) -> Evaluation:
    """One system's metrics."""
    s, ks, predictions = prepared.settings, prepared.ks, prepared.predictions[name]
    sets = prepared.references.sets
    tallies, events = tally(sets, predictions.rows, [0, *ks], prepared.gains, prepared.words, prepared.label_limit)
    system = System(
        ks=ks, settings=s, references=sets, predictions=predictions.rows, kinds=prepared.kinds[name],
        given=prepared.given, tallies={("all", k or "O"): one for k, one in tallies.items()}, events=events,
        space=prepared.space, frequency=prepared.frequency,
    )  # fmt: skip
    per_item = item_values(system)
    scores = {subset.label: score_subset(system, subset, per_item) for subset in prepared.subsets}
    spans = {
        subset.label: {
            metric: _pair(span) for metric, span in intervals(subset.cut(per_item), s.bootstrap, s.seed).items()
        }
        for subset in prepared.subsets
    }
    groups = {subset.name: subset.label for subset in prepared.subsets if subset.kind == "group"}
    own = prepared.provenance
    short = _short_lists(predictions, sets, ks)
    notes = [*_implausible(scores["all"], ks, own["propensity"]["model"]), *_too_short(short, len(sets.lengths))]
    _log(s, notes, f"{name}: " if len(prepared.predictions) > 1 else "")
    metrics: Metrics = {
        "counts": {
            "n_items": len(prepared.references.ids),
            "n_without_references": int(np.sum(sets.lengths == 0)),
            "n_missing_predictions": int(predictions.missing.sum()),
        },
        "k": ks,
        "mu": prepared.mu,
        "scores": {"all": scores["all"], "narrow": scores["narrow"], "diverse": scores["diverse"]},
        "groups": {value: scores[label] for value, label in groups.items()},
        "bins": score_bins(system, prepared.subsets),
        "intervals": {
            "all": spans["all"],
            "narrow": spans["narrow"],
            "diverse": spans["diverse"],
            "groups": {value: spans[label] for value, label in groups.items()},
        },
        "provenance": own | {  # type: ignore[typeddict-item]
            "files": own["files"] | {"predictions": inputs.fingerprint(source)},
            "missing_predictions": int(np.sum(predictions.missing & (sets.lengths > 0))), "short_lists": short,
            "warnings": [*own["warnings"], *notes],
        },
    }  # fmt: skip
    result = Evaluation(metrics)
    result.ids, result.per_item = prepared.references.ids, per_item
    return result


def _short_lists(predictions: inputs.Predictions, references: Ragged, ks: Sequence[int]) -> dict[str, int]:
    """Cut -> items whose list is shorter than the cut, although the system did not say that it was exhausted."""
    open_ended = ~predictions.missing & ~predictions.exhausted
    lengths = predictions.rows.lengths
    short = {str(k): int(np.sum(open_ended & (lengths < k))) for k in ks}
    return short | {"O": int(np.sum(open_ended & (lengths < np.minimum(references.lengths, LONGEST_CUT))))}


def _too_short(short: Mapping[str, int], items: int) -> list[str]:
    cuts = [f"{count:,} of {items:,} at {'O' if cut == 'O' else f'k = {cut}'}" for cut, count in short.items() if count]
    if not cuts:
        return []
    return [
        f"prediction lists are shorter than the cut and not marked 'exhausted': {', '.join(cuts)}; "
        "scores at these cuts are too low unless the system really had no more to give"
    ]


def _log(settings: Settings, notes: Sequence[str], of: str = "") -> None:
    for note in notes if settings.warn else ():
        log.warning("warning: %s%s", of, note)


def _implausible(scores: Mapping[str, float | None], ks: Sequence[int], model: str) -> list[str]:
    return [
        f"PSP@{k} is {value:.3f}, above 1, although it estimates a precision: "
        f"the propensity model '{model}' does not fit this data set"
        for k in ks
        if (value := scores[f"PSP@{k}"]) is not None and value > 1
    ]


def _pair(span: tuple[float, float] | None) -> list[float] | None:
    return None if span is None else list(span)


@lru_cache
def _versions() -> dict[str, str]:
    found = {"numpy": np.__version__}
    for name in ("pusl", "scipy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
