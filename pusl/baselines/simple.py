"""Label counts, or the labels of similar texts -> a ranking: two simple baselines that every system should beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from pusl.baselines.label_matrix import TrainingData
from pusl.baselines.model import Baseline, Ranking, top_k, top_sparse
from pusl.baselines.tfidf import Tfidf
from pusl.config import option


@dataclass
class FrequencyConfig:
    """The frequency baseline has no options."""


class Frequency(Baseline):
    """Score of a label = share of training items that have it."""

    Config = FrequencyConfig
    shares: np.ndarray  # (m,)

    def _fit(self, data: TrainingData) -> None:
        self.shares = data.frequencies / len(data.texts)

    def rank(self, texts: Sequence[str], k: int) -> Ranking:
        ids, scores = top_k(self.shares[None, :], k)
        return np.repeat(ids, len(texts), axis=0), np.repeat(scores, len(texts), axis=0)

    def _save(self, folder: Path) -> None:
        np.save(folder / "shares.npy", self.shares)

    def _load(self, folder: Path) -> None:
        self.shares = np.load(folder / "shares.npy")


@dataclass
class NeighborsConfig:
    neighbors: int = option(20, "number of similar training texts that vote", minimum=1)
    ngrams: int = option(1, "longest word sequence used as a feature", minimum=1)


class Neighbors(Baseline):
    """Score of a label = its share of the neighbors' votes, each vote weighted by cosine similarity.

    A text that shares no word with the training texts has no neighbor and gets no label.
    """

    Config = NeighborsConfig

    def _fit(self, data: TrainingData) -> None:
        self.tfidf = Tfidf(self.config.ngrams)
        self.features = self.tfidf.fit(data.texts)  # (n, V)
        self.matrix = data.matrix

    def rank(self, texts: Sequence[str], k: int) -> Ranking:
        queries = self.tfidf.transform(texts)
        features = self.features.T.tocsr()
        votes = []
        for start in range(0, len(texts), 256):
            similar = (queries[start : start + 256] @ features).tocsr()  # (256, n)
            votes.append(_keep_largest(similar, self.config.neighbors) @ self.matrix)  # (256, m)
        return top_sparse(sparse.vstack(votes, "csr"), k)

    def _save(self, folder: Path) -> None:
        self.tfidf.save(folder)
        sparse.save_npz(folder / "features.npz", self.features)
        sparse.save_npz(folder / "matrix.npz", self.matrix)

    def _load(self, folder: Path) -> None:
        self.tfidf = Tfidf.load(folder)
        self.features = sparse.load_npz(folder / "features.npz").tocsr()
        self.matrix = sparse.load_npz(folder / "matrix.npz").tocsr()


def _keep_largest(similar: sparse.csr_matrix, count: int) -> sparse.csr_matrix:
    """The `count` largest entries of each row, scaled to sum to 1; ties go to the earlier training item."""
    columns, values, pointers = [], [], [0]
    for row in range(similar.shape[0]):
        span = slice(similar.indptr[row], similar.indptr[row + 1])
        index, data = similar.indices[span], similar.data[span]
        best = np.lexsort((index, -data))[:count]
        columns.append(index[best])
        values.append(data[best] / max(float(data[best].sum()), 1e-12))
        pointers.append(pointers[-1] + len(best))
    return sparse.csr_matrix((np.concatenate(values), np.concatenate(columns), pointers), shape=similar.shape)
