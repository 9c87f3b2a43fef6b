"""Texts + sources -> one pool of candidates per text, and what is known about each candidate as numbers.

NaN stands for "this source did not propose it".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pusl.fusion.memory import Memory, Vote
from pusl.fusion.sources import GeneratorSource, NeighborSource, Query, Ranked, Source
from pusl.words import unspaced, words
from pusl_eval.normalize import normalize

PHRASE = (
    "in_text", "stem_in_text", "share_in_text", "stem_share_in_text", "position", "given_if_in_text", "frequency",
    "known_label", "known_words", "words", "characters", "agreement", "best_rank", "text_words",
)  # fmt: skip
TOLD = ("told_mean", "told_largest", "told_count")
_NO_VOTE: Vote = (0.0, 0.0, 0)


@dataclass
class CandidatePool:
    """The candidates of one text."""

    forms: list[str]  # normalized
    phrases: list[str]  # as shown
    ranks: list[dict[str, int]]  # which sources proposed it, and at which rank
    features: np.ndarray  # (n, F)


class Pooler:
    """Asks every source, joins what they propose and describes it."""

    def __init__(self, memory: Memory, sources: Sequence[Source], depth: int) -> None:
        self.memory, self.sources, self.depth = memory, list(sources), depth
        self.generators = [source for source in sources if isinstance(source, GeneratorSource)]
        self.votes = any(isinstance(source, NeighborSource) for source in sources)
        self.names = feature_names(self.sources)

    def pool(self, query: Query, given: Sequence[Sequence[str]] | None = None) -> list[CandidatePool]:
        """One pool per text; known keyphrases and phrases outside a closed universe are left out.

        `given` phrases are in the pool whether a source proposes them or not.
        """
        proposed = [source.propose(query, self.depth) for source in self.sources]
        joined = [
            self._join(query, number, [one[number] for one in proposed], given[number] if given is not None else ())
            for number in range(len(query.texts))
        ]
        scored = [source.score(query, [phrases for _, phrases, _, _ in joined]) for source in self.generators]
        votes = query.votes(self.memory) if self.votes else None
        pools = []
        for number, (forms, phrases, ranks, scores) in enumerate(joined):
            columns = [*self._of_sources(ranks, scores)]
            columns += [part for one in scored for part in _of_generator(phrases, one[number])]
            if votes is not None:
                columns += self._of_neighbors(forms, votes[number])
            columns += self._of_phrases(query, number, forms, phrases, ranks)
            columns += self._of_known(query, number, forms)
            pools.append(
                CandidatePool(forms, phrases, ranks, np.array(columns, np.float64).reshape(len(self.names), -1).T)
            )
        return pools

    def _join(
        self, query: Query, number: int, lists: Sequence[Ranked], given: Sequence[str] = ()
    ) -> tuple[list[str], list[str], list[dict[str, int]], list[dict[str, float]]]:
        ranks: dict[str, dict[str, int]] = {}
        scores: dict[str, dict[str, float]] = {}
        shown: dict[str, str] = {}
        taken = set(map(normalize, query.known[number])) if query.known is not None else set()
        for source, ranked in zip(self.sources, lists, strict=True):
            for rank, (phrase, score) in enumerate(ranked, 1):
                form = normalize(phrase)
                if not form or form in taken or source.name in ranks.get(form, ()):
                    continue
                if form not in ranks:
                    if query.vocabulary == "closed" and not query.universe.contains(phrase):
                        continue
                    label = self.memory.forms.get(form)
                    shown[form] = phrase if label is None else self.memory.labels[label]
                ranks.setdefault(form, {})[source.name] = rank
                scores.setdefault(form, {})[source.name] = score
        for phrase in given:
            form = normalize(phrase)
            if form and form not in ranks:
                ranks[form], scores[form], shown[form] = {}, {}, phrase
        forms = sorted(ranks)  # whatever the order of the sources
        return forms, [shown[f] for f in forms], [ranks[f] for f in forms], [scores[f] for f in forms]

    def _of_sources(self, ranks: Sequence[dict[str, int]], scores: Sequence[dict[str, float]]) -> list[list[float]]:
        columns = []
        for source in self.sources:
            columns.append([score.get(source.name, math.nan) for score in scores])
            columns.append([1 / rank[source.name] if source.name in rank else 0.0 for rank in ranks])
        return columns

    def _of_neighbors(self, forms: Sequence[str], votes: dict[int, Vote]) -> list[list[float]]:
        rows = [votes.get(self.memory.forms.get(form, -1), _NO_VOTE) for form in forms]
        return [[row[part] for row in rows] for part in range(3)]

    def _of_phrases(
        self, query: Query, number: int, forms: Sequence[str], phrases: Sequence[str], ranks: Sequence[dict[str, int]]
    ) -> list[list[float]]:
        view, memory = query.views[number], self.memory
        labels = [memory.forms.get(form) for form in forms]
        return [
            [float(view.holds(phrase)) for phrase in phrases],
            [float(view.holds(phrase, stems=True)) for phrase in phrases],
            [view.share(phrase) for phrase in phrases],
            [view.share(phrase, stems=True) for phrase in phrases],
            [view.position(phrase) for phrase in phrases],
            [math.nan if label is None else float(memory.given_if_in_text[label]) for label in labels],
            [0.0 if label is None else math.log1p(float(memory.counts[label])) for label in labels],
            [float(label is not None) for label in labels],
            [float(self.whole(phrase, query, number)) for phrase in phrases],
            [float(len(phrase.split())) for phrase in phrases],
            [float(len(phrase)) for phrase in phrases],
            [float(len(rank)) for rank in ranks],
            [1 / min(rank.values()) if rank else 0.0 for rank in ranks],
            [float(len(view.pieces))] * len(phrases),
        ]

    def _of_known(self, query: Query, number: int, forms: Sequence[str]) -> list[list[float]]:
        told = self.memory.together(query.known[number]) if query.known is not None else None
        if told is None:
            return [[math.nan] * len(forms) for _ in TOLD]
        numbers = [self.memory.forms.get(form, -1) for form in forms]
        shares = [[float(part[n]) if n >= 0 else 0.0 for n in numbers] for part in told]
        return [*shares, [float(len(query.known[number]))] * len(forms)] if query.known is not None else shares

    def whole(self, phrase: str, query: Query, number: int) -> bool:
        """Whether every word of the phrase is one that the items, their labels or this text have written."""
        spaced = [piece for piece in normalize(phrase).replace("-", " ").split() if any(map(str.isalnum, piece))]
        parts = [part for word in spaced for part in (words(word) if unspaced(word) else [word])]
        return all(part in self.memory.vocabulary or query.views[number].share(part) == 1.0 for part in parts) and bool(
            parts
        )


def feature_names(sources: Sequence[Source]) -> list[str]:
    """The names of the columns, in order; a source's own begin with its name and a colon."""
    names = [f"{source.name}:{part}" for source in sources for part in ("score", "reciprocal_rank")]
    for source in sources:
        if isinstance(source, GeneratorSource):
            names += [f"{source.name}:{part}" for part in ("logprob", "per_word", "below_best")]
    if any(isinstance(source, NeighborSource) for source in sources):
        names += ["knn:votes", "knn:nearest", "knn:voters"]
    return [*names, *PHRASE, *TOLD]


def _of_generator(phrases: Sequence[str], scores: Sequence[float]) -> list[list[float]]:
    best = max(scores, default=0.0)
    return [
        list(scores),
        [score / len(phrase.split()) for phrase, score in zip(phrases, scores, strict=True)],
        [score - best for score in scores],
    ]
