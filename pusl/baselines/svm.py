"""TF-IDF rows + labels -> one sparse linear SVM per label.

One-vs-all SVMs with squared hinge loss. Frequent labels are solved by scikit-learn's LinearSVC (liblinear's
primal Newton method, which is deterministic), rare ones on working sets of rows (sampled.py). As in DiSMEC,
weights below a threshold are dropped: they are noise, and thousands of dense weight vectors would not fit
into memory. Labels with exactly the same training items share one SVM.
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
from pusl.baselines.model import Baseline, Ranking, top_k
from pusl.baselines.parallel import run_parallel
from pusl.baselines.sampled import BIAS, RareLabelSettings, solve_labels
from pusl.baselines.tfidf import Tfidf, TfidfConfig
from pusl.config import option

CALIBRATION_LABELS = 200
HELD_OUT = 0.1

BLOCK = 200  # rare labels solved together; limits memory

Solution = tuple[sparse.csc_matrix, np.ndarray]  # weights (V, labels) and biases


@dataclass
class SvmConfig(TfidfConfig):
    cost: float = option(1.0, "C of the SVM; larger values fit the training labels more closely", minimum=1e-6)
    prune: float = option(0.01, "weights smaller than this are dropped (DiSMEC's threshold)", minimum=0)
    tolerance: float = option(0.1, "liblinear's stopping tolerance", minimum=1e-9)
    exact_from: int = option(
        100,
        "labels with at least this many items are solved on all rows by liblinear, rarer ones on working sets of rows "
        "(faster, and nearly the same result); 0 = liblinear for all",
        minimum=0,
    )
    calibrate: bool = option(True, "turn margins into probabilities with a sigmoid fitted on held-out training items")


class Svm(Baseline):
    """Scores are calibrated probabilities: sigmoid(a·margin + b), with one a and b for all labels (Platt). So the
    ranking is that of the margins.
    """

    Config = SvmConfig
    weights: sparse.csr_matrix  # (V, m)
    bias: np.ndarray  # (m,)
    platt: tuple[float, float] = (2.0, 0.0)

    def _fit(self, data: TrainingData) -> None:
        self.tfidf = Tfidf(self.config.ngrams, self.config.min_count)
        features = self.tfidf.fit(data.texts).astype(np.float64)
        if self.config.calibrate and len(data.texts) >= 50:
            self.platt = self._calibrate(features, data.matrix.tocsc())
        self.weights, self.bias = self._train(features, data.matrix.tocsc(), "svm")

    def _train(
        self, features: sparse.csr_matrix, matrix: sparse.csc_matrix, title: str
    ) -> tuple[sparse.csr_matrix, np.ndarray]:
        """Weights (V, m) and biases (m,) of all labels."""
        firsts, of_label = np.unique(_column_keys(matrix), return_index=True, return_inverse=True)[1:]
        counts = np.diff(matrix.indptr)[firsts]
        rare = counts < self.config.exact_from
        order = np.concatenate([np.flatnonzero(~rare), np.flatnonzero(rare)])
        tasks: list[tuple] = [(features, matrix[:, firsts[[number]]], self.config) for number in np.flatnonzero(~rare)]
        for part in np.array_split(np.flatnonzero(rare), max(1, -(-int(rare.sum()) // BLOCK))):
            if len(part):
                tasks.append((features, matrix[:, firsts[part]], self.config))
        solved: list[Solution] = []
        with tqdm(desc=title, total=len(firsts), unit=" svm", disable=None) as bar:
            for done in run_parallel(solve, tasks, self.config.jobs):
                solved.append(done)
                bar.update(len(done[1]))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        columns = sparse.csc_matrix(sparse.hstack([weights for weights, _ in solved], "csc"))
        bias = np.concatenate([part for _, part in solved])
        return columns[:, place[of_label]].tocsr(), bias[place[of_label]].astype(np.float32)

    def _calibrate(self, features: sparse.csr_matrix, matrix: sparse.csc_matrix) -> tuple[float, float]:
        """Platt's a and b, from SVMs of some labels (drawn by frequency) trained without a tenth of the items."""
        draw = np.random.default_rng(self.config.seed)
        held = np.zeros(features.shape[0], bool)
        held[draw.permutation(len(held))[: max(1, int(HELD_OUT * len(held)))]] = True
        counts = np.asarray(matrix.sum(axis=0)).ravel()
        size = min(CALIBRATION_LABELS, matrix.shape[1])
        some = np.sort(draw.choice(matrix.shape[1], size, replace=False, p=counts / counts.sum()))
        chosen = matrix[:, some]
        weights, bias = self._train(features[~held], chosen[~held].tocsc(), "calibration")
        margins = (features[held] @ weights).toarray() + bias
        return fit_platt(margins.ravel(), chosen[held].toarray().ravel())

    def rank(self, texts: Sequence[str], k: int) -> Ranking:
        features = self.tfidf.transform(texts)
        parts = []
        for start in range(0, len(texts), 256):
            margins = (features[start : start + 256] @ self.weights).toarray() + self.bias
            numbers, best = top_k(margins, k)
            parts.append((numbers, expit(self.platt[0] * best + self.platt[1])))
        return np.concatenate([numbers for numbers, _ in parts]), np.concatenate([scores for _, scores in parts])

    def _save(self, folder: Path) -> None:
        self.tfidf.save(folder)
        sparse.save_npz(folder / "weights.npz", self.weights)
        np.savez(folder / "rest.npz", bias=self.bias, platt=np.array(self.platt))

    def _load(self, folder: Path) -> None:
        self.tfidf = Tfidf.load(folder)
        self.weights = sparse.load_npz(folder / "weights.npz").tocsr()
        with np.load(folder / "rest.npz") as rest:
            self.bias, self.platt = rest["bias"], tuple(rest["platt"].tolist())


