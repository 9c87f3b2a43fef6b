"""Features + which candidates were right -> a ranker; features -> scores and probabilities.

Gradient-boosted trees from scikit-learn, kept as plain arrays: loading a ranker runs no code of a file, and
ranking does not need scikit-learn. Without enough labeled items, reciprocal rank fusion (Cormack et al. 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pusl_eval.errors import damage_refused

FEW = 2000  # right candidates; below, smaller trees do as well or better (cross-validated on dev items)
RANK_OFFSET = 60.0  # the constant of reciprocal rank fusion
ARRAYS = ("starts", "feature", "threshold", "missing_left", "left", "right", "value")
# The more of these, the more probable; keeps trees sensible where dev items are few.
RISING = ("reciprocal_rank", "logprob", "votes", "agreement", "best_rank", "told_largest", "given_if_in_text")


@dataclass
class Trees:
    """Boosted trees as flat arrays; a node with left < 0 is a leaf."""

    base: float
    starts: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """The log-odds of each row. (n,)"""
        out = np.full(len(features), self.base)
        rows = np.ascontiguousarray(features, np.float64)
        _kernel()(rows, *(getattr(self, name) for name in ARRAYS), out)
        return out


def _walk(
    rows: Any, starts: Any, feature: Any, threshold: Any, missing_left: Any, left: Any, right: Any, value: Any, out: Any
) -> None:
    """Adds every tree's leaf value to each row."""
    for row in range(len(rows)):
        for start in starts:
            node = start
            while left[node] >= 0:
                own = rows[row, feature[node]]
                if own != own:
                    node = start + (left[node] if missing_left[node] else right[node])
                else:
                    node = start + (left[node] if own <= threshold[node] else right[node])
            out[row] += value[node]


@cache
def _kernel() -> Callable[..., None]:
    import numba

    compiled: Callable[..., None]
    try:
        compiled = numba.njit(nogil=True, cache=True)(_walk)
    except RuntimeError:
        compiled = numba.njit(nogil=True)(_walk)
    return compiled


