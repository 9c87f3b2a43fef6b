"""TF-IDF rows + incomplete labels -> linear logistic models, with a loss that accounts for missing labels.

A right label l is observed with probability p_l. `plain` takes the observed labels as complete. `unbiased`
(Schultheis et al. 2022): −(ỹ/p) log f − (1 − ỹ/p) log(1 − f); its mean over the missing labels is the loss on
complete labels. It equals log(1 + e^z) − (ỹ/p) z, so it is convex, but it is unbounded below for a label whose
items can be separated; the L2 penalty prevents that. `pejl` learns the propensities with the model:
−ỹ log(p f) − (1 − ỹ) log(1 − p f), p = sigmoid of one parameter per label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.special import expit, logit
from tqdm import tqdm

from pusl.baselines.label_matrix import TrainingData
from pusl.baselines.model import Baseline, Ranking, top_k
from pusl.baselines.parallel import run_parallel
from pusl.baselines.tfidf import Tfidf, TfidfConfig
from pusl.config import option
from pusl_eval.propensity import propensities

LOSSES = ("plain", "unbiased", "pejl")
BLOCK = 512  # labels trained together; limits memory


@dataclass
class LogisticConfig(TfidfConfig):
    loss: str = option("plain", "plain, unbiased (given propensities) or pejl (learned propensities)", choices=LOSSES)
    propensity: str = option("jpv", "propensities of the unbiased loss", choices=("jpv", "none"))
    propensity_a: float = option(0.55, "a of the jpv propensity model", minimum=0)
    propensity_b: float = option(1.5, "b of the jpv propensity model", minimum=0)
    epochs: int = option(8, "passes over the training items", minimum=1)
    batch: int = option(512, "items per step", minimum=1)
    rate: float = option(0.5, "AdaGrad's learning rate", minimum=1e-9)
    l2: float = option(1e-6, "L2 penalty on the weights of the words that occur in a step", minimum=0)
    prune: float = option(0.05, "weights smaller than this are dropped in the end", minimum=0)
    min_count: int = option(2, "texts a word must occur in to be a feature", minimum=1)


@dataclass
class Fitted:
    """The fitted parameters of some labels."""

    weights: np.ndarray  # (V, labels)
    bias: np.ndarray  # (labels,)
    propensities: np.ndarray  # (labels,) given or learned


def loss_slopes(
    loss: str, logits: np.ndarray, observed: np.ndarray, p: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Derivatives of the summed loss by the logits and, for pejl, by the logits of p (summed over items).

    >>> by_z, _ = loss_slopes("unbiased", np.array([[0.0]]), np.array([[1.0]]), np.array([0.5]))
    >>> by_z.tolist()  # sigmoid(0) - 1/0.5
    [[-1.5]]
    """
    chance = expit(logits)
    if loss == "plain":
        return chance - observed, None
    if loss == "unbiased":
        return chance - observed / p, None
    rest = (1 - observed) / np.maximum(1 - p * chance, 1e-6)
    by_logits = (1 - chance) * (rest * p * chance - observed)
    by_p = (1 - p) * (rest * p * chance - observed)
    return by_logits, by_p.sum(axis=0)


