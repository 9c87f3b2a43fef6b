"""A data folder or hyper-balls -> the tables and figures of the study on missing labels and propensities.

Where a table needs the truth, labels of the user's data are hidden by a known law: what is left is the training set,
what was there before is the truth. Hyper-balls (propensity.py) have complete labels by construction.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import propensity
from scipy import sparse
from scipy.special import expit

from pusl.baselines.label_matrix import TrainingData, read_training
from pusl.baselines.label_propensities import ancestor_propensities, ancestors
from pusl.baselines.logistic import BLOCK, LogisticConfig, fit_logistic
from pusl.baselines.pejl import learn_propensities
from pusl.baselines.tfidf import Tfidf
from pusl.data.hyperballs import hide
from pusl_eval.evaluation import evaluate
from pusl_eval.files import InputError
from pusl_eval.propensity import direct, fit, propensities
from tables.classifiers import KS, predictions
from tables.registry import Row, Work, declare

MISSING = "Missing labels"
POWER = {"beta": 1.0, "gamma": 0.5}
LAW = {"beta": 4.0, "gamma": 0.35}  # hides labels of real data: a label in 1% of the items is seen in one of three
LABELS = 400  # most frequent labels of real data that are trained and scored
ITEMS = 12_000


def _shape(work: Work) -> argparse.Namespace:
    """Size of the hyper-balls: the source's, or small."""
    small = {"train_items": 1500, "test_items": 500, "labels": 12, "dimensions": 4, "epochs": 2}
    whole = {"train_items": 63_000, "test_items": 30_000, "labels": 100, "dimensions": 10, "epochs": 5}
    return argparse.Namespace(**(small if work.smoke else whole))


@declare(
    "missing-table1", source=MISSING, item="Table 1", digits=3,
    shows="what each propensity model claims about the data: how much is missing",
    note="`if right`: labels per item, the missing ones included, if the model were right (sum of 1/p).",
)  # fmt: skip
def claims(work: Work) -> list[Row]:
    """One row per model."""
    data = read_training(work.file("train"))
    counts, n = data.frequencies, len(data.texts)
    models: dict[str, tuple[str, Mapping[str, float]]] = {
        "none": ("none", {}), "jpv": ("jpv", {}), "jpv, a=.5 b=.4": ("jpv", {"a": 0.5, "b": 0.4}),
        "jpv, a=.6 b=2.6": ("jpv", {"a": 0.6, "b": 2.6}), "power, β=1 γ=.5": ("power", POWER),
    }  # fmt: skip
    rows: list[Row] = []
    for name, (model, parameters) in models.items():
        p = propensities(counts, n, model, parameters)
        rows.append({
            "model": name, "smallest p": float(p.min()), "median p": float(np.median(p)), "largest p": float(p.max()),
            "labels per item": float(counts.sum() / n), "if right": float((counts / p).sum() / n),
        })  # fmt: skip
    return rows


@declare(
    "missing-table3", source=MISSING, item="Table 3",
    shows="one system, several propensity models: PSP@k says what it is told",
    note="P@k on the observed labels. A PSP@k above 100 is impossible for a precision: the model is wrong.",
)  # fmt: skip
def told(work: Work) -> list[Row]:
    """P@k and PSP@k of the systems by propensity model."""
    rows: list[Row] = []
    for system in ("knn", "plt") if work.smoke else ("frequency", "knn", "svm", "plt", "ps-plt"):
        path, _ = predictions(work, system, 0)
        for model, parameters in (("jpv", {}), ("power", POWER)):

            def compute(path: Any = path, model: str = model, parameters: Any = parameters) -> dict[str, float]:
                found = evaluate(
                    work.file("test"), path, k=list(KS), train=work.file("train"), bootstrap=0, propensity=model,
                    propensity_parameters=parameters, prior=1.0,
                )["scores"]["all"]  # fmt: skip
                return {
                    f"{n}@{k}": 100 * float(found[f"{o}@{k}"] or 0) for n, o in (("P", "B"), ("PSP", "PSP")) for k in KS
                }

            rows.append({"system": system, "propensities": model, **work.cell(f"{system} {model}", compute)})
    return rows


