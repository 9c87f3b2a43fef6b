"""Label frequencies -> the probability that a right label was observed at all.

Models of p_l from a training file of n items, n_l of them with label l, π_l = n_l / n (docs/reference/metrics.md).
Every p is clipped to [SMALLEST, 1]. With `prior` α > 0, π_l is replaced by (n_l + α) / (n + α), which
keeps labels that training never saw away from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pusl_eval.files import InputError

Floats = NDArray[np.float64]
SMALLEST = 1e-6  # 1/p must stay finite; a label this rare says more about the model than about the label
PARAMETERS: dict[str, tuple[str, ...]] = {
    "jpv": ("a", "b"),
    "power": ("beta", "gamma"),
    "richards": ("c", "d", "e", "f", "g", "h"),
    "direct": (),
    "none": (),
}
DEFAULTS: dict[str, dict[str, float]] = {"jpv": {"a": 0.55, "b": 1.5}, "direct": {}, "none": {}}
# Where the fit starts: the best of several starts is kept, because the error of a curve has many valleys.
_STARTS: dict[str, list[dict[str, float]]] = {
    "jpv": [{"a": 0.55, "b": 1.5}, {"a": 0.2, "b": 0.5}, {"a": 1.0, "b": 5.0}],
    "power": [{"beta": 1.0, "gamma": 0.5}, {"beta": 10.0, "gamma": 0.25}, {"beta": 1.0, "gamma": 1.0}],
    "richards": [
        {"c": 0.0, "d": 1.0, "e": 1.0, "f": rise, "g": rate, "h": bend}
        for rise in (1.0, 10.0, 100.0)
        for rate in (10.0, 100.0, 1000.0)
        for bend in (0.5, 1.0, 4.0)
    ],
}
_FREE = ("c", "d")  # the only parameters that may be 0 or negative
_BOUNDS = {"c": (-1.0, 1.0), "d": (-1.0, 2.0), "h": (0.05, 20.0)}  # of the fit; the others: 1e-6 to 1e6


def propensities(
    counts: ArrayLike, n: int, model: str = "jpv", parameters: Mapping[str, float] | None = None, prior: float = 0.0
) -> Floats:
    """p_l for labels with the given training counts.

    jpv:      1 / (1 + C exp(-a ln(n_l + b))), C = (ln n - 1)(b + 1)^a
    power:    (beta π_l)^gamma
    richards: c + (d - c) / (e + f exp(-g π_l))^(1/h)
    none:     1

    >>> propensities([0, 10, 1000], 10_000).round(3).tolist()  # by hand for 10: C = 13.59, p = 1/(1 + 3.55)
    [0.084, 0.22, 0.767]
    >>> propensities([0, 25], 100, "power", {"beta": 1, "gamma": 0.5}, prior=1).round(3).tolist()
    [0.1, 0.507]
    """
    checked = check_parameters(model, parameters)
    if n < 1:
        raise InputError("propensities need at least one training item")
    found = np.asarray(counts, np.float64)
    if prior:
        found = n * (found + prior) / (n + prior)
    return _clip(_FORMULAS[model](found, n, checked))


def direct(
    counts: ArrayLike, n: int, unbiased: ArrayLike, n_unbiased: int, control: float = 1.0, prior: float = 0.0
) -> Floats:
    """p_l = π_l(train) p^c / π_l(unbiased set), where the unbiased set was labeled with probability p^c.

    A label that the unbiased set lacks has no estimate and gets 1.

    >>> direct([5, 30], 100, [10, 30], 100).tolist()
    [0.5, 1.0]
    """
    if not 0 < control <= 1:
        raise InputError(f"the control probability is {control}; expected a number above 0 and at most 1")
    if n < 1 or n_unbiased < 1:
        raise InputError("direct propensities need at least one item in the training and in the unbiased set")
    biased = (np.asarray(counts, np.float64) + prior) / (n + prior)
    truth = (np.asarray(unbiased, np.float64) + prior) / (n_unbiased + prior)
    return _clip(np.divide(biased * control, truth, out=np.ones_like(truth), where=truth > 0))


def fit(
    counts: ArrayLike, n: int, target: ArrayLike, model: str = "jpv", start: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Parameters of a model by least squares on 1/p against estimates `target`.

    Every start is followed downhill within bounds, and the best end is kept. `start` adds a start of the caller's.

    >>> counts = np.array([1, 5, 20, 100, 400])
    >>> truth = propensities(counts, 1000, "power", {"beta": 2, "gamma": 0.4})
    >>> found = fit(counts, 1000, truth, "power")
    >>> round(found["beta"], 3), round(found["gamma"], 3)
    (2.0, 0.4)
    """
    from scipy.optimize import least_squares

    if model not in _STARTS:
        raise InputError(f"propensity model {model!r} has no parameters to fit; choose {', '.join(_STARTS)}")
    names = PARAMETERS[model]
    found, wanted = np.asarray(counts, np.float64), 1 / _clip(np.asarray(target, np.float64))
    if len(found) < len(names):
        raise InputError(
            f"fitting {model} needs at least {len(names)} labels that occur in both sets; found {len(found)}"
        )

    def unpack(vector: Sequence[float] | Floats) -> dict[str, float]:
        return {
            name: float(v if name in _FREE else math.exp(min(v, 50))) for name, v in zip(names, vector, strict=True)
        }

    def residuals(vector: Floats) -> Floats:
        with np.errstate(all="ignore"):  # a step may go too far; the clip makes it a bad one
            guess = _FORMULAS[model](found, n, unpack(vector))
        return 1 / _clip(np.nan_to_num(guess, nan=SMALLEST)) - wanted

    def pack(parameters: Mapping[str, float]) -> list[float]:
        return [parameters[name] if name in _FREE else math.log(parameters[name]) for name in names]

    limits = {name: _BOUNDS.get(name, (1e-6, 1e6)) for name in names}
    low, high = (pack({name: limits[name][side] for name in names}) for side in (0, 1))
    starts = [*_STARTS[model], *([{**_STARTS[model][0], **start}] if start else [])]

    def descend(begin: Floats, steps: int) -> Any:
        return least_squares(residuals, begin, bounds=(low, high), x_scale="jac", max_nfev=steps)

    tried = sorted((descend(np.clip(pack(begin), low, high), 25) for begin in starts), key=lambda end: float(end.cost))
    ends = [descend(end.x, 1000) for end in tried[:3]]  # only the most promising starts are followed to the end
    return unpack(min(ends, key=lambda end: float(end.cost)).x)


