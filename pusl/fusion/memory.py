"""Labeled items -> what they tell about a new text: neighbors' labels, label counts, labels that stand in it.

Everything here is counted, nothing is learned, so new items can be added at any time.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from scipy import sparse

from pusl.baselines.label_matrix import label_matrix
from pusl.baselines.tfidf import Tfidf
from pusl.fusion.neighbors import NeighborIndex
from pusl.words import located, unspaced, words
from pusl_eval.errors import damage_refused
from pusl_eval.files import open_atomic
from pusl_eval.normalize import normalize
from pusl_eval.porter import stem

NEIGHBORS = 30
LONGEST = 8  # words of a label that is looked for in a text
PRIOR_WEIGHT = 5.0  # texts that a label's share of "in the text and given" is smoothed by
FILES = ("items.jsonl.gz", "labels.json", "counts.npz", "features.npz", "matrix.npz")
LONGEST_UNSPACED = 16  # signs, in scripts without spaces

LabeledItem = tuple[str, str, list[str]]  # id, text, keyphrases


@lru_cache(maxsize=200_000)
def stemmed(word: str) -> str:
    """Porter's stem of a normalized word."""
    return stem(word)


def pieces(text: str) -> list[str]:
    """Words and signs of a text, normalized.

    >>> pieces("Node.js  Server"), pieces("无人机")
    (['node', '.', 'js', 'server'], ['无', '人', '机'])
    """
    return located(text)[0]


@lru_cache(maxsize=500_000)
def _phrase_parts(phrase: str) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
    """The phrase as a line of pieces and of stems, its words and their stems; the same phrases come again and again."""
    parts, own = pieces(phrase), words(phrase)
    line = f" {' '.join(parts)} " if parts else ""
    return line, f" {' '.join(map(stemmed, parts))} " if parts else "", tuple(own), tuple(map(stemmed, own))


class TextView:
    """One text, ready to be asked which phrases stand in it.

    >>> view = TextView("Two Cats on a red sofa")
    >>> view.holds("red sofa"), view.holds("cat"), view.holds("cat", stems=True), view.share("red cat", stems=True)
    (True, False, True, 1.0)
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.pieces, self._places = located(text)
        self.stems = [stemmed(piece) for piece in self.pieces]
        self._line, self._stem_line = (f" {' '.join(parts)} " for parts in (self.pieces, self.stems))
        self._words, self._stem_words = frozenset(self.pieces), frozenset(self.stems)

    def holds(self, phrase: str, stems: bool = False) -> bool:
        """Whether the phrase stands in the text, word by word."""
        line, stem_line, _, _ = _phrase_parts(phrase)
        return bool(line) and (stem_line in self._stem_line if stems else line in self._line)

    def share(self, phrase: str, stems: bool = False) -> float:
        """The share of the phrase's words that the text has, anywhere."""
        _, _, parts, stem_parts = _phrase_parts(phrase)
        if not parts:
            return 0.0
        if stems:
            return sum(part in self._stem_words for part in stem_parts) / len(parts)
        return sum(part in self._words for part in parts) / len(parts)

    def position(self, phrase: str) -> float:
        """Where the phrase begins, from 0 (first word) to 1; NaN if it is not there."""
        line = _phrase_parts(phrase)[1]
        at = self._stem_line.find(line) if line else -1
        return float("nan") if at < 0 else at / len(self._stem_line)

    def grams(self) -> Iterator[tuple[str, str]]:
        """All word sequences of the text and their stems."""
        for first, last in self._spans():
            yield " ".join(self.pieces[first:last]), " ".join(self.stems[first:last])

    def as_written(self) -> Iterator[str]:
        """All word sequences with the spaces that they have in the text; without signs, a space between all words."""
        if not unspaced(self.text):
            yield from (gram for gram, _ in self.grams())
            return
        for first, last in self._spans():
            yield normalize(self.text[self._places[first][0] : self._places[last - 1][1]])

    def _spans(self) -> Iterator[tuple[int, int]]:
        for first, piece in enumerate(self.pieces):
            longest = LONGEST_UNSPACED if unspaced(piece) else LONGEST
            for last in range(first + 1, min(first + longest, len(self.pieces)) + 1):
                yield first, last


