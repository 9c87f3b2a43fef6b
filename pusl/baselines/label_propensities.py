"""Training labels + the user's choice of a model -> the propensity of every label, for losses that need it.

The models are those of `pusl evaluate`: jpv, power and richards with given parameters, or fitted to an unbiased
file; `direct` takes the unbiased file's estimates themselves. `hierarchy` needs no unbiased file: an item that has a
label should have the label's ancestors too, so the share of those that have them estimates an ancestor's propensity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from pusl.baselines.label_matrix import TrainingData
from pusl_eval.files import InputError, check_input, read_lines
from pusl_eval.normalize import distinct_forms, normalize
from pusl_eval.propensity import check_parameters, direct, fit, propensities
from pusl_eval.records import read_references

MODELS = ("jpv", "power", "richards", "direct", "hierarchy", "none")
FITTED = ("jpv", "power", "richards")
FEWEST = 5  # items with a descendant that an ancestor needs for an estimate


def label_propensities(
    data: TrainingData,
    model: str,
    parameters: Mapping[str, float],
    unbiased: str | None = None,
    hierarchy: str | None = None,
) -> np.ndarray:
    """p of every label, (m,)."""
    n, counts = len(data.texts), data.frequencies
    if model in ("direct", "hierarchy") and parameters:
        raise InputError(f"--propensity-parameters: '{model}' has none")
    if unbiased is not None and model not in (*FITTED, "direct"):
        raise InputError(f"--unbiased is for --propensity {', '.join((*FITTED, 'direct'))}, not '{model}'")
    if hierarchy is not None and model != "hierarchy":
        raise InputError("--hierarchy is for --propensity hierarchy")
    if model == "hierarchy":
        if hierarchy is None:
            raise InputError("--propensity hierarchy needs --hierarchy FILE with `label TAB parent` lines")
        estimates, known = ancestor_propensities(data.matrix, ancestors(hierarchy, data.labels))
        return complete_by_law(counts, n, estimates, known, hierarchy)
    if unbiased is not None:
        truth, size = unbiased_counts(unbiased, data.labels)
        estimates = direct(counts, n, truth, size)
        if model == "direct":
            return np.asarray(estimates)
        both = truth > 0
        parameters = fit(counts[both], n, estimates[both], model, parameters)
    elif model == "direct":
        raise InputError("--propensity direct needs --unbiased FILE, items whose labels are complete")
    return np.asarray(propensities(counts, n, model, check_parameters(model, parameters)))


def unbiased_counts(path: str | Path, labels: Sequence[str]) -> tuple[np.ndarray, int]:
    """Items of an unbiased file that have each label, and how many items it has."""
    index = {normalize(label): number for number, label in enumerate(labels)}
    counts, size = np.zeros(len(labels), np.int64), 0
    for record in read_references(path):
        size += 1
        for key in distinct_forms(record.keyphrases):
            if key in index:
                counts[index[key]] += 1
    if not counts.any():
        raise InputError(f"{path}: has none of the training labels; propensities need labels that both files have")
    return counts, size


def ancestors(path: str | Path, labels: Sequence[str]) -> list[set[int]]:
    """`label TAB parent` lines -> for each training label the numbers of its ancestors that are training labels."""
    parents: dict[str, set[str]] = {}
    for number, line in read_lines(check_input(path)):
        if not line.strip():
            continue
        cells = line.rstrip("\n").split("\t")
        if len(cells) != 2 or not all(cell.strip() for cell in cells):
            raise InputError(f"{path}:{number}: expected `label TAB parent`, found {line.strip()[:60]!r}")
        parents.setdefault(normalize(cells[0]), set()).add(normalize(cells[1]))
    index = {normalize(label): number for number, label in enumerate(labels)}
    found = []
    for label in index:
        above: set[str] = set()
        left = [label]
        while left:
            for parent in parents.get(left.pop(), ()):
                if parent not in above and parent != label:
                    above.add(parent)
                    left.append(parent)
        found.append({index[one] for one in above if one in index})
    if not any(found):
        raise InputError(f"{path}: no training label has an ancestor among the training labels")
    return found


def ancestor_propensities(matrix: sparse.csr_matrix, above: Sequence[set[int]]) -> tuple[np.ndarray, np.ndarray]:
    """p of an ancestor = items with it and a descendant / items with a descendant; and on how many items it rests.

    >>> matrix = sparse.csr_matrix(np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]))  # animal, cat, dog
    >>> p, items = ancestor_propensities(matrix, [set(), {0}, {0}])
    >>> round(float(p[0]), 3), int(items[0])  # three items with a cat or a dog, one of them an animal
    (0.333, 3)
    """
    m = matrix.shape[1]
    pairs = [(low, high) for low, over in enumerate(above) for high in over]
    rows, columns = (np.array(part, np.int64) for part in zip(*pairs, strict=True))
    implied = matrix @ sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(m, m))
    implied.data[:] = 1  # (n, m): some descendant is there
    items = np.asarray(implied.sum(axis=0)).ravel()
    both = np.asarray(implied.multiply(matrix > 0).sum(axis=0)).ravel()
    return np.divide(both, items, out=np.ones(m), where=items > 0), items


def complete_by_law(
    counts: np.ndarray, n: int, estimates: np.ndarray, items: np.ndarray, path: str | Path
) -> np.ndarray:
    """Estimates where they rest on enough items; a power law fitted to them gives the other labels' p."""
    known = (items >= FEWEST) & (estimates > 0) & (counts > 0)
    if known.sum() < 2:
        raise InputError(f"{path}: fewer than two ancestors with {FEWEST} items below them; nothing to fit a law to")
    law = propensities(counts, n, "power", fit(counts[known], n, estimates[known], "power"))
    return np.where(known, estimates, law)
