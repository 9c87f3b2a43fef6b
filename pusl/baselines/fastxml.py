"""TF-IDF rows + labels -> trees whose splits make the labels easy to rank on both sides (FastXML).

Prabhu and Varma, KDD 2014. A node splits its items into two sides. Each side has one ranking of the
labels; a split is good if every item's labels rank high on its side (nDCG). The split alternates:
(1) given the sides, the best ranking of a side sorts labels by their nDCG-weighted counts; (2) given the
rankings, an item moves to the side that ranks its labels better; (3) a sparse linear separator learns to
predict the side from the words, and with `rounds` > 1 items that it gets wrong may change sides. Leaves
hold label shares; the forest predicts their mean, a probability.

All nodes of one depth are split at once: a (node, label) or (node, word) pair is one column of one large
sparse problem. A tree then takes about a hundred passes over the data instead of thousands of small fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.special import expit
from tqdm.auto import tqdm

from pusl.baselines.label_matrix import TrainingData
from pusl.baselines.model import Baseline, Ranking, top_sparse
from pusl.baselines.tfidf import Tfidf, TfidfConfig
from pusl.config import option


@dataclass
class FastXmlConfig(TfidfConfig):
    trees: int = option(30, "trees in the forest", minimum=1)
    leaf_size: int = option(10, "a node with at most this many items is not split", minimum=1)
    cost: float = option(4.0, "C of the separators; larger values follow the nDCG split more closely", minimum=1e-6)
    rounds: int = option(2, "separator fits per node; after each but the last, items may change sides", minimum=1)
    iterations: int = option(60, "gradient steps of a separator fit", minimum=1)


def discounts(count: int) -> np.ndarray:
    """1/log2(1 + rank) of ranks 1..count."""
    return 1 / np.log2(np.arange(2, count + 2))


@dataclass
class Pairs:
    """The entries of a sparse matrix whose rows belong to nodes, with one number per (node, column) pair."""

    row: np.ndarray  # (entries,)
    pair: np.ndarray  # (entries,)
    value: np.ndarray  # (entries,)
    node: np.ndarray  # (pairs,) ascending
    column: np.ndarray  # (pairs,)
    rows: int

    @classmethod
    def of(cls, matrix: sparse.csr_matrix, node_of_row: np.ndarray) -> Pairs:
        """Pairs in order of node, then column."""
        row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        key = node_of_row[row].astype(np.int64) * matrix.shape[1] + matrix.indices
        keys, pair = np.unique(key, return_inverse=True)
        return cls(row, pair, matrix.data, keys // matrix.shape[1], keys % matrix.shape[1], matrix.shape[0])

    def per_pair(self, of_row: np.ndarray) -> np.ndarray:
        """Σ over rows of value · of_row, for each pair."""
        return np.bincount(self.pair, self.value * of_row[self.row], len(self.node))

    def per_row(self, of_pair: np.ndarray) -> np.ndarray:
        """Σ over pairs of value · of_pair, for each row."""
        return np.bincount(self.row, self.value * of_pair[self.pair], self.rows)


def ndcg_weights(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """Each row divided by its ideal DCG, so that rows @ (1/log2(1 + rank)) are nDCG values.

    >>> np.round(ndcg_weights(sparse.csr_matrix(np.array([[1, 1, 0], [1, 0, 0]], float))).toarray(), 3).tolist()
    [[0.613, 0.613, 0.0], [1.0, 0.0, 0.0]]
    """
    counts = np.diff(matrix.indptr)
    ideal = np.concatenate([[1.0], np.cumsum(discounts(int(counts.max(initial=1))))])[counts]
    weighted = matrix.astype(np.float64)
    weighted.data = weighted.data / np.repeat(ideal, counts)
    return weighted


def best_gains(labels: Pairs, side: np.ndarray) -> np.ndarray:
    """Each pair's discount under its node's nDCG-optimal ranking of the rows in `side`; 0 for absent labels."""
    totals = labels.per_pair(side)  # (pairs,)
    order = np.argsort(labels.node - totals / (totals.max(initial=0) + 1), kind="stable")
    first = np.searchsorted(labels.node, labels.node)  # where the pair's node begins
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(1, len(order) + 1)
    return np.where(totals > 0, 1 / np.log2(1 + rank - first), 0.0)


def split_values(labels: Pairs, right: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Sum of nDCG per node when each side ranks its labels as well as one ranking can. `nodes`: node of each row."""
    gains = [labels.per_row(best_gains(labels, side)) * side for side in (right, ~right)]
    return np.bincount(nodes, gains[0] + gains[1])