def _hidden(work: Work, seed: int = 0) -> tuple[TrainingData, np.ndarray, sparse.csr_matrix]:
    """The most frequent labels of the user's training items, their true propensities, and what is left of them."""
    data = read_training(work.file("train"))
    labels = min(len(data.labels), 40 if work.smoke else LABELS)
    items = min(len(data.texts), ITEMS)
    matrix = data.matrix[:items, :labels].tocsr()
    kept = TrainingData(data.texts[:items], data.labels[:labels], matrix)
    p = propensities(kept.frequencies, items, "power", LAW, prior=1.0)
    draw = np.random.default_rng([seed, 4])
    left = matrix.copy()
    left.data = (draw.random(matrix.nnz) < p[matrix.indices]).astype(np.float32)
    left.eliminate_zeros()
    return kept, p, left


@declare(
    "missing-table4", source=MISSING, item="Table 4", digits=3,
    shows="families fitted to direct estimates on the user's own label frequencies, labels hidden by a known law",
    note="RMSE of p, mean squared error of 1/p. A fifth of the items keeps its labels and gives the direct estimates.",
)  # fmt: skip
def fitted(work: Work) -> list[Row]:
    """One row per family."""

    def compute() -> dict[str, float]:
        kept, p, left = _hidden(work)
        n = len(kept.texts)
        control = np.arange(n) % 5 == 0
        counts = np.asarray(left[~control].sum(axis=0)).ravel()
        truth = np.asarray(kept.matrix[control].sum(axis=0)).ravel()
        usable = (counts > 0) & (truth > 0)
        estimate = direct(counts, int((~control).sum()), truth, int(control.sum()))
        return propensity.errors(counts[usable], int((~control).sum()), estimate[usable], p[usable])

    found = work.cell("errors", compute)
    names = ("direct", *propensity.FAMILIES)
    return [{"family": name, "RMSE of p": found[f"{name} p"], "MSE of 1/p": found[f"{name} 1/p"]} for name in names]


@declare(
    "missing-table5", source=MISSING, item="Table 5",
    shows="hyper-balls: precision on complete labels against PSP@1, by the truth's and the model's propensities",
    note="Mean over --seeds data sets. `r`: correlation of the learned and the true propensities (PEJL, from 0.5).",
)  # fmt: skip
def artificial(work: Work) -> list[Row]:
    """One row per pair of laws."""
    shape = _shape(work)
    found: dict[tuple[str, str], list[Any]] = {}
    for seed in work.seeds((0, 1, 2)):
        for law in ("jpv", "power law"):
            for model in ("none", "jpv", "power law", "PEJL"):
                cell = work.cell(
                    f"{law} {model} {seed}",
                    lambda law=law, model=model, seed=seed: propensity.one_model(shape, law, model, seed),  # type: ignore[misc]
                )
                found.setdefault((law, model), []).append(cell)
    rows: list[Row] = []
    for (law, model), cells in found.items():
        means = {
            column: None if cells[0][column] is None else float(np.mean([cell[column] for cell in cells]))
            for column in cells[0]
        }
        rows.append({"labels hidden by": law, "trained with": model, **_percent(means)})
    return rows


@declare(
    "missing-table6", source=MISSING, item="Table 6",
    shows="logistic models trained with propensities on the user's texts, labels hidden by a known power law",
    note="P@k on the labels before hiding, of held-out items; early stopping. `direct` and `fitted` know the hidden "
    "fifth's complete labels, `true law` knows the law, `jpv` and PEJL know nothing.",
)  # fmt: skip
def trained(work: Work) -> list[Row]:
    """One row per source of propensities."""
    rows: list[Row] = []
    for name in ("none", "jpv", "true law", "direct", "richards, fitted", "power, fitted", "PEJL"):
        cell = work.cell(name, lambda name=name: _train_with(work, name))  # type: ignore[misc]
        rows.append({"propensities": name, **_percent(cell)})
    return rows


def _percent(row: Mapping[str, float | None]) -> dict[str, float | None]:
    """The correlation and the error of p in percent, as the rest of the row."""
    names = {"r": "r (%)", "RMSE of p": "RMSE of p (%)"}
    return {
        names.get(name, name): 100 * value if name in names and value is not None else value
        for name, value in row.items()
    }


