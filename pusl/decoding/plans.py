"""Phrases found by a search -> the k keyphrases of one item: the strategies of unique decoding.

`sequence`: the best phrase not yet given, then search again behind it. `beam`: the first slot's
ranking of phrases, which is how a One2One model is decoded. `merge`: the first slot's ranking,
corrected by second slots behind its likeliest phrases; the sum over contexts estimates how probable
it is that a phrase belongs to the item at all.

`floor`, for all of them: a phrase whose log-probability lies more than this below the item's best is junk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pusl.decoding.phrases import Move
from pusl.decoding.sequences import Phrase

Form = Callable[[tuple[int, ...]], str]  # ids -> the compared form of the phrase; "" is no phrase
NO_FLOOR = math.inf


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

    def proceed(self) -> Move | None:
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
        return Move(best) if len(self.repeats) < self.k else None

    def phrases(self) -> list[Phrase]:
        """The item's keyphrases, in order of slots."""
        return self.repeats if self.allow_repeats else list(self.given.values())


class Ranked:
    """The k best phrases of one slot; `wanted` more are looked for than will be given."""

    def __init__(self, k: int, form: Form, floor: float = NO_FLOOR, wanted: int | None = None) -> None:
        self.k, self.form, self.floor = k, form, floor
        self.wanted = wanted or k
        self.found: dict[str, Phrase] = {}

    def offer(self, phrase: Phrase) -> None:
        form = self.form(phrase.ids)
        known = self.found.get(form)
        if form and (known is None or better(phrase, known)):
            self.found[form] = phrase

    def satisfied(self, best_live: float) -> bool:
        return sum(phrase.score >= best_live for phrase in self.found.values()) >= self.wanted

    def proceed(self) -> Move | None:
        return None

    @property
    def floored(self) -> bool:
        """Whether phrases were found that are junk."""
        return len(above_floor(list(self.found.values()), self.floor)) < len(self.found)

    def phrases(self) -> list[Phrase]:
        """The item's keyphrases, likeliest first."""
        return above_floor(sorted(self.found.values(), key=order), self.floor)[: self.k]


class Merged:
    """The first slot's ranking, then a second slot behind each of its `contexts` likeliest phrases.

    A phrase's score is log of (P(first) + sum over contexts c of P(c) P(phrase | c)), the expected number
    of times it stands in the first two slots; contexts that were not searched count as the first slot.
    """

    def __init__(
        self, k: int, form: Form, floor: float = NO_FLOOR, wanted: int | None = None, contexts: int = 3
    ) -> None:
        self.k, self.form, self.floor, self.contexts = k, form, floor, contexts
        self.search = Ranked(k, form, wanted=wanted)
        self.first: dict[str, Phrase] = {}
        self.behind: list[tuple[str, dict[str, Phrase]]] = []
        self.queue: list[tuple[str, Phrase]] = []
        self.current = ""

    def offer(self, phrase: Phrase) -> None:
        self.search.offer(phrase)

    def satisfied(self, best_live: float) -> bool:
        return self.search.satisfied(best_live)

    def proceed(self) -> Move | None:
        found = self.search.found
        if not self.first:
            self.first = found
            self.queue = sorted(found.items(), key=lambda pair: order(pair[1]), reverse=True)[-self.contexts :]
        else:
            self.behind.append((self.current, found))
        if not self.queue:
            return None
        self.search = Ranked(self.k, self.form, wanted=self.search.wanted)
        self.current, context = self.queue.pop()
        return Move(context, restart=True)

    @property
    def floored(self) -> bool:
        """Whether phrases were found that are junk."""
        return len(above_floor(list(self.first.values()), self.floor)) < len(self.first)

    def phrases(self) -> list[Phrase]:
        """The item's keyphrases by estimated inclusion; `logprob` is the log of that estimate."""
        weight = {form: math.exp(phrase.logprob) for form, phrase in self.first.items()}
        rest = max(0.0, 1.0 - sum(weight[form] for form, _ in self.behind))
        mass: dict[str, float] = {form: value * (1.0 + rest) for form, value in weight.items()}
        bonus = {form: phrase.score - phrase.logprob for form, phrase in self.first.items()}
        ids = {form: phrase.ids for form, phrase in self.first.items()}
        for context, found in self.behind:
            for form, phrase in found.items():
                mass[form] = mass.get(form, 0.0) + weight[context] * math.exp(phrase.logprob)
                bonus.setdefault(form, phrase.score - phrase.logprob)
                ids.setdefault(form, phrase.ids)
        merged = [
            Phrase(ids[form], math.log(value / 2), math.log(value / 2) + bonus[form])
            for form, value in mass.items()
            if value > 0
        ]
        return above_floor(sorted(merged, key=order), self.floor)[: self.k]


def above_floor(phrases: Sequence[Phrase], floor: float) -> list[Phrase]:
    """The phrases that are at most `floor` below the best."""
    best = max((phrase.logprob for phrase in phrases), default=0.0)
    return [phrase for phrase in phrases if phrase.logprob >= best - floor]


def order(phrase: Phrase) -> tuple[float, tuple[int, ...]]:
    """Sorting key: best first, ties by ids."""
    return (-phrase.score, phrase.ids)


def better(one: Phrase, other: Phrase) -> bool:
    """Whether `one` stands before `other`."""
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