def ndcg_split(labels: Pairs, right: np.ndarray, penalty: np.ndarray | None = None, rounds: int = 20) -> np.ndarray:
    """Alternates rankings and sides from a first guess until no item moves; `split_values` never fall.

    `penalty` (rows,) is the cost of a row on the right instead of the left (the separator's loss).
    """
    for _ in range(rounds):
        better = labels.per_row(best_gains(labels, right) - best_gains(labels, ~right))
        if penalty is not None:
            better = better - penalty
        moved = np.where(np.abs(better) < 1e-12, right, better > 0)
        if (moved == right).all():
            break
        right = moved
    return right


def separate(words: sparse.csr_matrix, right: np.ndarray, cost: float, iterations: int) -> np.ndarray:
    """Sparse weights; the sign of w·x predicts the side: min ‖w‖₁ + C Σ log(1 + exp(−δ w·x)).

    Accelerated proximal gradient with one step size per column, 1/(C/4 Σ_i |x_ij| ‖x_i‖₁): a majorizer that lets
    rare words take large steps. With one step size for all, the most common word would slow down every column.
    """
    transposed = words.T.tocsr()
    sizes = np.asarray(abs(words).sum(axis=1)).ravel()
    step = 1 / np.maximum(cost / 4 * (abs(transposed) @ sizes), 1e-9)
    sign = np.where(right, 1.0, -1.0)
    weights = ahead = np.zeros(words.shape[1])
    momentum = 1.0
    for _ in range(iterations):
        slope = transposed @ (-cost * sign * expit(-sign * (words @ ahead)))
        moved = ahead - step * slope
        moved = np.sign(moved) * np.maximum(np.abs(moved) - step, 0)
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / following * (moved - weights)
        weights, momentum = moved, following
    return weights


@dataclass
class Tree:
    """Node i is a leaf if `left[i]` is -1; its label shares are row `leaf[i]` of `shares`."""

    left: np.ndarray  # (nodes,)
    right: np.ndarray  # (nodes,)
    leaf: np.ndarray  # (nodes,)
    weights: sparse.csr_matrix  # (nodes, V + 1), the last column is the bias
    shares: sparse.csr_matrix  # (leaves, m)

    def leaves(self, features: sparse.csr_matrix) -> np.ndarray:
        """The row of `shares` that each row of features (bias column included) falls into."""
        at = np.zeros(features.shape[0], np.int64)
        moving = np.flatnonzero(self.left[at] >= 0)
        while len(moving):
            node = at[moving]
            margin = np.asarray(features[moving].multiply(self.weights[node]).sum(axis=1)).ravel()
            at[moving] = np.where(margin > 0, self.right[node], self.left[node])
            moving = moving[self.left[at[moving]] >= 0]
        return self.leaf[at]


def grow_tree(features: sparse.csr_matrix, matrix: sparse.csr_matrix, config: FastXmlConfig, seed: int) -> Tree:
    """One tree, level by level. `features` (n, V + 1) carries the bias column; `matrix` (n, m) is 0/1."""
    draw = np.random.default_rng(seed)
    weighted = ndcg_weights(matrix)
    at = np.zeros(matrix.shape[0], np.int64)  # the node of each item
    left = [-1]
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # node, column, weight of the separators
    level = np.array([0])
    while len(level):
        level = level[np.bincount(at, minlength=len(left))[level] > config.leaf_size]
        number = np.full(len(left), -1)
        number[level] = np.arange(len(level))
        rows = np.flatnonzero(number[at] >= 0)
        if not len(rows):
            break
        node = number[at[rows]]
        words, weights, goes_right = split_level(features[rows], weighted[rows], node, config, draw)
        sides = np.stack([np.bincount(node[side], minlength=len(level)) for side in (~goes_right, goes_right)])
        done = sides.min(axis=0) > 0  # a node that its words cannot split becomes a leaf
        kept = (weights != 0) & done[words.node]
        parts.append((level[words.node[kept]], words.column[kept], weights[kept]))
        child = np.full(len(level), -1)
        child[done] = len(left) + 2 * np.arange(done.sum())
        for parent, first in zip(level[done].tolist(), child[done].tolist(), strict=True):
            left[parent] = first
        left.extend([-1] * (2 * int(done.sum())))
        moving = done[node]
        at[rows[moving]] = child[node[moving]] + goes_right[moving]
        level = np.arange(len(left) - 2 * int(done.sum()), len(left))
    return _pack(np.array(left), at, parts, matrix, features.shape[1])