def _train_with(work: Work, name: str) -> dict[str, float]:
    kept, p, left = _hidden(work)
    n = len(kept.texts)
    part = np.arange(n) % 5  # 0: complete labels are known to direct and fitted; 1: test; the others train
    control, test, train = part == 0, part == 1, part > 1
    tfidf = Tfidf(1, 2)
    features = tfidf.fit([text for text, use in zip(kept.texts, train, strict=True) if use])
    counts, size = np.asarray(left[train].sum(axis=0)).ravel(), int(train.sum())
    truth = np.asarray(kept.matrix[control].sum(axis=0)).ravel()
    estimate = direct(counts, size, truth, int(control.sum()), prior=1.0)
    guess = np.ones(len(p))
    if name == "jpv":
        guess = propensities(counts, size, "jpv")
    elif name == "true law":
        guess = p
    elif name == "direct":
        guess = estimate
    elif name.endswith("fitted"):
        family, usable = name.split(",")[0], (counts > 0) & (truth > 0)
        guess = propensities(counts, size, family, fit(counts[usable], size, estimate[usable], family), prior=1.0)
    elif name == "PEJL":
        guess = learn_propensities(features.astype(np.float64), left[train], labels=4 if work.smoke else 60).p
    loss = {"none": "plain", "PEJL": "pejl"}.get(name, "unbiased")
    config = LogisticConfig(loss=loss, epochs=2 if work.smoke else 8, early_stopping=True)
    texts = tfidf.transform([text for text, use in zip(kept.texts, test, strict=True) if use])
    by_label, scores = left[train].tocsc(), []
    for start in range(0, len(p), BLOCK):
        span = slice(start, start + BLOCK)
        model = fit_logistic(features, by_label[:, span].tocsr(), guess[span], config)
        scores.append(texts @ model.weights + model.bias)
    complete, seen = kept.matrix[test].toarray(), left[test].toarray()
    best = np.argsort(-np.hstack(scores), axis=1, kind="stable")[:, : max(KS)]
    some = complete.sum(axis=1) > 0
    hits, hits_seen = (np.take_along_axis(part, best, axis=1)[some] for part in (complete, seen))
    row = {f"P@{k}": 100 * float(hits[:, :k].mean()) for k in KS}
    row["PSP@1 (true law)"] = 100 * float((hits_seen[:, 0] / p[best[some, 0]]).mean())
    right = np.zeros(len(p))
    np.add.at(right, best[some], hits)
    asked, there = np.bincount(best[some].ravel(), minlength=len(p)), complete.sum(axis=0)
    row["macro F1@5"] = 100 * float(np.mean(2 * right / np.maximum(1, asked + there)))
    row["RMSE of p"] = propensity.rmse(np.asarray(guess), p)
    row["r"] = float(np.corrcoef(guess, p)[0, 1]) if np.std(guess) > 0 else 0.0
    return row


@declare(
    "missing-table7", source=MISSING, item="Table 7", digits=2,
    shows="which family recovers known propensities: RMSE of p in points, mean squared error of 1/p",
)  # fmt: skip
def families(work: Work) -> list[Row]:
    """One row per true family and error."""
    shape = _shape(work)
    rows: list[Row] = []
    for truth in list(propensity.FAMILIES)[: 1 if work.smoke else None]:
        cells = [
            work.cell(f"{truth} {seed}", lambda truth=truth, seed=seed: propensity.fitting_errors(truth, shape, seed))  # type: ignore[misc]
            for seed in work.seeds((0, 1, 2))
        ]
        for measure, factor in (("p", 100.0), ("1/p", 1.0)):
            values = {
                name: factor * float(np.mean([cell[f"{name} {measure}"] for cell in cells]))
                for name in ("direct", *propensity.FAMILIES)
            }
            rows.append({"true": truth, "error of": measure, **values})
    return rows


def draw_ranks(rows: Sequence[Row], figure: Any) -> None:
    """Frequency against rank, both logarithmic."""
    axes = figure.add_subplot()
    axes.loglog([row["rank"] for row in rows], [row["items"] for row in rows], marker=".", linewidth=0.8)
    axes.set(xlabel="rank of the label", ylabel="training items")


@declare(
    "missing-figure1", source=MISSING, item="Figure 1", shows="the long tail: items by label rank", picture=draw_ranks
)
def ranks(work: Work) -> list[Row]:
    """Some ranks, evenly spread over the logarithm."""
    counts = np.sort(read_training(work.file("train")).frequencies)[::-1]
    places = np.unique(np.geomspace(1, len(counts), 60).round().astype(int))
    return [{"rank": int(place), "items": int(counts[place - 1])} for place in places]


def draw_curves(rows: Sequence[Row], figure: Any) -> None:
    """Propensity against training items: dots for estimates, lines for models."""
    axes = figure.add_subplot()
    ordered = sorted(rows, key=lambda row: row["items"])
    items = [row["items"] for row in ordered]
    axes.scatter(items, [row["estimate"] for row in ordered], s=8, color="gray", label="estimate")
    for name in ordered[0]:
        if name not in ("items", "estimate", "label"):
            axes.plot(items, [row[name] for row in ordered], label=name, linewidth=1)
    axes.set(xscale="log", ylim=(0, 1.05), xlabel="training items of the label", ylabel="propensity")
    axes.legend()


