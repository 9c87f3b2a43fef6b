"""Phrases found by a search -> the k keyphrases of one item: the strategies of unique decoding.

`sequence` gives the best phrase not given yet, then searches again after it. `beam` gives the ranking of the
first slot, which is how a One2One model is decoded. A new strategy is a new plan here: `search.py` runs any.

`floor`, for both: a phrase whose log-probability is more than this below the item's best is junk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pusl.decoding.rules import Phrase

Form = Callable[[tuple[int, ...]], str]  # ids -> the normalized phrase; "": not a phrase
NO_FLOOR = math.inf


class Plan(Protocol):
    """What one item wants from its phrase searches."""

    def offer(self, phrase: Phrase) -> None:
        """The current search found a complete phrase."""

    def satisfied(self, best_live: float) -> bool:
        """Whether unfinished phrases, none better than `best_live`, can change nothing any more."""

    def proceed(self) -> Phrase | None:
        """The search has ended: the phrase after which to search next, or None if the item is done."""


class Sequential:
    """k slots; each takes the best complete phrase that no earlier slot took.

    A slot whose beam holds only phrases already given falls back on what earlier slots left over.
    """

    def __init__(self, k: int, form: Form, floor: float = NO_FLOOR, allow_repeats: bool = False) -> None:
        self.k, self.form, self.floor, self.allow_repeats = k, form, floor, allow_repeats
        self.floored = False  # it ended because the best phrase left is junk
        self.given: dict[str, Phrase] = {}
        self.repeats: list[Phrase] = []
        self.found: dict[str, Phrase] = {}
        self.left: dict[str, Phrase] = {}

    def offer(self, phrase: Phrase) -> None:
        form = self.form(phrase.ids)
        if form and (self.allow_repeats or form not in self.given):
            known = self.found.get(form)
            if known is None or better(phrase, known):
                self.found[form] = phrase

    def satisfied(self, best_live: float) -> bool:
        return any(phrase.score >= best_live for phrase in self.found.values())

    def proceed(self) -> Phrase | None:
        here = bool(self.found)
        candidates = self.found if here else self.left
        if not candidates:
            return None
        form, best = min(candidates.items(), key=lambda pair: order(pair[1]))
        if self.repeats and best.logprob < self.repeats[0].logprob - self.floor:
            self.floored = True
            return None
        self.left.update(self.found)
        self.found = {}
        self.left.pop(form, None)
        self.given.setdefault(form, best)
        self.repeats.append(best)
        return best if len(self.repeats) < self.k else None

    def phrases(self) -> list[Phrase]:
        """The item's keyphrases, in order of slots."""
        return self.repeats if self.allow_repeats else list(self.given.values())


class Ranked:
    """The k best phrases of one slot."""

    def __init__(self, k: int, form: Form, floor: float = NO_FLOOR) -> None:
        self.k, self.form, self.floor = k, form, floor
        self.found: dict[str, Phrase] = {}

    def offer(self, phrase: Phrase) -> None:
        form = self.form(phrase.ids)
        known = self.found.get(form)
        if form and (known is None or better(phrase, known)):
            self.found[form] = phrase

    def satisfied(self, best_live: float) -> bool:
        return sum(phrase.score >= best_live for phrase in self.found.values()) >= self.k

    def proceed(self) -> Phrase | None:
        return None

    @property
    def floored(self) -> bool:
        """Whether phrases were found that are junk."""
        return len(above_floor(list(self.found.values()), self.floor)) < len(self.found)

    def phrases(self) -> list[Phrase]:
        """The item's keyphrases, likeliest first."""
        return above_floor(sorted(self.found.values(), key=order), self.floor)[: self.k]


def above_floor(phrases: Sequence[Phrase], floor: float) -> list[Phrase]:
    """The phrases that are at most `floor` below the best."""
    best = max((phrase.logprob for phrase in phrases), default=0.0)
    return [phrase for phrase in phrases if phrase.logprob >= best - floor]


def order(phrase: Phrase) -> tuple[float, tuple[int, ...]]:
    """Sorting key: best first, ties by ids."""
    return (-phrase.score, phrase.ids)


def better(one: Phrase, other: Phrase) -> bool:
    """Whether `one` ranks before `other`."""
    return order(one) < order(other)


def sum_over_beams(sequences: Sequence[tuple[float, Sequence[Phrase]]], form: Form) -> list[Phrase]:
    """GROOV's ranking: a label's score is the summed probability of the sequences that contain it."""
    mass: dict[str, float] = {}
    first: dict[str, Phrase] = {}
    for logprob, phrases in sequences:
        for key in dict.fromkeys(form(phrase.ids) for phrase in phrases):
            mass[key] = mass.get(key, 0.0) + math.exp(logprob)
        for phrase in phrases:
            first.setdefault(form(phrase.ids), phrase)
    ranked = [Phrase(first[key].ids, math.log(value), math.log(value)) for key, value in mass.items() if key and value]
    return sorted(ranked, key=order)


@dataclass(frozen=True)
class Search:
    """The settings of one `generate` call that its searches need."""

    k: int
    strategy: str
    allow_repeats: bool
    batch_size: int
    num_beams: int | None
    floor: float