def fit_trees(
    features: np.ndarray, right: np.ndarray, names: Sequence[str], weights: np.ndarray | None = None, seed: int = 0
) -> Trees:
    """Trees that tell right candidates from others; the same data give the same trees."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    features = np.where(np.isnan(features).all(0), 0.0, features)  # scikit-learn cannot bin a column without values
    few = right.sum() < FEW
    rising = [int(name.rpartition(":")[2] in RISING) for name in names]
    model = HistGradientBoostingClassifier(
        learning_rate=0.06, max_iter=80 if few else 150, max_leaf_nodes=8 if few else 16, min_samples_leaf=30,
        l2_regularization=5.0, early_stopping=False, random_state=seed, monotonic_cst=rising,
    )  # fmt: skip
    model.fit(features, right.astype(int), weights)
    trees = _flatten(model)
    if not np.allclose(trees(features[:1000]), model.decision_function(features[:1000]), atol=1e-8):
        raise RuntimeError("this version of scikit-learn keeps its trees in another form; install 1.3 to 1.9")
    return trees


def _flatten(model: Any) -> Trees:
    """The trees of a fitted HistGradientBoostingClassifier."""
    nodes = [stage[0].nodes for stage in model._predictors]
    starts = np.cumsum([0, *(len(tree) for tree in nodes[:-1])])
    every = np.concatenate(nodes)
    leaf = every["is_leaf"].astype(bool)
    return Trees(
        float(np.ravel(model._baseline_prediction)[0]),
        starts.astype(np.int64),
        every["feature_idx"].astype(np.int64),
        every["num_threshold"].astype(np.float64),
        every["missing_go_to_left"].astype(np.bool_),
        np.where(leaf, -1, every["left"].astype(np.int64)),
        np.where(leaf, -1, every["right"].astype(np.int64)),
        every["value"].astype(np.float64),
    )


@dataclass
class Ranker:
    """How candidates are ordered. `trees` is None for reciprocal rank fusion, whose scores are no probabilities."""

    names: list[str]  # of the features
    trees: Trees | None = None
    slope: float = 1.0  # Platt's: probability = 1 / (1 + exp(-(slope · log-odds + shift)))
    shift: float = 0.0

    @property
    def learned(self) -> bool:
        """Whether scores are probabilities."""
        return self.trees is not None

    def log_odds(self, features: np.ndarray) -> np.ndarray:
        """What candidates are ordered by. (n,)"""
        if not len(features):
            return np.zeros(0)
        if self.trees is None:
            shares = features[:, [i for i, name in enumerate(self.names) if name.endswith(":reciprocal_rank")]]
            with np.errstate(divide="ignore"):
                return np.where(shares > 0, 1 / (RANK_OFFSET + 1 / shares), 0.0).sum(1)
        return self.slope * self.trees(features) + self.shift

    def probabilities(self, log_odds: np.ndarray) -> np.ndarray:
        """Probabilities of being labeled; reciprocal rank fusion gives its own scores."""
        return 1 / (1 + np.exp(-log_odds)) if self.learned else log_odds

    def save(self, path: Path) -> None:
        """Numbers only."""
        if self.trees is None:
            np.savez(path, names=np.array(self.names))
            return
        arrays = {name: getattr(self.trees, name) for name in ARRAYS}
        line = np.array([self.trees.base, self.slope, self.shift])
        np.savez(path, names=np.array(self.names), line=line, **arrays)

    @classmethod
    def load(cls, path: Path) -> Ranker:
        """What `save` wrote."""
        damage = damage_refused(path, "the ranker of a fused model", "run `pusl fuse` again")
        with damage, np.load(path, allow_pickle=False) as stored:
            names = [str(name) for name in stored["names"]]
            if "line" not in stored:
                return cls(names)
            base, slope, shift = map(float, stored["line"])
            return cls(names, Trees(base, **{name: stored[name] for name in ARRAYS}), slope, shift)


def fit_ranker(
    features: np.ndarray, right: np.ndarray, items: np.ndarray, names: Sequence[str],
    weights: np.ndarray | None = None, folds: int = 5, seed: int = 0,
) -> tuple[Ranker, np.ndarray]:  # fmt: skip
    """A calibrated ranker, and the log-odds of each row by trees that have not seen its item.

    `items` tells which rows belong together: folds are made of whole items.
    """
    held_out = cross_fit(features, right, items, names, weights, folds, seed)
    slope, shift = platt(held_out, right)
    ranker = Ranker(list(names), fit_trees(features, right, names, weights, seed), slope, shift)
    return ranker, slope * held_out + shift


def cross_fit(
    features: np.ndarray, right: np.ndarray, items: np.ndarray, names: Sequence[str],
    weights: np.ndarray | None = None, folds: int = 5, seed: int = 0,
) -> np.ndarray:  # fmt: skip
    """Log-odds of each row by trees fitted on the other folds' items. (n,)"""
    fold = np.random.default_rng(seed).permutation(int(items.max()) + 1)[items] % folds
    out = np.zeros(len(right))
    for number in range(folds):
        inside = fold == number
        own = None if weights is None else weights[~inside]
        out[inside] = fit_trees(features[~inside], right[~inside], names, own, seed)(features[inside])
    return out


def platt(log_odds: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """Slope and shift of the logistic curve that fits best (Newton's method, slope kept positive)."""
    design = np.stack([log_odds, np.ones(len(log_odds))], 1)
    at = np.array([1.0, 0.0])
    for _ in range(50):
        chance = 1 / (1 + np.exp(-design @ at))
        gradient = design.T @ (chance - right) + 1e-3 * (at - [1.0, 0.0])
        hessian = (design * (chance * (1 - chance))[:, None]).T @ design + 1e-3 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        at = at - np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-8:
            break
    return max(float(at[0]), 1e-3), float(at[1])