@declare(
    "missing-figure2", source=MISSING, item="Figure 2", digits=3, picture=draw_curves,
    shows="direct estimates on the user's labels after hiding, the true law and the fitted families",
)  # fmt: skip
def curves(work: Work) -> list[Row]:
    """One row per label."""
    kept, p, left = _hidden(work)
    n = len(kept.texts)
    counts, truth = np.asarray(left.sum(axis=0)).ravel(), kept.frequencies
    usable = np.flatnonzero((counts > 0) & (truth > 0))
    usable = usable[np.unique(np.linspace(0, len(usable) - 1, 60).astype(int))]
    estimate = direct(counts, n, truth, n)
    lines = {"true law": p[usable], "jpv, defaults": propensities(counts[usable], n, "jpv")}
    for family in propensity.FAMILIES:
        found = fit(counts[usable], n, estimate[usable], family)
        lines[f"{family}, fitted"] = propensities(counts[usable], n, family, found)
    return [
        {"items": int(counts[label]), "estimate": float(estimate[label]), **{k: float(v[i]) for k, v in lines.items()}}
        for i, label in enumerate(usable)
    ]


@declare(
    "missing-figure3", source=MISSING, item="Figure 3", digits=3, picture=draw_curves,
    shows="propensities from a hierarchy alone: how often an ancestor is there when a descendant is",
    note="hierarchy.tsv (`label TAB parent`) in the data folder; without it a label's ancestors are those that all of "
    "its items have. Labels are hidden by a known power law first.",
)  # fmt: skip
def hierarchy(work: Work) -> list[Row]:
    """One row per ancestor."""
    kept, p, left = _hidden(work) if work.given is not None else _family_tree()
    given = work.data / "hierarchy.tsv"
    above = ancestors(given, kept.labels) if given.is_file() else implied(kept.matrix)
    if not any(above):
        raise InputError(f"{work.data}: no hierarchy.tsv, and no label whose items all have another label")
    estimates, items = ancestor_propensities(left, above)
    counts, n = np.asarray(left.sum(axis=0)).ravel(), len(kept.texts)
    known = np.flatnonzero((items >= 20) & (estimates > 0))
    if len(known) < 2:
        raise InputError(f"{work.data}: fewer than two ancestors with 20 items below them")
    law = propensities(counts[known], n, "power", fit(counts[known], n, estimates[known], "power"))
    rows = zip(known, law, strict=True)
    return [
        {
            "label": kept.labels[label], "items": int(counts[label]), "estimate": float(estimates[label]),
            "true law": float(p[label]), "power, fitted": float(value),
        }
        for label, value in rows
    ]  # fmt: skip


def implied(matrix: sparse.csr_matrix) -> list[set[int]]:
    """For each label the more frequent labels that all of its items have (at least five).

    >>> implied(sparse.csr_matrix(np.array([[1, 1]] * 5 + [[1, 0]])))
    [set(), {0}]
    """
    together = (matrix.T @ matrix).tocsr()
    counts = together.diagonal()
    found: list[set[int]] = []
    for label in range(matrix.shape[1]):
        span = slice(together.indptr[label], together.indptr[label + 1])
        others, both = together.indices[span], together.data[span]
        above = others[(both == counts[label]) & (counts[others] > counts[label]) & (counts[label] >= 5)]
        found.append({int(other) for other in above})
    return found


def _family_tree() -> tuple[TrainingData, np.ndarray, sparse.csr_matrix]:
    """Six parents with three children each, for a smoke run."""
    draw = np.random.default_rng(0)
    children = (draw.random((600, 18)) < expit(draw.normal(-1.5, 0.7, 18))).astype(np.float32)
    parents = np.column_stack([children[:, 3 * i : 3 * i + 3].max(axis=1) for i in range(6)])
    complete = np.hstack([parents, children])
    p = propensities(complete.sum(axis=0), 600, "power", POWER)
    names = [f"parent {i}" for i in range(6)] + [f"child {i}" for i in range(18)]
    data = TrainingData(["text"] * 600, names, sparse.csr_matrix(complete))
    return data, p, sparse.csr_matrix(hide(complete, p, draw))
