"""Scored predictions of a catalog -> k keyphrases per item, chosen with regard to the other items.

`coverage`: items are processed in order. Each gets the k phrases with the largest (f + β)·η, where η is
the phrase's score and f the probability that no earlier item has it right; then f ← f·(1 − η). β = 0 is
pure coverage, a large β is plain top-k. `propensity`: the largest η / p. `brs`: k at random from the best
b·k, so that the next page of a shop shows something else. Items are streamed; memory grows with the
number of different phrases.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from pusl_eval.files import (
    InputError,
    Row,
    check_apart,
    check_input,
    check_output,
    claimed,
    file_digest,
    read_json,
    read_rows,
    write_json,
    write_rows,
)
from pusl_eval.normalize import distinct_forms
from pusl_eval.propensity import propensities
from pusl_eval.records import PredictionRecord, read_predictions, read_references

OBJECTIVES = ("coverage", "propensity", "brs")
SCALES = ("auto", "probability", "log")
STATE_FORMAT = 1

Chooser = Callable[
    [str, Sequence[str], np.ndarray], Sequence[int]
]  # id, normalized phrases, η -> positions, best first


@dataclass
class Coverage:
    """The greedy coverage rule and its memory, which carries over from item to item and from run to run.

    >>> rule = Coverage(k=1, beta=0.0)
    >>> [rule.choose(item, ["cat", "dog"], np.array([0.9, 0.3])) for item in ("a", "b", "c")]
    [[0], [1], [1]]
    >>> {phrase: round(value, 3) for phrase, value in rule.missing.items()}
    {'cat': 0.1, 'dog': 0.49}
    """

    k: int
    beta: float = 0.0
    missing: dict[str, float] = field(default_factory=dict)  # f: probability that no item has it right; else 1

    def choose(self, item: str, phrases: Sequence[str], chances: np.ndarray) -> list[int]:
        """Positions of the k phrases with the largest gain; equal gains keep the given order."""
        left = np.array([self.missing.get(phrase, 1.0) for phrase in phrases])
        gains = (left + self.beta) * chances
        best = np.argsort(-gains, kind="stable")[: self.k].tolist()
        for position in best:
            self.missing[phrases[position]] = float(left[position] * (1 - chances[position]))
        return best


@dataclass
class Weighted:
    """The k phrases with the largest score times weight (weight = 1 / propensity)."""

    k: int
    weight: Callable[[str], float]

    def choose(self, item: str, phrases: Sequence[str], chances: np.ndarray) -> list[int]:
        """Positions of the best k; equal gains keep the given order."""
        gains = chances * np.array([self.weight(phrase) for phrase in phrases])
        return np.argsort(-gains, kind="stable")[: self.k].tolist()


@dataclass
class BoundedRandom:
    """k drawn at random from the best b·k, in order of score. The draw depends only on the item's id and the seed."""

    k: int
    bound: float = 2.0
    seed: int = 0

    def choose(self, item: str, phrases: Sequence[str], chances: np.ndarray) -> list[int]:
        """Positions of the drawn phrases, best first."""
        best = np.argsort(-chances, kind="stable")[: max(self.k, round(self.bound * self.k))]
        digest = hashlib.sha256(f"{self.seed}\0{item}".encode()).digest()
        draw = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        drawn = draw.permutation(len(best))[: self.k]
        return best[np.sort(drawn)].tolist()


def rerank_rows(
    predictions: Iterable[PredictionRecord], choose: Chooser, k: int, scale: str, path: str | Path
) -> Iterator[Row]:
    """Streams reranked prediction rows. Drops repeated and blank phrases first and keeps the given scores."""
    for prediction in predictions:
        scores = prediction.scores
        if scores is None:
            raise InputError(
                f"{path}:{prediction.line}: id {prediction.id!r} has no 'scores'; reranking needs a score per keyphrase"
            )
        first, chances = _candidates(prediction, scores, scale, path)
        kept = list(first.values())
        chosen = [kept[number] for number in choose(prediction.id, list(first), chances)] if kept else []
        row: Row = {
            "id": prediction.id,
            "keyphrases": [prediction.keyphrases[position] for position in chosen],
            "scores": [scores[position] for position in chosen],
        }
        if len(chosen) < k:
            row["exhausted"] = True
        yield {**row, **{name: value for name, value in prediction.extra.items() if name not in row}}


def _candidates(
    prediction: PredictionRecord, scores: Sequence[float], scale: str, path: str | Path
) -> tuple[dict[str, int], np.ndarray]:
    """Normalized phrase -> first position, and η of each."""
    first = distinct_forms(prediction.keyphrases)
    return first, np.array([_chance(scores[position], scale, prediction, path) for position in first.values()])


def _balance(
    path: str | Path, k: int, scale: str, min_precision: float | None, precision_weight: float | None
) -> float:
    """β for the wanted balance of precision and coverage."""
    from pusl import balance

    def items() -> Iterator[tuple[Sequence[str], np.ndarray]]:
        for prediction in read_predictions(path):
            first, chances = _candidates(
                prediction, prediction.scores or [0.0] * len(prediction.keyphrases), scale, path
            )
            yield list(first), chances

    found = balance.gather(items())
    if min_precision is not None:
        return balance.least_precision(found, k, min_precision)
    if precision_weight is not None:
        return balance.weighted(found, k, precision_weight)
    return balance.harmonic(found, k)


def _chance(score: float, scale: str, prediction: PredictionRecord, path: str | Path) -> float:
    if scale == "log" and score <= 0:
        return math.exp(score)
    if scale == "probability" and 0 <= score <= 1:
        return score
    where = f"{path}:{prediction.line}: id {prediction.id!r}: score {score:g}"
    if scale == "log":
        raise InputError(f"{where} is not a log-probability (at most 0), although earlier scores are")
    raise InputError(f"{where} is not a probability in [0, 1]; log-probabilities need --scores log")