def fit_logistic(
    features: sparse.csr_matrix, observed: sparse.csr_matrix, p: np.ndarray, config: LogisticConfig
) -> Fitted:
    """AdaGrad on mini-batches; only the words of a batch move."""
    draw = np.random.default_rng(config.seed)
    n, m = observed.shape
    weights = np.zeros((features.shape[1], m), np.float32)
    squares = np.full_like(weights, 1e-8)
    shares = np.asarray(observed.sum(axis=0)).ravel() / n
    bias = logit(np.clip(shares / p, 1e-6, 0.9)).astype(np.float32)
    bias_squares = np.full(m, 1e-2, np.float32)
    hidden = logit(np.clip(p, 0.05, 0.95)).astype(np.float32)
    hidden_squares = np.full(m, 1e-2, np.float32)
    for _ in range(config.epochs):
        order = draw.permutation(n)
        for start in range(0, n, config.batch):
            rows = order[start : start + config.batch]
            block, target = features[rows], observed[rows].toarray()
            words = np.unique(block.indices)
            block = block[:, words]
            guess = expit(hidden) if config.loss == "pejl" else p
            slope, by_p = loss_slopes(config.loss, block @ weights[words] + bias, target, guess)
            slope = (slope / len(rows)).astype(np.float32)
            step = block.T @ slope + config.l2 * weights[words]
            squares[words] += step**2
            weights[words] -= config.rate * step / np.sqrt(squares[words])
            total = slope.sum(axis=0)
            bias_squares += total**2
            bias -= config.rate * total / np.sqrt(bias_squares)
            if by_p is not None:
                by_p = (by_p / len(rows)).astype(np.float32)
                hidden_squares += by_p**2
                hidden -= 0.1 * config.rate * by_p / np.sqrt(hidden_squares)
    return Fitted(weights, bias, expit(hidden) if config.loss == "pejl" else p)


def _fit_block(
    features: sparse.csr_matrix, observed: sparse.csr_matrix, p: np.ndarray, config: LogisticConfig
) -> tuple[sparse.csc_matrix, np.ndarray, np.ndarray]:
    fitted = fit_logistic(features, observed, p, config)
    fitted.weights[np.abs(fitted.weights) < config.prune] = 0
    return sparse.csc_matrix(fitted.weights), fitted.bias, fitted.propensities


class Logistic(Baseline):
    """One logistic model per label. Scores are probabilities that a label is right, not that it was observed."""

    Config = LogisticConfig
    weights: sparse.csr_matrix  # (V, m)
    bias: np.ndarray  # (m,)
    propensities: np.ndarray  # (m,)

    def _fit(self, data: TrainingData) -> None:
        self.tfidf = Tfidf(self.config.ngrams, self.config.min_count)
        features = self.tfidf.fit(data.texts)
        p = np.ones(len(data.labels))
        if self.config.loss != "plain" and self.config.propensity == "jpv":
            parameters = {"a": self.config.propensity_a, "b": self.config.propensity_b}
            p = propensities(data.frequencies, len(data.texts), "jpv", parameters)
        by_label = data.matrix.tocsc()
        spans = [slice(start, start + BLOCK) for start in range(0, len(data.labels), BLOCK)]
        tasks = [(features, by_label[:, span].tocsr(), p[span], self.config) for span in spans]
        done = list(tqdm(run_parallel(_fit_block, tasks, self.config.jobs), "logistic", len(tasks), disable=None))
        self.weights = sparse.csr_matrix(sparse.hstack([weights for weights, _, _ in done], "csr"))
        self.bias = np.concatenate([bias for _, bias, _ in done])
        self.propensities = np.concatenate([found for _, _, found in done])

    def rank(self, texts: Sequence[str], k: int) -> Ranking:
        features = self.tfidf.transform(texts)
        parts = []
        for start in range(0, len(texts), 256):
            numbers, best = top_k((features[start : start + 256] @ self.weights).toarray() + self.bias, k)
            parts.append((numbers, expit(best)))
        return np.concatenate([numbers for numbers, _ in parts]), np.concatenate([scores for _, scores in parts])

    def _save(self, folder: Path) -> None:
        self.tfidf.save(folder)
        sparse.save_npz(folder / "weights.npz", self.weights)
        np.savez(folder / "rest.npz", bias=self.bias, propensities=self.propensities)

    def _load(self, folder: Path) -> None:
        self.tfidf = Tfidf.load(folder)
        self.weights = sparse.load_npz(folder / "weights.npz").tocsr()
        with np.load(folder / "rest.npz") as rest:
            self.bias, self.propensities = rest["bias"], rest["propensities"]
