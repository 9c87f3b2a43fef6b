"""An item's attributes -> its text, and the COMPLETE list of queries for which it is a right answer.

A query pattern is a line such as `{brand} {feature} {type}`. It gives one query for every way its
fields can be filled from the item's attributes, and nothing when the item lacks one. So the right
queries are a function of the attributes and nothing else: whatever a model has to say to be right
can be learned, and whatever it says beyond that is wrong.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from pusl.data.vocabulary import COLORS, DEPARTMENTS, EDITIONS, ProductType

# Ordered from what most buyers type to what few do; a catalog uses the first n of them. {name} is
# the product's other name, {shelf} the category it is in, {use} one of its uses.
PATTERNS = (
    "{brand} {type}", "{type}", "{brand} {model}", "{feature} {type}", "{type} for {use}", "{name}",
    "{brand} {model} {edition}", "{size} {type}", "{audience} {type}", "{color} {type}", "{material} {type}",
    "{shelf}", "{size} {feature} {type}", "{brand} {model} {color}", "{audience} {feature} {type}",
    "{color} {brand} {type}",
    "{brand} {model} {type}", "{brand} {feature} {type}", "{model} {edition}", "{feature} {material} {type}",
    "{brand} {name}", "{brand} {model} {size}", "{brand} {audience} {type}", "{feature} {type} for {use}",
    "{brand} {shelf}", "{feature} {name}", "{audience} {color} {type}", "{model} {type}", "{name} for {use}",
    "{material} {name}", "{brand} {model} {edition} {color}", "{brand} {type} for {use}", "{size} {name}",
    "{audience} {name}", "{color} {feature} {type}", "{brand} {size} {type}", "{color} {name}",
    "{audience} {type} for {use}", "{brand} {material} {type}", "{size} {color} {type}", "{model} {name}",
    "{shelf} for {use}",
)  # fmt: skip

# What sellers write. Parts an item lacks are left out with their comma.
TITLES = (
    "{Brand} {Model} {Edition} {feature} {type}, {material}, {size}, {color}, for {use}, {audience}",
    "{Brand} {Model} {Edition} {audience} {type} for {use}, {feature}, {size}, {material}, {color}",
    "{audience} {feature} {material} {type} {size} {color} for {use} by {Brand}, {Model} {Edition}",
    "{Brand} {type} {Model} {Edition}, {color}, {size}, {feature}, {material}, {audience}, {use}",
    "{feature} {type} {Brand} {Model} {Edition} {material}, {audience}, {size}, {color}, for {use}",
)

ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "kr", "tr", "st", "pl", "qu")
VOWELS = ("a", "e", "i", "o", "u", "ai", "eo")
CODAS = ("", "", "", "n", "r", "x", "l", "s", "th", "nd")


@dataclass(frozen=True)
class Brand:
    """An invented maker: a name and the names of its models."""

    name: str
    models: tuple[str, ...]


@dataclass
class Product:
    """A product: its brand, model and whatever else is known about it."""

    kind: ProductType
    brand: str
    model: str
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)  # field of a pattern -> its values
    called: str = ""  # the name the seller uses: the type or one of its other names
    title: int = 0
    code: str = ""  # tells two otherwise equal listings apart


def invent_names(rng: np.random.Generator, count: int, taken: set[str], syllables: int) -> list[str]:
    """`count` pronounceable words that are not in `taken`, which grows by them."""
    names: list[str] = []
    while len(names) < count:
        parts = [
            "".join(pool[int(u * len(pool))] for pool, u in zip((ONSETS, VOWELS, CODAS), rng.random(3), strict=True))
            for _ in range(syllables)
        ]
        name = "".join(parts)
        if 4 <= len(name) <= 4 * syllables and name not in taken:
            taken.add(name)
            names.append(name)
    return names


def invent_brands(rng: np.random.Generator, count: int, taken: set[str], models: int = 5) -> list[Brand]:
    """Brands with `models` models each; half of the models are a word, half a letter and a number."""
    names = invent_names(rng, count, taken, 2)
    brands = []
    for name in names:
        words = invent_names(rng, models - models // 2, taken, 2)
        codes = [f"{'abcdefghkmqrstvxz'[int(a * 17)]}{int(b * 90) + 10}" for a, b in rng.random((models // 2, 2))]
        brands.append(Brand(name, (*words, *dict.fromkeys(codes))))
    return brands


def make_item(kind: ProductType, brand: Brand, richness: float, draws: Sequence[float]) -> Product:
    """An item from 16 uniform numbers; a rich one (richness near 1) has more attributes than a poor one."""
    department = DEPARTMENTS[kind.department]

    def pick(pool: Sequence[str], u: float) -> str:
        return pool[int(u * len(pool))]

    def several(pool: Sequence[str], count: int, u: float) -> tuple[str, ...]:
        start = int(u * len(pool))
        return tuple(pool[(start + step) % len(pool)] for step in range(min(count, len(pool))))

    def maybe(pool: Sequence[str], share: float, u: float, which: float, most: int = 1) -> tuple[str, ...]:
        if not pool or u >= share * (0.3 + 1.2 * richness):
            return ()
        return several(pool, 1 + (richness > 0.85) * (most > 1) + (richness > 0.93) * (most > 2), which)

    model = pick(brand.models, draws[0])
    features = several(kind.features, 1 + (richness > 0.6) + (richness > 0.85) + (richness > 0.95), draws[1])
    uses = several(kind.uses, (richness > 0.3) + (richness > 0.75) + (richness > 0.93), draws[2])
    values = {
        "brand": (brand.name,), "model": (model,), "type": (kind.name,), "name": kind.other_names,
        "shelf": (kind.shelf,), "feature": features, "use": uses,
        "edition": maybe(EDITIONS, department.edition, draws[3], draws[4]),
        "color": maybe(COLORS, department.color, draws[5], draws[6], most=3),
        "audience": maybe(department.audiences, department.audience, draws[7], draws[8]),
        "size": maybe(kind.sizes, 0.55, draws[9], draws[10], most=3),
        "material": maybe(kind.materials, 0.5, draws[11], draws[12]),
    }  # fmt: skip
    # A quarter of the sellers use another name, so that the type itself is absent from the text.
    called = kind.name if draws[13] < 0.75 or not kind.other_names else pick(kind.other_names, draws[14])
    return Product(kind, brand.name, model, values, called, int(draws[15] * len(TITLES)))


def text_of(item: Product) -> str:
    """The seller's listing: it holds every attribute that a query may use, except other names and shelf."""
    values = item.values
    said = {
        "Brand": item.brand.capitalize(), "Model": item.model.capitalize(), "type": item.called,
        "Edition": " ".join(values["edition"]).capitalize(), "feature": " ".join(values["feature"]),
        "use": " and ".join(values["use"]),
    }  # fmt: skip
    clauses = []
    for clause in TITLES[item.title].split(","):
        words: list[str] = []
        for word in clause.split():
            name = word.strip("{}")
            text = word if name == word else said.get(name, " / ".join(values.get(name, ())))
            if name == "use" and not text and words and words[-1] == "for":
                words.pop()
            if text:
                words.append(text)
        if words:
            clauses.append(" ".join(words))
    text = ", ".join(clauses)
    text = text[0].upper() + text[1:]
    return f"{text}, {item.code}" if item.code else text


@lru_cache(maxsize=256)
def pattern_fields(pattern: str) -> tuple[str, ...]:
    """The attributes a pattern needs.

    >>> pattern_fields("{type} for {use}")
    ('type', 'use')
    """
    return tuple(name for _, name, _, _ in string.Formatter().parse(pattern) if name)


def count_queries(item: Product, pattern: str) -> int:
    """How many queries a pattern gives for an item."""
    total = 1
    for name in pattern_fields(pattern):
        total *= len(item.values[name])
    return total


def queries_of(item: Product, patterns: Sequence[str]) -> list[str]:
    """Every right query of an item, in the order of the patterns, without repeats."""
    found: dict[str, None] = {}
    values = item.values
    for pattern in patterns:
        fields = pattern_fields(pattern)
        if len(fields) == 1:
            for value in values[fields[0]]:
                found[value] = None
            continue
        for filling in itertools.product(*(values[name] for name in fields)):
            query = pattern.format_map(dict(zip(fields, filling, strict=True)))
            found[query] = None
    return list(found)