def solve(features: sparse.csr_matrix, matrix: sparse.csc_matrix, config: SvmConfig) -> Solution:
    """The SVMs of some columns: a single frequent label by liblinear, rare ones together on working sets."""
    if matrix.shape[1] > 1 or matrix.nnz < config.exact_from:
        weights = solve_labels(features, matrix, RareLabelSettings(config.cost, config.prune))
        return weights, np.full(matrix.shape[1], BIAS)
    if matrix.nnz in (0, features.shape[0]):  # all items or none: nothing to separate
        return sparse.csc_matrix((features.shape[1], 1), dtype=np.float32), np.array([1.0 if matrix.nnz else -1.0])
    from sklearn.svm import LinearSVC

    target = np.zeros(features.shape[0])
    target[matrix.indices] = 1
    machine = LinearSVC(C=config.cost, dual=False, tol=config.tolerance).fit(features, target)
    kept = np.where(np.abs(machine.coef_) >= config.prune, machine.coef_, 0).astype(np.float32)
    return sparse.csc_matrix(kept.T), machine.intercept_


def _column_keys(matrix: sparse.csc_matrix) -> np.ndarray:
    """One number per column; equal columns have equal numbers."""
    seen: dict[bytes, int] = {}
    spans = zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
    return np.array([seen.setdefault(matrix.indices[a:b].tobytes(), len(seen)) for a, b in spans], np.int64)


def fit_platt(margins: np.ndarray, targets: np.ndarray, steps: int = 50) -> tuple[float, float]:
    """a and b of sigmoid(a·margin + b) by Newton's method on the (smoothed) log loss."""
    positives = float(targets.sum())
    high, low = (positives + 1) / (positives + 2), 1 / (len(targets) - positives + 2)
    goal = np.where(targets > 0, high, low)
    a, b = 1.0, 0.0
    loss = _log_loss(a * margins + b, goal)
    for _ in range(steps):
        chance = expit(a * margins + b)
        slope = chance - goal
        gradient = np.array([slope @ margins, slope.sum()])
        weight = chance * (1 - chance)
        cross = weight @ margins
        hessian = np.array([[weight @ margins**2, cross], [cross, weight.sum()]]) + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while size > 1e-6:
            trial = _log_loss((a - size * step[0]) * margins + b - size * step[1], goal)
            if trial <= loss:
                break
            size /= 2
        else:
            break
        a, b = a - size * step[0], b - size * step[1]
        if loss - trial < 1e-9 * abs(loss):
            break
        loss = trial
    return float(a), float(b)


def _log_loss(logits: np.ndarray, goal: np.ndarray) -> float:
    return float(np.sum(np.logaddexp(0, logits) - goal * logits))
