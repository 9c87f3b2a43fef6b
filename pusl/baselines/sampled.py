"""TF-IDF rows + many rare labels -> their SVMs, each from the rows that matter to it.

With its bias fixed at -1, a rare label's SVM has no loss on rows that share no word with its items, and the
solution depends only on the rows inside the margin. So it starts with the positives and the rows most
similar to them, solves, adds the worst violators among all rows, and solves again. Many labels are solved
together as one sparse problem with a column per (label, word) pair. docs/reference/handwritten.md compares it with
scikit-learn: 5 times as fast with 37,000 texts, 1.3 times with 5,000.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

COMMON = 0.02  # words in more than this share of the texts do not count as similarity
BIAS = -1.0
SLACK = 0.02  # rows this close to the margin are ignored: their loss is below 0.0004


@dataclass(frozen=True)
class RareLabelSettings:
    """How a rare label's SVM is trained."""

    cost: float
    prune: float
    hard: int = 200  # most similar negatives to start with, and most violators added per round
    rounds: int = 4
    iterations: int = 50


def solve_labels(
    features: sparse.csr_matrix, matrix: sparse.csc_matrix, sampling: RareLabelSettings
) -> sparse.csc_matrix:
    """Pruned weights (V, labels) of all columns of `matrix`; every bias is -1."""
    chosen = similar_rows(features, matrix, sampling.hard)
    single = features.astype(np.float32)
    weights = sparse.csc_matrix((features.shape[1], matrix.shape[1]))
    for number in range(sampling.rounds):
        if number:
            chosen = [
                np.concatenate([old, new])
                for old, new in zip(chosen, violators(single, weights, chosen, sampling.hard), strict=True)
            ]
        last = number + 1 == sampling.rounds
        iterations = sampling.iterations if last else sampling.iterations // 2  # enough to find the violators
        weights = solve_chosen(features, matrix, chosen, sampling.cost, iterations)
    weights.data[np.abs(weights.data) < sampling.prune] = 0
    weights.eliminate_zeros()
    return weights.astype(np.float32)


def similar_rows(features: sparse.csr_matrix, matrix: sparse.csc_matrix, count: int) -> list[np.ndarray]:
    """For each label its positives, then the `count` (or three per positive) rows most similar to them."""
    shares = np.bincount(features.indices, minlength=features.shape[1]) / features.shape[0]
    telling = sparse.csr_matrix(features @ sparse.diags((shares <= COMMON).astype(features.dtype)))
    telling.eliminate_zeros()
    near = ((matrix.T @ telling) @ telling.T).tocsr()  # (labels, n)
    chosen = []
    for label in range(matrix.shape[1]):
        positive = matrix.indices[matrix.indptr[label] : matrix.indptr[label + 1]]
        span = slice(near.indptr[label], near.indptr[label + 1])
        fresh = ~np.isin(near.indices[span], positive)
        index, data = near.indices[span][fresh], near.data[span][fresh]
        chosen.append(np.concatenate([positive, _largest(index, data, max(count, 3 * len(positive)))]))
    return chosen


def violators(
    features: sparse.csr_matrix, weights: sparse.csc_matrix, chosen: list[np.ndarray], count: int
) -> list[np.ndarray]:
    """For each label the worst rows inside the margin that its problem does not contain yet."""
    # A dense product is faster although the weights are sparse: some words occur in most rows.
    scores = np.ascontiguousarray((features @ weights.toarray().astype(np.float32)).T)  # (labels, n)
    found = []
    for row, rows in zip(scores, chosen, strict=True):
        row[rows] = 0
        index = np.flatnonzero(row > SLACK)
        found.append(_largest(index, row[index], max(count, len(rows))))
    return found


def _largest(index: np.ndarray, data: np.ndarray, count: int) -> np.ndarray:
    return index if len(index) <= count else index[np.argpartition(-data, count)[:count]]


def solve_chosen(
    features: sparse.csr_matrix, matrix: sparse.csc_matrix, chosen: list[np.ndarray], cost: float, iterations: int
) -> sparse.csc_matrix:
    """Weights (V, labels) when label l is trained on the rows `chosen[l]` (its positives first)."""
    rows = np.concatenate(chosen)
    owner = np.repeat(np.arange(len(chosen)), [len(part) for part in chosen])
    positives = np.diff(matrix.indptr)
    place = np.concatenate([np.arange(len(part)) for part in chosen])
    sign = np.where(place < positives[owner], 1.0, -1.0)
    block = features[rows]
    key = np.repeat(owner, np.diff(block.indptr)).astype(np.int64) * features.shape[1] + block.indices
    keys, pair = np.unique(key, return_inverse=True)
    problem = sparse.csr_matrix((block.data, pair, block.indptr), shape=(len(rows), len(keys)))
    found = squared_hinge(problem, sign, cost, iterations)
    words, labels = keys % features.shape[1], keys // features.shape[1]
    return sparse.csc_matrix((found, (words, labels)), shape=(features.shape[1], len(chosen)))


def squared_hinge(problem: sparse.csr_matrix, sign: np.ndarray, cost: float, iterations: int) -> np.ndarray:
    """min ½‖w‖² + C Σ max(0, 1 − y_i (w·x_i − 1))² by accelerated gradient steps, one step size per column.

    1 + 2C Σ_i |x_ij| ‖x_i‖₁ bounds the curvature (diagonal dominance), so steps never overshoot.
    """
    transposed = problem.T.tocsr()
    sizes = np.asarray(abs(problem).sum(axis=1)).ravel()
    step = 1 / (1 + 2 * cost * (abs(transposed) @ sizes))
    weights = ahead = np.zeros(problem.shape[1])
    momentum = 1.0
    for _ in range(iterations):
        short = np.maximum(0, 1 - sign * (problem @ ahead + BIAS))
        moved = ahead - step * (ahead - transposed @ (2 * cost * sign * short))
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / following * (moved - weights)
        weights, momentum = moved, following
    return weights