def find_scale(predictions: Iterable[PredictionRecord]) -> str:
    """`log` if the first score that is not 0 is negative, else `probability`."""
    for prediction in predictions:
        for score in prediction.scores or ():
            if score != 0:
                return "log" if score < 0 else "probability"
    return "probability"


def rerank(
    predictions: str | Path,
    output: str | Path,
    k: int,
    objective: str = "coverage",
    *,
    beta: float = 0.0,
    bound: float = 2.0,
    min_precision: float | None = None,
    precision_weight: float | None = None,
    harmonic: bool = False,
    seed: int = 0,
    scores: str = "auto",
    weight: Callable[[str], float] | None = None,
    state: str | Path | None = None,
    force: bool = False,
) -> int:
    """Runs `pusl rerank` and returns the number of items.

    `weight` (normalized phrase -> 1/propensity) is for the objective `propensity`. With `state`, coverage continues
    from the files reranked before; the state is updated after the output is written. `min_precision`,
    `precision_weight` or `harmonic` choose β from the scores (balance.py); it is printed.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"objective {objective!r} is unknown; allowed: {', '.join(OBJECTIVES)}")
    if scores not in SCALES:
        raise InputError(f"score scale {scores!r} is unknown; allowed: {', '.join(SCALES)}")
    if k < 1:
        raise InputError(f"-k is {k}; it must be at least 1")
    if not 0 <= beta < math.inf:
        raise InputError(f"--beta is {beta}; it must be 0 or more")
    wishes = [min_precision is not None, precision_weight is not None, harmonic]
    if any(wishes):
        if objective != "coverage":
            raise InputError("--min-precision, --precision-weight and --harmonic are for --objective coverage")
        if sum(wishes) + (beta > 0) > 1:
            raise InputError("give one of --beta, --min-precision, --precision-weight and --harmonic")
        if state is not None:
            raise InputError("--state needs a fixed --beta; --min-precision and the others look at one whole file")
    if not 1 <= bound < math.inf:
        raise InputError(f"--bound is {bound}; it must be at least 1")
    if state is not None and objective != "coverage":
        raise InputError(f"--state is for --objective coverage; '{objective}' treats each item alone")
    check_input(predictions)
    check_apart([output], {"--predictions": predictions, "--state": state})
    with contextlib.ExitStack() as stack:
        if state is not None:
            stack.enter_context(claimed(state))  # read, changed and written by one command at a time
        memory = _read_state(state) if state is not None else _new_state()
        name = file_digest(predictions) if state is not None else ""
        if name in memory["files"]:
            raise InputError(f"{predictions}: is already counted in {state}; delete the state to start over")
        # A run that was killed between its two files left the output; then only the state is missing.
        finished = state is not None and not force and os.path.isfile(output)
        if not finished:
            check_output(output, force)
        if scores == "auto":
            scores = find_scale(read_predictions(predictions))
        if any(wishes):
            beta = _balance(predictions, k, scores, min_precision, precision_weight)
            logging.getLogger(__name__).info(f"rerank: beta {beta:.4g}")
        rule: Coverage | Weighted | BoundedRandom
        if objective == "coverage":
            rule = Coverage(k, beta, memory["missing"])
        elif objective == "propensity":
            if weight is None:
                raise InputError("--objective propensity needs --train FILE, from which propensities are computed")
            rule = Weighted(k, weight)
        else:
            rule = BoundedRandom(k, bound, seed)
        items = tqdm(read_predictions(predictions), desc="rerank", unit=" items", disable=None)
        rows = rerank_rows(items, rule.choose, k, scores, predictions)
        count = _same_rows(output, rows) if finished else write_rows(output, rows, force)
        if state is not None:
            memory["files"].append(name)
            memory["items"] += count
            write_json(state, memory, force=True)
        return count


def _same_rows(output: str | Path, rows: Iterator[Row]) -> int:
    """How many rows the output has, if they are these; it is not ours to replace if they are not."""
    count = 0
    for stored, row in itertools.zip_longest(read_rows(output), rows):
        if stored is None or stored[1] != row:
            raise InputError(f"{output}: exists already; pass --force to overwrite it")
        count += 1
    return count


def inverse_propensities(
    train: str | Path, model: str = "jpv", parameters: Mapping[str, float] | None = None, prior: float = 0.0
) -> Callable[[str], float]:
    """Normalized phrase -> 1/p by the label counts of a training file; unseen phrases have count 0."""
    counts: Counter[str] = Counter()
    items = 0
    for record in read_references(train):
        keys = distinct_forms(record.keyphrases).keys()
        counts.update(keys)
        items += bool(keys)
    if not items:
        raise InputError(f"{train}: no item with keyphrases; propensities need label counts")
    known = sorted(set(counts.values()) | {0})
    table = dict(zip(known, (1 / propensities(known, items, model, parameters, prior)).tolist(), strict=True))
    return lambda phrase: table[counts[phrase]]


def _new_state() -> dict[str, Any]:
    return {"format": STATE_FORMAT, "objective": "coverage", "items": 0, "files": [], "missing": {}}


def _read_state(path: str | Path) -> dict[str, Any]:
    """The stored state, or a new one if there is no file yet."""
    if not Path(path).exists():
        check_output(path)
        return _new_state()
    try:
        loaded = read_json(path)
        good = loaded["format"] == STATE_FORMAT and loaded["objective"] == "coverage"
        good = good and isinstance(loaded["files"], list) and isinstance(loaded["items"], int)
        good = good and all(0 <= value <= 1 for value in loaded["missing"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise InputError(f"{path}: is not a state file of `pusl rerank`; name another file with --state")
    return loaded