def check_parameters(model: str, parameters: Mapping[str, float] | None) -> dict[str, float]:
    """The model's parameters, defaults filled in; an InputError names what is missing or unknown."""
    if model not in PARAMETERS:
        raise InputError(f"propensity model {model!r} is unknown; allowed: {', '.join(PARAMETERS)}")
    names = PARAMETERS[model]
    merged = {**DEFAULTS.get(model, {}), **(parameters or {})}
    unknown = [name for name in merged if name not in names]
    if unknown:
        expected = ", ".join(names) or "none"
        raise InputError(f"propensity model '{model}' has no parameter '{unknown[0]}'; its parameters: {expected}")
    missing = [name for name in names if name not in merged]
    if missing:
        raise InputError(
            f"propensity model '{model}' needs {', '.join(f'{name}=NUMBER' for name in missing)} "
            "in --propensity-parameters, or --unbiased FILE to fit them"
        )
    for name, value in merged.items():
        if not math.isfinite(value) or (name not in _FREE and value <= 0):
            raise InputError(f"propensity parameter {name} is {value}; expected a positive number")
    return merged


def _jpv(counts: Floats, n: int, p: Mapping[str, float]) -> Floats:
    scale = (math.log(n) - 1) * np.float64(p["b"] + 1) ** p["a"]  # overflows to inf while a fit explores
    return np.asarray(1 / (1 + scale * np.exp(-p["a"] * np.log(counts + p["b"]))))


def _power(counts: Floats, n: int, p: Mapping[str, float]) -> Floats:
    return np.asarray((p["beta"] * counts / n) ** p["gamma"])


def _richards(counts: Floats, n: int, p: Mapping[str, float]) -> Floats:
    base = p["e"] + p["f"] * np.exp(-p["g"] * counts / n)
    return np.asarray(p["c"] + (p["d"] - p["c"]) / base ** (1 / p["h"]))


def _one(counts: Floats, n: int, p: Mapping[str, float]) -> Floats:
    return np.ones_like(counts)


_FORMULAS: dict[str, Callable[[Floats, int, Mapping[str, float]], Floats]] = {
    "jpv": _jpv,
    "power": _power,
    "richards": _richards,
    "none": _one,
}


def _clip(p: NDArray[Any]) -> Floats:
    return np.clip(np.asarray(p, np.float64), SMALLEST, 1.0)
