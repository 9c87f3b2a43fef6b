"""Full labels -> the part of them that a biased process would have shown, with the full set beside it.

Self-selection is a race: every keyphrase of an item has a clock that first rings after an
exponential time, with the rate (popularity of the item) × (the keyphrase's share within the item). Stopping
all clocks at one moment shows much of popular items and little of the rest, and choosing the moment
hits any wanted share exactly. Propensity models hide each label by a coin that depends on its frequency.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pusl.config import check, option
from pusl.data.selection import Floats, Ints, power_law_counts, zipf_weights
from pusl.examples import Columns, Example, read_examples, write_examples
from pusl_eval.files import InputError, check_apart, check_output, read_lines
from pusl_eval.flags import SEED, parameters
from pusl_eval.laziness import laziness
from pusl_eval.normalize import collapse, distinct, normalize
from pusl_eval.propensity import DEFAULTS, PARAMETERS, check_parameters, propensities

MODELS = ("self-selection", "jpv", "power", "richards")


@dataclass(frozen=True)
class ThinConfig:
    """How labels are hidden."""

    by: str = option("self-selection", "how labels are hidden", choices=MODELS)
    keep: float | None = option(None, "share of all labels to keep (default: 0.3, or what the propensity model says)")
    seed: int = option(0, SEED, minimum=0)
    empty: str | None = option(
        None, "an item that would lose all its labels keeps one (one), is dropped (drop) or stays without any (none) "
        "(default: one for self-selection, else drop)", choices=("one", "drop", "none"),
    )  # fmt: skip
    popularity_exponent: float = option(
        1.66, "self-selection: popularity n has probability ~ n^-X; unused with counts or --popularity", minimum=0
    )
    concentration: float = option(
        1.0, "self-selection: how uneven an item's labels are (Zipf exponent); unused with counts", minimum=0
    )
    popularity: str | None = option(
        None, "self-selection: file with `id TAB number` lines, e.g. downloads; missing ids get the lowest number"
    )
    popularity_is_rank: bool = option(False, "the numbers in --popularity are ranks, 1 being the most popular")
    propensity_parameters: str = option(
        "", "the propensity model's parameters, e.g. a=0.55 b=1.5 (jpv), beta=2 gamma=0.4 (power)"
    )

    def checked(self) -> ThinConfig:
        """Itself, if the options make sense together."""
        check(self)
        if self.keep is not None and not 0 < self.keep <= 1:
            raise InputError(f"--keep {self.keep:g}: expected a share above 0 and at most 1")
        if self.by == "self-selection" and self.propensity_parameters:
            raise InputError("--propensity-parameters belongs to a propensity model; pass --by jpv, power or richards")
        if self.by != "self-selection":
            if self.popularity:
                raise InputError(f"--popularity belongs to --by self-selection, not {self.by}")
            given = self.parsed_parameters()
            missing = [name for name in PARAMETERS[self.by] if name not in {**DEFAULTS.get(self.by, {}), **given}]
            if missing:
                example = " ".join(f"{name}=NUMBER" for name in missing)
                raise InputError(f"--by {self.by} needs --propensity-parameters {example}")
            check_parameters(self.by, given)
        return self

    def parsed_parameters(self) -> dict[str, float]:
        """`a=0.5 b=1` -> {"a": 0.5, "b": 1.0}."""
        return parameters(self.propensity_parameters)


@dataclass
class Labels:
    """The label occurrences of a file as ragged arrays: what the first pass collects."""

    sizes: Ints  # (items,) different keyphrases per item
    labels: Ints  # (occurrences,) label numbers
    frequencies: Ints  # (labels,) items that have the label
    counts: Floats | None  # (occurrences,) interactions, where every item has them
    popularity: Floats | None  # (items,) from the user's file


def thin(
    path: str | Path, out: str | Path, config: ThinConfig, columns: Columns | None = None, force: bool = False
) -> dict[str, Any]:
    """Writes `path` with labels hidden to `out`; the full ones stand in the field `complete`.

    Returns the share that was kept, and μ and CV before and after.
    """
    config.checked()
    check_output(out, force)
    check_apart([out], {"input": path, "--popularity": config.popularity})
    found = collect(path, config, columns)
    rng = np.random.default_rng(config.seed)
    empty = config.empty or ("one" if config.by == "self-selection" else "drop")
    if config.by == "self-selection":
        numbers = self_selection(rng, found, config, at_least_one=empty == "one")
    else:
        numbers = coin_flips(rng, found, config, at_least_one=empty == "one")
    kept = _add_up(numbers > 0, found.sizes)
    kept = kept[kept > 0] if empty == "drop" else kept
    if not kept.sum():
        raise InputError(f"{path}: no label would be left; keep more of them (--keep, --propensity-parameters)")
    with_counts = config.by == "self-selection"
    written = write_examples(out, _thinned(path, columns, found.sizes, numbers, with_counts, empty == "drop"), force)
    before, after = laziness(found.sizes), laziness(kept)
    return {
        "items": len(found.sizes), "items_written": written, "occurrences": int(found.sizes.sum()),
        "kept": int(kept.sum()), "share_kept": float(kept.sum() / max(1, found.sizes.sum())),
        "mu": [before["mu"], after["mu"]], "cv": [before["cv"], after["cv"]],
    }  # fmt: skip


def collect(path: str | Path, config: ThinConfig, columns: Columns | None) -> Labels:
    """First pass: sizes, label numbers and frequencies, counts and popularity."""
    known = read_popularity(config.popularity, config.popularity_is_rank) if config.popularity else None
    sizes, labels, counts, popularity = array("q"), array("q"), array("d"), array("d")
    vocabulary: dict[str, int] = {}
    counted = True
    for example in _examples(path, columns):
        sizes.append(len(example.keyphrases))
        labels.extend(vocabulary.setdefault(normalize(phrase), len(vocabulary)) for phrase in example.keyphrases)
        counted = counted and example.counts is not None
        if counted and example.counts is not None:
            counts.extend(example.counts)
        if known is not None:
            popularity.append(known.get(example.id, math.nan))
    numbers = np.frombuffer(labels, dtype=np.int64) if labels else np.zeros(0, np.int64)
    if not len(numbers):
        raise InputError(f"{path}: no item has a keyphrase, so there is nothing to hide")
    return Labels(
        np.frombuffer(sizes, dtype=np.int64), numbers, np.bincount(numbers),
        np.frombuffer(counts, dtype=np.float64) if counted else None,
        _fill_popularity(np.array(popularity), config.popularity) if known is not None else None,
    )  # fmt: skip


def self_selection(rng: np.random.Generator, found: Labels, config: ThinConfig, at_least_one: bool) -> Ints:
    """Interactions per label occurrence (0 = hidden) when all clocks stop at the moment that keeps the wanted share."""
    sizes = found.sizes
    owner = np.repeat(np.arange(len(sizes)), sizes)  # (occurrences,)
    if found.counts is not None and found.popularity is None:
        rates = np.maximum(found.counts, 1e-9)
    else:
        popularity = found.popularity
        if popularity is None:
            uniforms = rng.random(len(sizes))
            popularity = power_law_counts(uniforms, config.popularity_exponent, 100_000).astype(np.float64)
        # Frequent labels tend to be named first: Gumbel noise makes the order a draw by frequency.
        noise = -np.log(-np.log(rng.random(len(owner)).clip(1e-300, 1 - 1e-16)))
        order = -np.log(found.frequencies[found.labels]) - noise
        weights = zipf_weights(sizes, np.full(len(sizes), config.concentration), order)
        rates = popularity[owner] * weights / _add_up(weights, sizes)[owner]
    first_ring = -np.log1p(-rng.random(len(owner))) / rates
    keep = 0.3 if config.keep is None else config.keep
    wanted = max(1, round(keep * len(owner)))
    always = np.zeros(len(owner), dtype=bool)
    if at_least_one:
        by_item = np.lexsort((first_ring, owner))
        always[by_item[(np.cumsum(sizes) - sizes)[sizes > 0]]] = True
        if wanted < always.sum():
            raise InputError(
                f"--keep {keep:g} is less than one label per item ({always.mean():.3f}); raise it, "
                "or let items lose everything with --empty drop"
            )
    racing = np.sort(first_ring[~always])
    needed = wanted - int(always.sum())
    stop = racing[needed - 1] if needed else 0.0
    shown = always | (first_ring <= stop)
    # After its first ring a clock keeps ringing: the rest of its interactions.
    later = rng.poisson(np.minimum(rates * np.maximum(stop - first_ring, 0.0), 1e12))
    return np.where(shown, 1 + later, 0)


def coin_flips(rng: np.random.Generator, found: Labels, config: ThinConfig, at_least_one: bool) -> Ints:
    """1 for label occurrences that are kept, each with its label's propensity (scaled to the wanted share)."""
    p = propensities(found.frequencies, len(found.sizes), config.by, config.parsed_parameters())[found.labels]
    if config.keep is not None:
        p = _scale_to_mean(p, config.keep)
    draws = rng.random(len(p))
    kept = draws < p
    if at_least_one:
        owner = np.repeat(np.arange(len(found.sizes)), found.sizes)
        best = np.lexsort((draws - p, owner))[(np.cumsum(found.sizes) - found.sizes)[found.sizes > 0]]
        nothing = _add_up(kept, found.sizes)[found.sizes > 0] == 0
        kept[best[nothing]] = True
    return kept.astype(np.int64)


