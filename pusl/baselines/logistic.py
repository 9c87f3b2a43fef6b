"""TF-IDF rows + incomplete labels -> linear logistic models, with a loss that accounts for missing labels.

A right label l is observed with probability p_l. `plain` takes the observed labels as complete. `unbiased`
(Schultheis et al. 2022): −(ỹ/p) log f − (1 − ỹ/p) log(1 − f); its mean over the missing labels is the loss on
complete labels. It equals log(1 + e^z) − (ỹ/p) z, so it is convex, but it is unbounded below for a label whose
items can be separated; the L2 penalty and early stopping prevent that. `pejl` and `pejl-alternating` are told no
propensities: they are learned first (pejl.py), from 0.5, then all labels are trained with them by the joint loss
−ỹ log(p f) − (1 − ỹ) log(1 − p f), or by the unbiased one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.special import expit, logit
from tqdm.auto import tqdm

from pusl.baselines.label_matrix import TrainingData
from pusl.baselines.label_propensities import MODELS, label_propensities
from pusl.baselines.model import Baseline, Ranking, top_k
from pusl.baselines.parallel import run_parallel
from pusl.baselines.pejl import learn_propensities
from pusl.baselines.tfidf import Tfidf, TfidfConfig
from pusl.config import option
from pusl_eval.files import InputError
from pusl_eval.flags import parameters

LOSSES = ("plain", "unbiased", "pejl", "pejl-alternating")
HELD_OUT = 0.1  # share of the items that decide when to stop
BLOCK = 512  # labels trained together; limits memory


@dataclass
class LogisticConfig(TfidfConfig):
    loss: str = option(
        "plain",
        "plain, unbiased (given propensities), pejl or pejl-alternating (learned propensities; the alternating form "
        "underestimates them)",
        choices=LOSSES,
    )
    propensity: str = option("jpv", "propensities of the unbiased loss", choices=MODELS)
    propensity_a: float = option(0.55, "a of the jpv propensity model", minimum=0)
    propensity_b: float = option(1.5, "b of the jpv propensity model", minimum=0)
    propensity_parameters: str = option("", "the propensity model's parameters, e.g. beta=2 gamma=0.4 (power)")
    unbiased: str | None = option(
        None, "items with complete labels: the numbers of jpv, power or richards are fitted to them; they give direct"
    )
    hierarchy: str | None = option(None, "file with `label TAB parent` lines, for --propensity hierarchy")
    pejl_labels: int = option(100, "pejl: labels whose propensity is learned from their own items", minimum=3)
    early_stopping: bool = option(
        False, "hold out a tenth of the items and keep the epoch with the lowest loss on them"
    )
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


def loss_value(loss: str, logits: np.ndarray, observed: np.ndarray, p: np.ndarray) -> float:
    """The summed loss.

    >>> round(loss_value("unbiased", np.array([[0.0]]), np.array([[1.0]]), np.array([0.5])), 4)  # -2 ln .5 + ln .5
    0.6931
    """
    if loss in ("plain", "unbiased"):
        share = observed / p if loss == "unbiased" else observed
        return float(np.sum(np.logaddexp(0, logits) - share * logits))
    seen = np.clip(p * expit(logits), 1e-12, 1 - 1e-9)
    return -float(np.sum(observed * np.log(seen) + (1 - observed) * np.log1p(-seen)))


def fit_logistic(
    features: sparse.csr_matrix, observed: sparse.csr_matrix, p: np.ndarray, config: LogisticConfig
) -> Fitted:
    """AdaGrad on mini-batches under fixed propensities; only the words of a batch move."""
    loss = "unbiased" if config.loss == "pejl-alternating" else config.loss
    draw = np.random.default_rng(config.seed)
    n, m = observed.shape
    held = np.zeros(0, np.int64)
    used = np.arange(n)
    if config.early_stopping and n >= 10:
        mixed = np.random.default_rng([config.seed, 1]).permutation(n)
        held, used = np.sort(mixed[: int(HELD_OUT * n)]), np.sort(mixed[int(HELD_OUT * n) :])
    weights = np.zeros((features.shape[1], m), np.float32)
    squares = np.full_like(weights, 1e-8)
    shares = np.asarray(observed[used].sum(axis=0)).ravel() / len(used)
    bias = logit(np.clip(shares / p, 1e-6, 0.9)).astype(np.float32)
    bias_squares = np.full(m, 1e-2, np.float32)
    best, least = Fitted(weights.copy(), bias.copy(), p), np.inf
    for _ in range(config.epochs):
        order = used[draw.permutation(len(used))]
        for start in range(0, len(used), config.batch):
            rows = order[start : start + config.batch]
            block, target = features[rows], observed[rows].toarray()
            words = np.unique(block.indices)
            block = block[:, words]
            slope, _ = loss_slopes(loss, block @ weights[words] + bias, target, p)
            slope = (slope / len(rows)).astype(np.float32)
            step = block.T @ slope + config.l2 * weights[words]
            squares[words] += step**2
            weights[words] -= config.rate * step / np.sqrt(squares[words])
            total = slope.sum(axis=0)
            bias_squares += total**2
            bias -= config.rate * total / np.sqrt(bias_squares)
        if len(held):
            error = loss_value(loss, features[held] @ weights + bias, observed[held].toarray(), p)
            if error >= least:
                return best
            best, least = Fitted(weights.copy(), bias.copy(), p), error
    return Fitted(weights, bias, p)


def _fit_block(
    features: sparse.csr_matrix, observed: sparse.csr_matrix, p: np.ndarray, config: LogisticConfig
) -> tuple[sparse.csc_matrix, np.ndarray, np.ndarray]:
    fitted = fit_logistic(features, observed, p, config)
    fitted.weights[np.abs(fitted.weights) < config.prune] = 0
    return sparse.csc_matrix(fitted.weights), fitted.bias, fitted.propensities


class Logistic(Baseline):
    """Scores are probabilities: with the loss plain that a label is observed, with the others that it is right.

    PEJL is a published method that learns, with the model, how probably a right label is observed.
    """

    Config = LogisticConfig
    weights: sparse.csr_matrix  # (V, m)
    bias: np.ndarray  # (m,)
    propensities: np.ndarray  # (m,)

    def _fit(self, data: TrainingData) -> None:
        self.tfidf = Tfidf(self.config.ngrams, self.config.min_count)
        features = self.tfidf.fit(data.texts)
        p = self._propensities(data, features)
        by_label = data.matrix.tocsc()
        spans = [slice(start, start + BLOCK) for start in range(0, len(data.labels), BLOCK)]
        tasks = [(features, by_label[:, span].tocsr(), p[span], self.config) for span in spans]
        done = list(tqdm(run_parallel(_fit_block, tasks, self.config.jobs), "logistic", len(tasks), disable=None))
        self.weights = sparse.csr_matrix(sparse.hstack([weights for weights, _, _ in done], "csr"))
        self.bias = np.concatenate([bias for _, bias, _ in done])
        self.propensities = np.concatenate([found for _, _, found in done])

    def _propensities(self, data: TrainingData, features: sparse.csr_matrix) -> np.ndarray:
        config = self.config
        if config.loss != "unbiased":
            for flag, changed in (
                ("--unbiased", config.unbiased is not None), ("--hierarchy", config.hierarchy is not None),
                ("--propensity", config.propensity != "jpv"),
                ("--propensity-parameters", bool(config.propensity_parameters)),
            ):  # fmt: skip
                if changed:
                    raise InputError(f"{flag} gives propensities to --loss unbiased; --loss is '{config.loss}'")
        if config.loss == "plain":
            return np.ones(len(data.labels))
        if config.loss == "unbiased":
            given = parameters(config.propensity_parameters)
            if config.propensity == "jpv" and not given:
                given = {"a": config.propensity_a, "b": config.propensity_b}
            return label_propensities(data, config.propensity, given, config.unbiased, config.hierarchy)
        form = "joint" if config.loss == "pejl" else "alternating"
        learned = learn_propensities(
            features.astype(np.float64), data.matrix, form, config.pejl_labels, config.seed, config.jobs
        )
        logging.getLogger(__name__).info(f"{config.loss}: {learned.summary()}")
        return learned.p

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
