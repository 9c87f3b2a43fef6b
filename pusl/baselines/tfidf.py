"""Texts -> sparse TF-IDF rows of unit length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from pusl.config import option
from pusl.words import pairs, words
from pusl_eval.files import InputError, read_json, write_json
from pusl_eval.flags import SEED

MOST_WORDS = 20  # of a sequence that is a feature


@dataclass
class TfidfConfig:
    """Options of every baseline that learns from TF-IDF rows."""

    ngrams: int = option(1, "longest word sequence used as a feature", minimum=1)
    min_count: int = option(1, "texts a word must occur in to be a feature", minimum=1)
    seed: int = option(0, SEED, minimum=0)
    jobs: int = option(0, "processes; 0 = all cores", minimum=0)


class Tfidf:
    """(1 + ln tf) · (ln((1 + n)/(1 + df)) + 1) of words (and word pairs with `ngrams=2`), rows scaled to length 1.

    In scripts without spaces, signs and pairs of signs are the words. Elsewhere these are the values of scikit-learn's
    TfidfVectorizer with `sublinear_tf=True`, stored as JSON instead of a pickle.
    """

    def __init__(self, ngrams: int = 1, min_count: int = 1) -> None:
        if ngrams > MOST_WORDS:
            raise InputError(f"--ngrams {ngrams}: word sequences have at most {MOST_WORDS} words")
        self.ngrams, self.min_count = ngrams, min_count
        self.vocabulary: dict[str, int] = {}
        self.idf = np.zeros(0, np.float32)  # (V,)

    def _terms(self, text: str) -> list[str]:
        found = words(text)
        sequences = [" ".join(found[i : i + n]) for n in range(2, self.ngrams + 1) for i in range(len(found) - n + 1)]
        return found + sequences + pairs(text)

    def fit(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Learns the vocabulary and the document frequencies; returns the texts' rows."""
        documents: Counter[str] = Counter()
        for text in texts:
            documents.update(set(self._terms(text)))
        kept = sorted(term for term, count in documents.items() if count >= self.min_count)
        self.vocabulary = {term: number for number, term in enumerate(kept)}
        counts = np.array([documents[term] for term in kept], np.float64)
        self.idf = (np.log((1 + len(texts)) / (1 + counts)) + 1).astype(np.float32)
        return self.transform(texts)

    def transform(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Rows of unit length; a text without a known word gives an empty row."""
        columns: list[int] = []
        values: list[int] = []
        pointers = [0]
        for text in texts:
            found = Counter(self.vocabulary[term] for term in self._terms(text) if term in self.vocabulary)
            row = sorted(found)
            columns.extend(row)
            values.extend(found[column] for column in row)
            pointers.append(len(columns))
        data = 1 + np.log(np.array(values, np.float32))
        index = np.array(columns, np.int32)
        data *= self.idf[index]
        matrix = sparse.csr_matrix((data, index, pointers), shape=(len(texts), len(self.vocabulary)), dtype=np.float32)
        norms = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
        matrix.data /= np.repeat(np.where(norms > 0, norms, 1), np.diff(matrix.indptr))
        return matrix

    def save(self, folder: Path) -> None:
        """Writes vocabulary and weights as JSON and npy files."""
        terms = sorted(self.vocabulary, key=self.vocabulary.__getitem__)
        write_json(folder / "tfidf.json", {"ngrams": self.ngrams, "min_count": self.min_count, "terms": terms})
        np.save(folder / "idf.npy", self.idf)

    @classmethod
    def load(cls, folder: Path) -> Tfidf:
        """Reads what `save` wrote."""
        stored = read_json(folder / "tfidf.json")
        made = cls(stored["ngrams"], stored["min_count"])
        made.vocabulary = {term: number for number, term in enumerate(stored["terms"])}
        made.idf = np.load(folder / "idf.npy")
        return made
