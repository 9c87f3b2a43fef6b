"""A seed -> a shop catalog with self-selection bias whose COMPLETE keyphrases are known.

Items get attributes, a text and every query for which they are a right answer (`grammar.py`). Then
buyers come: few items get many interactions, each interaction is one query, repeats collapse
(`selection.py`). What the files show as keyphrases is what was observed, and `complete.jsonl` holds
the whole truth for the test items, which no real shop has.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from pusl.config import check, option
from pusl.data.folders import writing_folder
from pusl.data.grammar import PATTERNS, Brand, Product, count_queries, invent_brands, make_item, queries_of, text_of
from pusl.data.selection import Floats, Ints, draw_interactions, power_law_counts, zipf_weights
from pusl.data.vocabulary import product_types
from pusl.examples import Example, write_examples
from pusl_eval.files import InputError, open_atomic
from pusl_eval.flags import SEED
from pusl_eval.laziness import DIVERSE, HOT

WRONG_QUERIES = 3  # how many different wrong queries an item attracts
MANIFEST = "simulation.json"
FIRST_DAY, TEST_DAY, DAYS = datetime.date(2025, 1, 1), 273, 365


MOST_BRANDS = 100_000  # their names have two or three syllables and are all different


@dataclass(frozen=True)
class SimulateConfig:
    """Settings of a simulated catalog."""

    items: int = option(10_000, "items in all, including dev and test", minimum=3)
    seed: int = option(0, SEED, minimum=0)
    dev_items: int | None = option(None, "items in dev.jsonl (default: a tenth)", minimum=1)
    test_items: int | None = option(None, "items in test.jsonl and complete.jsonl (default: a tenth)", minimum=1)
    queries_per_item: float = option(12.0, "right queries per item, on average", minimum=1)
    popularity_exponent: float = option(
        1.66,
        "an item has n interactions with probability ~ n^-X; lower: more popular items, more labels seen",
        minimum=0,
    )
    max_interactions: int = option(5_000, "most interactions of one item", minimum=1)
    concentration: float = option(
        2.2,
        "how much buyers agree on an item's queries (Zipf exponent); at 0 all are equally common",
        minimum=0,
    )
    richness: float = option(
        0.7, "how strongly the number of attributes follows popularity: a correlation from 0 to 1", minimum=0
    )
    noise: float = option(0.02, "share of interactions that are mistakes: the query of another item", minimum=0)
    new_entities: float = option(0.2, "share of test items whose brand and model occur in no earlier item", minimum=0)
    types: int | None = option(None, "product types in the shop (default: all)", minimum=1)
    brands: int | None = option(None, "brands in the shop (default: 1.5 times the square root of --items)", minimum=1)

    def sizes(self) -> tuple[int, int, int]:
        """Items in train, dev and test."""
        tenth = max(1, self.items // 10)
        dev = tenth if self.dev_items is None else self.dev_items
        test = tenth if self.test_items is None else self.test_items
        return self.items - dev - test, dev, test

    def checked(self) -> SimulateConfig:
        """Itself, if the settings fit together."""
        check(self)
        for name, top in (("noise", 0.99), ("new_entities", 1.0), ("richness", 1.0)):
            if not getattr(self, name) <= top:
                raise InputError(f"'{name}' is {getattr(self, name)}; it must be at most {top}")
        for name in ("queries_per_item", "popularity_exponent", "concentration"):
            if not math.isfinite(getattr(self, name)) or getattr(self, name) > 1000:
                raise InputError(f"'{name}' is {getattr(self, name)}; expected a number below 1000")
        if self.sizes()[0] < 1:
            raise InputError(
                f"'items' is {self.items}, but dev and test take {sum(self.sizes()[1:])}; nothing is left to train on"
            )
        if self.types is not None and self.types > len(product_types()):
            raise InputError(f"'types' is {self.types}; at most {len(product_types())} are known")
        if self.brands is not None and self.brands > MOST_BRANDS:
            raise InputError(f"'brands' is {self.brands}; at most {MOST_BRANDS:,} names can be invented")
        return self


@dataclass
class Catalog:
    """Items with their right queries (and a few wrong ones) as one ragged array."""

    items: list[Product]
    texts: list[str]
    right: list[list[str]]
    wrong: list[list[str]]
    is_new: list[bool]
    patterns: tuple[str, ...]


def simulate(out: str | Path, config: SimulateConfig, force: bool = False, progress: Any = None) -> dict[str, Any]:
    """Writes train, dev, test and complete.jsonl, universe.txt and simulation.json to the folder `out`.

    Returns the content of simulation.json: the settings and the shares of hot/rare × diverse/narrow items.
    """
    config.checked()
    with writing_folder(out, MANIFEST, force) as (work, about):
        say: Callable[[str], None] = progress or (lambda text: None)
        say("inventing items")
        rng = np.random.default_rng(config.seed)
        popularity = rng.random(config.items)
        catalog = invent_catalog(rng, config, popularity)
        say("drawing interactions")
        interactions = power_law_counts(popularity, config.popularity_exponent, config.max_interactions)
        counts = observe(rng, config, catalog, interactions)
        days = rng.random(config.items)
        say("writing files")
        train, dev, _ = config.sizes()
        edges = {"train": (0, train), "dev": (train, train + dev), "test": (train + dev, config.items)}
        examples = list(_examples(catalog, counts, days, train + dev))
        for name, (start, end) in edges.items():
            write_examples(work / f"{name}.jsonl", examples[start:end])
        truth = (
            Example(
                example.id, example.text, catalog.right[index], None, example.timestamp, example.group,
                {**example.extra, "observed": example.keyphrases},
            )
            for index, example in enumerate(examples[train + dev :], train + dev)
        )  # fmt: skip
        write_examples(work / "complete.jsonl", truth)
        with open_atomic(work / "universe.txt") as stream:
            stream.writelines(f"{query}\n" for query in sorted({q for queries in catalog.right for q in queries}))
        about.update(_summary(config, catalog, examples, train))
    return about


def invent_catalog(rng: np.random.Generator, config: SimulateConfig, popularity: Floats) -> Catalog:
    """Attributes, texts and queries for all items; those of the test period may have new brands."""
    train, dev, test = config.sizes()
    count = train + dev + test
    kinds = product_types()[: config.types]
    taken = {word for kind in kinds for name in (kind.name, *kind.other_names) for word in name.split()}
    brand_count = config.brands or max(10, round(1.5 * math.sqrt(count)))
    brands = invent_brands(rng, brand_count, taken)
    new_brands = invent_brands(rng, max(1, brand_count // 5), taken)
    # Popular items tend to be rich ones: a Gaussian copula ties the two together.
    z, own = ndtri(np.clip(popularity, 1e-12, 1 - 1e-12)), ndtri(np.clip(rng.random(count), 1e-12, 1 - 1e-12))
    richness = ndtr(config.richness * z + math.sqrt(1 - config.richness**2) * own)
    is_new = (rng.random(count) < config.new_entities) & (np.arange(count) >= train + dev)
    kind_of, brand_of = _skewed(rng, count, len(kinds), 0.5), _skewed(rng, count, brand_count, 0.8)
    new_brand_of = _skewed(rng, count, len(new_brands), 0.8)
    draws = rng.random((count, 16))  # the attributes of one item each
    items = []
    for index in range(count):
        brand: Brand = new_brands[new_brand_of[index]] if is_new[index] else brands[brand_of[index]]
        items.append(make_item(kinds[kind_of[index]], brand, float(richness[index]), draws[index].tolist()))
    patterns = _choose_patterns(items, config.queries_per_item)
    right = [queries_of(item, patterns) for item in items]
    return Catalog(items, _distinct_texts(items), right, _wrong_queries(rng, items, right), is_new.tolist(), patterns)


def observe(rng: np.random.Generator, config: SimulateConfig, catalog: Catalog, interactions: Ints) -> list[list[int]]:
    """Interactions per query: for each item, counts for its right and then its wrong queries."""
    right = np.array([len(queries) for queries in catalog.right])
    wrong = np.array([len(queries) for queries in catalog.wrong])
    exponents = config.concentration * (0.35 + 1.3 * rng.random(len(right)))  # some items have one dominant query
    # The queries most buyers type come first in the grammar, and mostly, not always, first in an item.
    place = np.arange(int(right.sum())) - np.repeat(np.cumsum(right) - right, right)
    order = np.log1p(place) - np.log(-np.log(rng.random(len(place)).clip(1e-300, 1 - 1e-16)))  # Gumbel noise
    weights = zipf_weights(right, exponents, order)
    shares = weights / np.repeat(np.add.reduceat(weights, np.cumsum(right) - right), right)
    sizes = right + wrong
    flat = np.zeros(int(sizes.sum()))
    starts = np.cumsum(sizes) - sizes
    is_right = np.arange(len(flat)) - np.repeat(starts, sizes) < np.repeat(right, sizes)
    noisy = np.where(wrong > 0, config.noise, 0.0)
    flat[is_right] = shares * np.repeat(1 - noisy, right)
    flat[~is_right] = np.repeat(noisy / np.maximum(wrong, 1), wrong)
    picked = draw_interactions(rng, sizes, flat, interactions)
    return [picked[start : start + size].tolist() for start, size in zip(starts, sizes, strict=True)]


def _skewed(rng: np.random.Generator, count: int, choices: int, exponent: float) -> list[int]:
    """`count` draws from range(choices) with P(i) ~ (i+1)^-exponent."""
    return [int(value) - 1 for value in power_law_counts(rng.random(count), exponent, choices)]


def _choose_patterns(items: list[Product], target: float) -> tuple[str, ...]:
    """The first patterns whose queries per item come closest to the target, judged on a sample."""
    sample = items[:: max(1, len(items) // 2000)]
    totals = np.cumsum([np.mean([count_queries(item, pattern) for item in sample]) for pattern in PATTERNS])
    return PATTERNS[: int(np.abs(totals - target).argmin()) + 1]


def _distinct_texts(items: list[Product]) -> list[str]:
    """Texts; an item whose listing is taken gets an article number, as shops do."""
    seen: set[str] = set()
    texts = []
    for index, item in enumerate(items):
        text = text_of(item)
        if text in seen:
            item.code = f"art. {index:05d}"
            text = text_of(item)
        seen.add(text)
        texts.append(text)
    return texts


def _wrong_queries(rng: np.random.Generator, items: list[Product], right: list[list[str]]) -> list[list[str]]:
    """For each item the queries of another item of its department on which buyers click by mistake."""
    shelves: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        shelves.setdefault(item.kind.department, []).append(index)
    wrong = []
    for item, own, u in zip(items, right, rng.random(len(items)).tolist(), strict=True):
        shelf = shelves[item.kind.department]
        other = right[shelf[int(u * len(shelf))]]
        known = set(own)
        wrong.append([query for query in other if query not in known][:WRONG_QUERIES])
    return wrong


def _examples(catalog: Catalog, counts: list[list[int]], days: Floats, earlier: int) -> Iterator[Example]:
    width = len(str(len(counts)))
    for index, picked in enumerate(counts):
        queries = catalog.right[index] + catalog.wrong[index]
        seen = sorted((-number, place) for place, number in enumerate(picked) if number)  # the most frequent first
        phrases, numbers = [queries[place] for _, place in seen], [-number for number, _ in seen]
        first, length = (0, TEST_DAY) if index < earlier else (TEST_DAY, DAYS - TEST_DAY)
        day = FIRST_DAY + datetime.timedelta(days=first + int(days[index] * length))
        group = f"{'hot' if sum(numbers) >= HOT else 'rare'}-{'diverse' if len(phrases) >= DIVERSE else 'narrow'}"
        extra = {
            "department": catalog.items[index].kind.department,
            "entity": "new" if catalog.is_new[index] else "known",
        }
        yield Example(f"item-{index:0{width}d}", catalog.texts[index], phrases, numbers, day.isoformat(), group, extra)


def _summary(config: SimulateConfig, catalog: Catalog, examples: list[Example], train: int) -> dict[str, Any]:
    seen = np.array([len(example.keyphrases) for example in examples[:train]])
    groups = [example.group for example in examples[:train]]
    truth = np.array([len(queries) for queries in catalog.right])
    test = config.sizes()[2]
    names = ("rare-narrow", "hot-narrow", "hot-diverse", "rare-diverse")
    return {
        "config": {**asdict(config), "train_items": train, "dev_items": config.sizes()[1], "test_items": test},
        "patterns": list(catalog.patterns),
        "train": {
            "observed_per_item": round(float(seen.mean()), 4),
            "cv": round(float(seen.std() / seen.mean()), 4),
            "right_per_item": round(float(truth[:train].mean()), 4),
            "quadrants": {name: round(groups.count(name) / len(groups), 4) for name in names},
        },
    }  # fmt: skip