def _scale_to_mean(p: Floats, target: float) -> Floats:
    """min(1, factor · p) with the factor that makes the mean `target`."""
    low, high = 0.0, 1 / float(p.min())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, middle * p).mean() < target else (low, middle)
    return np.minimum(1, high * p)


def _add_up(values: Any, sizes: Ints) -> Any:
    """Sums of a ragged array's rows. (occurrences,) -> (items,)"""
    return np.bincount(np.repeat(np.arange(len(sizes)), sizes), values, minlength=len(sizes))


def _examples(path: str | Path, columns: Columns | None) -> Iterator[Example]:
    """The file's examples, repeats among an item's keyphrases collapsed."""
    for example in read_examples(path, columns=columns):
        if example.counts is None:
            example.keyphrases = distinct(example.keyphrases)
        else:
            example.keyphrases, example.counts = collapse(example.keyphrases, example.counts)
        yield example


def _thinned(
    path: str | Path, columns: Columns | None, sizes: Ints, numbers: Ints, with_counts: bool, drop: bool
) -> Iterator[Example]:
    """Second pass: each example with what is left of its keyphrases."""
    start, expected = 0, iter(sizes.tolist())
    for example in _examples(path, columns):
        size = len(example.keyphrases)
        if next(expected, None) != size:
            raise InputError(f"{path}: changed while it was being read; run the command again")
        mine = numbers[start : start + size].tolist()
        start += size
        example.extra.setdefault("complete", example.keyphrases)
        example.keyphrases = [phrase for phrase, number in zip(example.keyphrases, mine, strict=True) if number]
        example.counts = [number for number in mine if number] if with_counts else None
        if example.keyphrases or not drop:
            yield example


def read_popularity(path: str | Path, is_rank: bool = False) -> dict[str, float]:
    """`id TAB number` lines -> {id: popularity}; of a rank, its inverse."""
    known: dict[str, float] = {}
    for line, text in read_lines(path):
        name, tab, value = text.rpartition("\t")
        try:
            number = float(value)
        except ValueError:
            if line == 1:
                continue  # a header
            number = math.nan
        if not tab or not math.isfinite(number) or number < 0 or (is_rank and number < 1):
            kind = "rank >= 1" if is_rank else "number >= 0"
            raise InputError(f"{path}:{line}: expected `id TAB {kind}`, found {text[:60]!r}")
        known[name] = 1 / number if is_rank else number
    return known


def _fill_popularity(values: Floats, name: str | None) -> Floats:
    """Items without a number, or with 0, get the least positive one."""
    given = values[values > 0]
    if not len(given):
        raise InputError(f"--popularity {name}: holds no id of the input with a number above 0")
    return np.where(values > 0, values, given.min())
