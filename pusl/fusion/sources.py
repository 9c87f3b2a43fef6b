"""Texts -> each source's ranked candidates: a generator, a classifier, neighbors, the text itself, or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pusl.baselines.model import Baseline
from pusl.fusion.memory import Memory, TextView, Vote
from pusl_eval.normalize import normalize

Ranked = list[tuple[str, float]]  # phrases with scores, best first


@dataclass
class Query:
    """Texts and what is asked about them."""

    texts: Sequence[str]
    known: Sequence[Sequence[str]] | None = None  # keyphrases that each text has already
    ids: Sequence[str] | None = None
    vocabulary: str = "open"
    universe: Any = None  # anything with `contains`
    batch_size: int = 64
    long: str = "cut"  # what generators do with texts that they cannot read whole
    truncated: set[int] = field(default_factory=set)  # texts of which a generator read the beginning only
    spelled: Mapping[str, Any] = field(default_factory=dict)  # the universe as each generator's tokenizer spells it
    views: list[TextView] = field(default_factory=list)
    _votes: list[dict[int, Vote]] | None = None

    def __post_init__(self) -> None:
        self.views = [TextView(text) for text in self.texts]

    def votes(self, memory: Memory) -> list[dict[int, Vote]]:
        """The neighbors' votes, counted once."""
        if self._votes is None:
            self._votes = memory.votes(self.texts, self.known)
        return self._votes


class Source(Protocol):
    """Something that proposes phrases."""

    name: str

    def propose(self, query: Query, depth: int) -> list[Ranked]:
        """Up to `depth` candidates for each text, best first."""
        ...


@dataclass
class GeneratorSource:
    """A trained seq2seq model; it also scores the other sources' candidates."""

    name: str
    generator: Any

    def propose(self, query: Query, depth: int) -> list[Ranked]:
        """Phrases with their log-probabilities."""
        universe = None if query.vocabulary == "open" else query.spelled.get(self.name, query.universe)
        found = self.generator.generate(
            query.texts, depth, known=query.known, vocabulary=query.vocabulary, batch_size=query.batch_size,
            universe=universe, long=query.long,
        )  # fmt: skip
        query.truncated.update(number for number, one in enumerate(found) if one.truncated)
        return [list(zip(one.keyphrases, one.scores, strict=True)) for one in found]

    def score(self, query: Query, candidates: Sequence[Sequence[str]]) -> list[list[float]]:
        """Log-probabilities of any phrases."""
        found = self.generator.score(query.texts, candidates, known=query.known, batch_size=query.batch_size)
        return [one.scores for one in found]


@dataclass
class BaselineSource:
    """A closed-vocabulary classifier."""

    name: str
    model: Baseline

    def propose(self, query: Query, depth: int) -> list[Ranked]:
        """Training labels with the classifier's scores."""
        if not query.texts:
            return []
        numbers, scores = self.model.rank(query.texts, depth)
        return [
            [(self.model.labels[n], float(s)) for n, s in zip(row, values, strict=True) if n >= 0]
            for row, values in zip(numbers, scores, strict=True)
        ]


@dataclass
class NeighborSource:
    """Labels of similar items, by their share of the votes."""

    memory: Memory
    name: str = "knn"

    def propose(self, query: Query, depth: int) -> list[Ranked]:
        """Labels of the nearest items; items that share known keyphrases count more."""
        found = []
        for votes in query.votes(self.memory):
            ranked = sorted(votes.items(), key=lambda pair: (-pair[1][0], pair[0]))[:depth]
            found.append([(self.memory.labels[label], vote[0]) for label, vote in ranked])
        return found


@dataclass
class TextSource:
    """Phrases of the text that are labels or universe entries, by how often such a label was given."""

    memory: Memory
    name: str = "text"

    def propose(self, query: Query, depth: int) -> list[Ranked]:
        """Labels found up to their endings; universe entries found word by word, behind the labels."""
        return [self._of(view, query.universe, depth) for view in query.views]

    def _of(self, view: TextView, universe: Any, depth: int) -> Ranked:
        memory = self.memory
        labels = sorted(memory.standing_in(view), key=lambda label: (-memory.given_if_in_text[label], label))
        found = [(memory.labels[label], float(memory.given_if_in_text[label])) for label in labels[:depth]]
        if universe is not None:
            own = {normalize(label) for label, _ in found}
            longest_first = sorted(set(view.as_written()), key=lambda gram: (-len(gram), gram))
            entries = [gram for gram in longest_first if gram not in own and universe.contains(gram)]
            found += [(gram, 0.0) for gram in entries[: depth - len(found)]]
        return found


@dataclass
class FileSource:
    """Predictions made elsewhere, looked up by id; items without a line get no candidates."""

    name: str
    predictions: Mapping[str, Ranked]

    def propose(self, query: Query, depth: int) -> list[Ranked]:
        """What the file says about each id."""
        return [self.predictions.get(item, [])[:depth] for item in query.ids or [""] * len(query.texts)]