def split_level(
    features: sparse.csr_matrix,
    weighted: sparse.csr_matrix,
    node: np.ndarray,
    config: FastXmlConfig,
    draw: np.random.Generator,
) -> tuple[Pairs, np.ndarray, np.ndarray]:
    """(node, word) pairs, their separator weights, and the side of each row."""
    labels = Pairs.of(weighted, node)
    words = Pairs.of(features, node)
    block = sparse.csr_matrix((words.value, words.pair, features.indptr), shape=(len(node), len(words.node)))
    right = ndcg_split(labels, draw.random(len(node)) < 0.5)
    for number in range(config.rounds):
        weights = separate(block, right, config.cost, config.iterations)
        margin = block @ weights
        if number + 1 < config.rounds:
            # log(1 + exp(-m)) - log(1 + exp(m)) = -m
            right = ndcg_split(labels, right, -config.cost * margin)
    return words, weights, margin > 0


def _pack(left: np.ndarray, at: np.ndarray, parts: list, matrix: sparse.csr_matrix, width: int) -> Tree:
    right = np.where(left >= 0, left + 1, -1)
    leaf = np.where(left < 0, np.cumsum(left < 0) - 1, -1)
    node, column, weight = (
        np.concatenate([part[i] for part in parts]) if parts else np.zeros(0, int) for i in range(3)
    )
    weights = sparse.csr_matrix((weight.astype(np.float32), (node, column)), shape=(len(left), width))
    counts = np.bincount(leaf[at], minlength=int((left < 0).sum()))
    member = sparse.csr_matrix((1 / counts[leaf[at]], (leaf[at], np.arange(len(at)))), shape=(len(counts), len(at)))
    return Tree(left, right, leaf, weights, sparse.csr_matrix(member @ matrix, dtype=np.float32))


class FastXml(Baseline):
    """Score of a label = its mean share in the leaves an item falls into."""

    Config = FastXmlConfig

    def _fit(self, data: TrainingData) -> None:
        from pusl.baselines.parallel import run_parallel

        self.tfidf = Tfidf(self.config.ngrams, self.config.min_count)
        features = with_bias(self.tfidf.fit(data.texts))
        tasks = [
            (features, data.matrix, self.config, self.config.seed * 100_003 + tree) for tree in range(self.config.trees)
        ]
        grown = run_parallel(grow_tree, tasks, self.config.jobs)
        self.trees = list(tqdm(grown, desc="fastxml", total=self.config.trees, unit=" trees", disable=None))

    def rank(self, texts: Sequence[str], k: int) -> Ranking:
        features = with_bias(self.tfidf.transform(texts))
        total = sparse.csr_matrix((len(texts), len(self.labels)), dtype=np.float32)
        for tree in self.trees:
            total = total + tree.shares[tree.leaves(features)]
        return top_sparse(total / len(self.trees), k)

    def _save(self, folder: Path) -> None:
        self.tfidf.save(folder)
        for number, tree in enumerate(self.trees):
            np.savez(folder / f"tree{number}.npz", left=tree.left, right=tree.right, leaf=tree.leaf)
            sparse.save_npz(folder / f"weights{number}.npz", tree.weights)
            sparse.save_npz(folder / f"shares{number}.npz", tree.shares)

    def _load(self, folder: Path) -> None:
        self.tfidf = Tfidf.load(folder)
        self.trees = []
        for number in range(self.config.trees):
            with np.load(folder / f"tree{number}.npz") as stored:
                left, right, leaf = stored["left"], stored["right"], stored["leaf"]
            weights = sparse.load_npz(folder / f"weights{number}.npz").tocsr()
            shares = sparse.load_npz(folder / f"shares{number}.npz").tocsr()
            self.trees.append(Tree(left, right, leaf, weights, shares))


def with_bias(features: sparse.csr_matrix) -> sparse.csr_matrix:
    """Adds a column of ones, so that a separator can have a threshold."""
    ones = np.ones((features.shape[0], 1), features.dtype)
    return sparse.csr_matrix(sparse.hstack([features, ones], "csr"), dtype=np.float64)