class Memory:
    """Labeled items: neighbors by TF-IDF, label counts, and how often a label in the text was given."""

    def __init__(self, items: Sequence[LabeledItem], neighbors: int = NEIGHBORS) -> None:
        self.items, self.count = items, neighbors
        self.labels, self.matrix = label_matrix(phrases for _, _, phrases in items)
        self.tfidf = Tfidf(1)
        self.features = self.tfidf.fit([text for _, text, _ in items])
        self.counts = np.asarray(self.matrix.sum(axis=0)).ravel().astype(np.int64)
        self._index_labels()
        self.in_text, self.given = self._count_in_texts()

    def _index_labels(self) -> None:
        self.forms = {normalize(label): number for number, label in enumerate(self.labels)}
        self._by_stem: dict[str, list[int]] = {}
        for number, label in enumerate(self.labels):
            self._by_stem.setdefault(" ".join(map(stemmed, pieces(label))), []).append(number)
        self.vocabulary = frozenset(self.tfidf.vocabulary) | {word for label in self.labels for word in words(label)}

    def _count_in_texts(self) -> tuple[np.ndarray, np.ndarray]:
        present, given = np.zeros(len(self.labels), np.int64), np.zeros(len(self.labels), np.int64)
        for row, (_, text, _) in enumerate(self.items):
            found = self.standing_in(TextView(text))
            present[found] += 1
            own = set(self.matrix.indices[self.matrix.indptr[row] : self.matrix.indptr[row + 1]].tolist())
            given[[number for number in found if number in own]] += 1
        return present, given

    def standing_in(self, view: TextView) -> list[int]:
        """Numbers of the labels that stand in a text, word by word up to their endings."""
        found: dict[int, None] = {}
        for _, stems in view.grams():
            for number in self._by_stem.get(stems, ()):
                found[number] = None
        return list(found)

    @cached_property
    def given_if_in_text(self) -> np.ndarray:
        """For each label: how probable it was given where the text has it, smoothed. (m,)"""
        prior = self.given.sum() / max(1, self.in_text.sum())
        return (self.given + PRIOR_WEIGHT * prior) / (self.in_text + PRIOR_WEIGHT)

    @cached_property
    def index(self) -> NeighborIndex:
        """The inverted index of the texts."""
        return NeighborIndex(self.features)

    @cached_property
    def _columns(self) -> sparse.csc_matrix:
        return self.matrix.tocsc()

    def votes(self, texts: Sequence[str], known: Sequence[Sequence[str]] | None = None) -> list[dict[int, Vote]]:
        """Label -> (share of the neighbors' votes, similarity of the nearest that has it, voters) for each text.

        A neighbor that shares known keyphrases has more votes.
        """
        rows, similar = self.index.nearest(self.tfidf.transform(texts), self.count)
        found = []
        for number, (nearest, weights) in enumerate(zip(rows, similar, strict=True)):
            told = (
                {self.forms[form] for form in map(normalize, known[number]) if form in self.forms} if known else set()
            )
            total, tally = 0.0, dict[int, Vote]()
            for row, weight in zip(nearest.tolist(), weights.tolist(), strict=True):
                if row < 0:
                    break
                own = self.matrix.indices[self.matrix.indptr[row] : self.matrix.indptr[row + 1]].tolist()
                share = weight * (1 + sum(label in told for label in own))
                total += share
                for label in own:
                    votes, best, voters = tally.get(label, (0.0, weight, 0))
                    tally[label] = (votes + share, max(best, weight), voters + 1)
            found.append({label: (votes / total, best, voters) for label, (votes, best, voters) in tally.items()})
        return found

    def together(self, known: Sequence[str]) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and largest share of the items with a known label that have each label too; None if none is known."""
        numbers = [self.forms[form] for form in dict.fromkeys(map(normalize, known)) if form in self.forms]
        if not numbers:
            return None
        shares = np.stack([self._together(number) for number in numbers])
        return shares.mean(0), shares.max(0)

    def _together(self, number: int) -> np.ndarray:
        column = self._columns
        rows = column.indices[column.indptr[number] : column.indptr[number + 1]]
        both = np.asarray(self.matrix[rows].sum(axis=0)).ravel()
        return both / (len(rows) + 1.0)

    def extended(self, more: Iterable[LabeledItem]) -> Memory:
        """A memory of the old items and new ones; a new item replaces an old one with its id."""
        merged = {item[0]: item for item in self.items}
        merged.update((item[0], item) for item in more)
        return Memory(list(merged.values()), self.count)

    def save(self, folder: Path) -> None:
        """Writes items, counts and matrices; no pickles."""
        folder.mkdir(parents=True, exist_ok=True)
        with open_atomic(folder / "items.jsonl.gz", force=True) as stream:
            for item, text, phrases in self.items:
                stream.write(json.dumps({"id": item, "text": text, "keyphrases": phrases}, ensure_ascii=False) + "\n")
        (folder / "labels.json").write_text(json.dumps(self.labels, ensure_ascii=False), encoding="utf-8")
        np.savez(folder / "counts.npz", in_text=self.in_text, given=self.given, neighbors=self.count)
        sparse.save_npz(folder / "features.npz", self.features)
        sparse.save_npz(folder / "matrix.npz", self.matrix)
        self.tfidf.save(folder)

    @classmethod
    def load(cls, folder: Path) -> Memory:
        """What `save` wrote; the items' texts are read only if they are asked for."""
        memory = cls.__new__(cls)
        with damage_refused(folder, "the memory of a fused model", "run `pusl fuse` again"):
            memory.labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
            if not isinstance(memory.labels, list) or not all(isinstance(label, str) for label in memory.labels):
                raise ValueError("labels.json is not a list of texts")
            counts = np.load(folder / "counts.npz", allow_pickle=False)
            memory.in_text, memory.given, memory.count = counts["in_text"], counts["given"], int(counts["neighbors"])
            memory.features = sparse.load_npz(folder / "features.npz").tocsr()
            memory.matrix = sparse.load_npz(folder / "matrix.npz").tocsr()
            memory.tfidf = Tfidf.load(folder)
            memory.counts = np.asarray(memory.matrix.sum(axis=0)).ravel().astype(np.int64)
            memory._index_labels()
            if len(memory.labels) != memory.matrix.shape[1] or memory.features.shape[0] != memory.matrix.shape[0]:
                raise ValueError("its labels and matrices have different sizes")
        memory.items = _StoredItems(folder / "items.jsonl.gz")
        return memory


Vote = tuple[float, float, int]


class _StoredItems(Sequence[LabeledItem]):
    """The items of a saved memory, read from disk when they are needed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _all(self) -> list[LabeledItem]:
        with (
            damage_refused(self._path, "the memory of a fused model", "run `pusl fuse` again"),
            gzip.open(self._path, "rt", encoding="utf-8") as stream,
        ):
            rows = [json.loads(line) for line in stream]
            return [(row["id"], row["text"], row["keyphrases"]) for row in rows]

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._all[index]
