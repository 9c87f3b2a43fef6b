"""Settings + what the training file says -> what each label is worth: inverse propensities and the user's weights.

Labels are phrase ids below `label_limit`: those that can be right. Whatever a user should know is added to `notes`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pusl_eval import inputs
from pusl_eval.matching import Vocabulary
from pusl_eval.propensity import SMALLEST, check_parameters, direct, fit, propensities
from pusl_eval.settings import Settings

Floats = NDArray[np.float64]


def inverse_propensities(
    s: Settings, training: inputs.Training | None, vocabulary: Vocabulary, label_limit: int, notes: list[str]
) -> tuple[Floats | None, dict[str, Any]]:
    """1/p of every label that can be right, and how it was found."""
    model = s.propensity or ("jpv" if training else "none")
    if training is None:
        # Without a training file propensities are unknown, unless the user says that there are none.
        found = np.ones(label_limit) if s.propensity == "none" else None
        return found, {"model": s.propensity, "parameters": {}, "prior": s.prior}
    given = dict(s.propensity_parameters or {})
    estimates, fitted = None, False
    if s.unbiased is not None:
        control = inputs.load_training(s.unbiased, vocabulary, "unbiased")
        counts, truth = padded(training.counts, vocabulary.size), padded(control.counts, vocabulary.size)
        estimates = direct(counts, training.n, truth, control.n, s.control_probability, s.prior)
        if model in ("jpv", "power", "richards"):
            both = (counts > 0) & (truth > 0)
            given, fitted = fit(counts[both], training.n, estimates[both], model, given), True
    if model == "direct":
        assert estimates is not None
        p, parameters = estimates[:label_limit], {"control_probability": s.control_probability}
    else:
        parameters = check_parameters(model, given)
        p = propensities(padded(training.counts, label_limit), training.n, model, parameters, s.prior)
    floor = int(np.sum(p <= SMALLEST))
    if floor:
        notes.append(
            f"{floor} of {label_limit} labels have a propensity of 0 under '{model}' (never seen in training) and "
            f"count 1/{SMALLEST:g}; a robust prior (--prior 1) avoids that"
        )
    return 1 / p, {"model": model, "parameters": parameters, "prior": s.prior, "fitted": fitted}


def label_weights(s: Settings, vocabulary: Vocabulary, label_limit: int, notes: list[str]) -> Floats | None:
    """The user's weight of every label that can be right."""
    if s.weights is None:
        return None
    given = inputs.load_weights(s.weights, vocabulary)
    weights = np.full(vocabulary.size + 1, np.nan)  # one more for the blank
    weights[list(given)] = list(given.values())
    lacking = int(np.isnan(weights[:label_limit]).sum())
    if lacking:
        notes.append(f"{lacking} of {label_limit} labels have no weight and count as 0 in weighted P@k")
    return np.asarray(np.nan_to_num(weights[:label_limit], nan=0.0), np.float64)


def rank_weights(s: Settings, vocabulary: Vocabulary, label_limit: int, notes: list[str]) -> Floats | None:
    """The user's weight of every label that can be right, at each rank."""
    if s.rank_weights is None:
        return None
    given = inputs.load_rank_weights(s.rank_weights, vocabulary)
    matrix = np.zeros((label_limit + 1, max(map(len, given.values()))))  # (labels, ranks)
    for label, row in given.items():
        matrix[min(label, label_limit), : len(row)] = row  # the last row takes phrases that can never be right
    lacking = label_limit - sum(0 <= label < label_limit for label in given)
    if lacking:
        notes.append(f"{lacking} of {label_limit} labels have no weights by rank and count as 0 in rank-weighted P@k")
    return matrix


def padded(counts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Exactly `size` entries, zeros added or the rest cut off."""
    return np.concatenate([counts[:size], np.zeros(max(0, size - len(counts)), np.int64)])
