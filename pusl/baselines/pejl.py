"""Features + incomplete labels -> propensities learned together with the models (PEJL), told nothing about them.

`joint` (Teisseyre et al. 2020): the likelihood of what is observed, −ỹ log(p f) − (1 − ỹ) log(1 − p f), over a
label's weights and its p = sigmoid(h) at once. `alternating` (Zhu et al. 2020): f by the unbiased loss under the
present p, then p by the same loss with the roles exchanged, −(ỹ/f) log p − (1 − ỹ/f) log(1 − p). Its p is the mean of
ỹ/f over all items: too small where f is 0 for most of them, as it is with many labels.

p is only visible where f is close to 1: elsewhere half the chance of a right label and half the chance of
observing it look the same. So each label is solved to the end (L-BFGS; a few epochs of small steps leave p near its
start), and labels with few such items borrow from the others: a law h = c + s·ln(items of the label) is fitted
through all labels, each weighted by what its own items say about p, and every label is pulled toward it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit, logit

from pusl.baselines.parallel import run_parallel

START = 0.5  # the uninformed start of every propensity
PENALTIES = (1e-8, 1e-7, 1e-6, 1e-5, 3e-5, 1e-4)  # L2 penalties to choose from, by the loss on held-out items
WIDEST = 8.0  # |h| beyond this is p = 0 or 1
ITERATIONS = 300
ROUNDS = 10  # of the alternating form
HELD_OUT = 0.2
TRIALS = 8  # labels that choose the penalty
FEWEST = 10  # items of a label whose own propensity is looked for
VISIBLE = 0.005  # share by which learned propensities must lower the held-out loss to be believed
FORMS = ("joint", "alternating")

Features: TypeAlias = Any  # an array or a sparse matrix, (n, V)


@dataclass
class JointFit:
    """One label's model: sigmoid(features @ weights + bias), observed with the chance sigmoid(hidden)."""

    weights: np.ndarray  # (V,)
    bias: float
    hidden: float
    information: float = 0.0  # about `hidden`, from this label's items alone


@dataclass(frozen=True)
class Law:
    """h = level + slope · ln(share of the items that have the label), and how far labels lie from it."""

    level: float
    slope: float
    variance: float

    def hidden(self, shares: np.ndarray) -> np.ndarray:
        """h of labels that the given share of the items have."""
        return np.clip(self.level + self.slope * np.log(shares), -WIDEST, WIDEST)


def joint_loss(observed: np.ndarray, logits: np.ndarray, p: float) -> tuple[float, np.ndarray, float]:
    """Mean of −ỹ log(p f) − (1 − ỹ) log(1 − p f), and its slopes by the logits of f and by the logit of p.

    >>> value, _, by_p = joint_loss(np.array([1.0, 0.0]), np.array([0.0, 0.0]), 0.5)  # p f = 1/4
    >>> round(value, 4), round(by_p, 4)  # (ln 4 + ln 4/3) / 2, and (1 - p)(-1 + (1/4)/(3/4)) / 2
    (0.837, -0.1667)
    """
    chance = expit(logits)
    seen = np.clip(p * chance, 1e-12, 1 - 1e-9)
    value = -float(np.mean(np.where(observed > 0, np.log(seen), np.log1p(-seen))))
    rest = np.where(observed > 0, -1.0, seen / (1 - seen))
    return value, (1 - chance) * rest / len(observed), float((1 - p) * rest.mean())


def fit_joint(
    features: Features,
    observed: np.ndarray,
    penalty: float,
    hidden: float | None = None,
    start: JointFit | None = None,
) -> JointFit:
    """Weights and propensity of one label by the joint loss; a given `hidden` stays as it is."""
    free = hidden is None
    if start is None:
        h = logit(START) if hidden is None else hidden
        bias = float(logit(np.clip(observed.mean() / expit(h), 1e-6, 0.9)))
        start = JointFit(np.zeros(features.shape[1]), bias, h)
    held = start.hidden if hidden is None else hidden

    def loss(vector: np.ndarray) -> tuple[float, np.ndarray]:
        weights = vector[:-2]
        p = float(expit(vector[-1] if free else held))
        value, slope, by_p = joint_loss(observed, features @ weights + vector[-2], p)
        gradient = np.concatenate([features.T @ slope + penalty * weights, [slope.sum(), by_p if free else 0.0]])
        return value + 0.5 * penalty * float(weights @ weights), gradient

    bounds = [(None, None)] * (features.shape[1] + 1) + [(-WIDEST, WIDEST)]
    begin = np.concatenate([start.weights, [start.bias, held]])
    end = minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": ITERATIONS}).x
    found = JointFit(end[:-2], float(end[-2]), float(end[-1]))
    found.information = information(features @ found.weights, found)
    return found


def information(scores: np.ndarray, found: JointFit) -> float:
    """What the items say about h once the level and the steepness of f are allowed to give way.

    The Fisher information about h minus the part that a shift or a scaling of the logits could explain as well. It is
    0 if f stays small everywhere, and (1 − p)·p per item if f is 1.
    """
    chance, p = expit(scores + found.bias), float(expit(found.hidden))
    seen = np.clip(p * chance, 1e-12, 1 - 1e-9)
    by = np.column_stack([np.full_like(chance, 1 - p), 1 - chance, (1 - chance) * scores]) * seen[:, None]
    fisher = by.T @ (by / (seen * (1 - seen))[:, None])  # (3, 3): h, shift, scale
    rest = fisher[1:, 1:] + 1e-9 * np.eye(2)
    return max(0.0, float(fisher[0, 0] - fisher[0, 1:] @ np.linalg.solve(rest, fisher[1:, 0])))


def fit_alternating(features: Features, observed: np.ndarray, penalty: float) -> JointFit:
    """Weights and propensity of one label, each by its unbiased loss given the other."""
    p = START
    vector = np.zeros(features.shape[1] + 1)
    vector[-1] = logit(np.clip(observed.mean() / p, 1e-6, 0.9))
    for _ in range(ROUNDS):
        target = observed / p

        def loss(vector: np.ndarray, target: np.ndarray = target) -> tuple[float, np.ndarray]:
            logits = features @ vector[:-1] + vector[-1]
            slope = (expit(logits) - target) / len(target)
            gradient = np.append(features.T @ slope + penalty * vector[:-1], slope.sum())
            value = float(np.mean(np.logaddexp(0, logits) - target * logits))
            return value + 0.5 * penalty * float(vector[:-1] @ vector[:-1]), gradient

        # The unbiased loss has no lower end if the label's items can be separated: hence few steps.
        vector = minimize(loss, vector, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS // ROUNDS}).x
        chance = np.maximum(expit(features @ vector[:-1] + vector[-1]), 1e-2)
        p = float(np.clip(np.mean(observed / chance), expit(-WIDEST), expit(WIDEST)))
    return JointFit(vector[:-1], float(vector[-1]), float(logit(p)), float(observed.sum()))


def fit_law(hidden: np.ndarray, weight: np.ndarray, shares: np.ndarray) -> Law:
    """The law through labels whose h is known with the given information; its variance by the method of moments.

    >>> law = fit_law(np.array([0.0, -1.0, -2.0]), np.array([50.0, 50.0, 50.0]), np.exp([-1.0, -2.0, -3.0]))
    >>> round(law.level, 3), round(law.slope, 3), round(law.variance, 3)
    (1.0, 1.0, 0.0)
    """
    known = weight > 1e-6
    if known.sum() < 3:
        return Law(float(logit(START)), 0.0, 0.0)
    h, w, columns = hidden[known], weight[known], np.column_stack([np.ones(known.sum()), np.log(shares[known])])
    variance = 0.0
    for _ in range(20):
        total = w / (1 + variance * w)  # 1 / (own variance + the law's)
        level, slope = np.linalg.lstsq(columns * np.sqrt(total)[:, None], h * np.sqrt(total), rcond=None)[0]
        residual = h - columns @ np.array([level, slope])
        excess = float(np.sum(total * residual**2) - (len(h) - 2))
        spread = float(np.sum(total**2 / total.sum()))
        variance = max(0.0, variance + excess / max(total.sum() - spread, 1e-9))
    return Law(float(level), float(slope), variance)


def pull(hidden: np.ndarray, weight: np.ndarray, shares: np.ndarray, law: Law) -> np.ndarray:
    """Each label's h between its own and the law's, by what is known of either."""
    trust = law.variance * weight / (1 + law.variance * weight)
    return trust * hidden + (1 - trust) * law.hidden(shares)


@dataclass
class Learned:
    """What the measured labels say, and the propensity of every label."""

    measured: np.ndarray  # label numbers
    own: np.ndarray  # (measured,) p by each label's items alone
    p: np.ndarray  # (labels,)
    law: Law
    penalty: float
    fits: list[JointFit]
    loss: float  # of the joint form on held-out items, of some labels
    loss_complete: float  # the same with p = 1: no better model means that p is not visible in these data

    def summary(self) -> str:
        """One line for people."""
        low, middle, high = np.quantile(self.p[self.measured], [0.1, 0.5, 0.9])
        gain = (self.loss_complete - self.loss) / self.loss_complete if self.loss_complete > 0 else 0.0
        text = f"propensities learned from {len(self.measured)} labels: {low:.2f} to {high:.2f}, median {middle:.2f}; "
        text += f"held-out joint loss {self.loss:.5f}, with all propensities 1 {self.loss_complete:.5f}"
        if gain < VISIBLE:
            text += "; no better, so these texts do not show what is missing: do not read the propensities as facts"
        return text


def learn_propensities(
    features: Features,
    observed: sparse.csr_matrix,
    form: str = "joint",
    labels: int = 100,
    seed: int = 0,
    jobs: int = 1,
) -> Learned:
    """Propensities of all labels, from up to `labels` of them that have at least FEWEST items."""
    by_label = observed.tocsc()
    counts = np.diff(by_label.indptr)
    n = observed.shape[0]
    order = np.argsort(-counts, kind="stable")
    usable = order[: max(3, int((counts >= FEWEST).sum()))]
    measured = usable[np.unique(np.linspace(0, len(usable) - 1, min(labels, len(usable))).round().astype(int))]
    shares = (counts + 0.5) / (n + 1)
    trial = measured[np.unique(np.linspace(0, len(measured) - 1, min(TRIALS, len(measured))).astype(int))]
    penalty, loss, complete = choose_penalty(features, [column(by_label, label) for label in trial], seed)
    tasks = [
        (features, by_label[:, part], penalty, form) for part in np.array_split(measured, max(1, len(measured) // 8))
    ]
    fits = [found for part in run_parallel(_fit_labels, tasks, jobs) for found in part]
    hidden = np.array([found.hidden for found in fits])
    weight = np.array([found.information for found in fits])
    law = fit_law(hidden, weight, shares[measured])
    every = law.hidden(shares)
    every[measured] = pull(hidden, weight, shares[measured], law)
    return Learned(measured, expit(hidden), expit(every), law, penalty, fits, loss, complete)


def column(by_label: sparse.csc_matrix, label: int) -> np.ndarray:
    """One label's 0/1 column, dense."""
    return np.asarray(by_label[:, [label]].toarray(), np.float64).ravel()


def _fit_labels(features: Features, by_label: sparse.csc_matrix, penalty: float, form: str) -> list[JointFit]:
    fit = fit_joint if form == "joint" else fit_alternating
    return [fit(features, column(by_label, label), penalty) for label in range(by_label.shape[1])]


def choose_penalty(features: Features, columns: Sequence[np.ndarray], seed: int = 0) -> tuple[float, float, float]:
    """The L2 penalty with the smallest joint loss on held-out items, that loss, and the same model's with p = 1."""
    held = np.random.default_rng(seed).random(features.shape[0]) < HELD_OUT
    rest = features[~held]
    some = [one for one in columns if one[~held].any()]
    if not (held.any() and some):
        return PENALTIES[-1], 0.0, 0.0  # too few items to compare anything

    def error(penalty: float, hidden: float | None = None) -> float:
        total = 0.0
        for one in some:
            found = fit_joint(rest, one[~held], penalty, hidden)
            total += joint_loss(one[held], features[held] @ found.weights + found.bias, float(expit(found.hidden)))[0]
        return total / max(1, len(some))

    errors = {penalty: error(penalty) for penalty in PENALTIES}
    best = min(errors, key=errors.__getitem__)
    return best, errors[best], min(error(penalty, WIDEST) for penalty in PENALTIES)
