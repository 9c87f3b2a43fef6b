"""A data folder -> the tables of the study on measures beyond precision: coverage, its price, and the head labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pusl.baselines.label_matrix import read_training
from pusl.baselines.plt import Plt, PltConfig
from pusl.baselines.predict import prediction_rows
from pusl.examples import read_examples
from pusl.rerank import rerank
from pusl_eval.files import make_folder, write_rows
from pusl_eval.normalize import normalize
from tables.classifiers import KS, SMALL, predictions, scores
from tables.registry import Row, Work, declare

COVERAGE = "Coverage"
BETAS = (0.0, 0.25, 0.5, 1.0)
BOUND = 2.0
HEADS = (0.02, 0.1, 0.3, 1.0)  # share of the labels that are kept, most frequent first


def draw(rows: Sequence[Row], figure: Any) -> None:
    """P@5 against Cov@5, COV-PLT's points joined."""
    axes = figure.add_subplot()
    line = sorted((row["Cov@5"], row["P@5"]) for row in rows if str(row["system"]).startswith("cov-plt"))
    axes.plot(*zip(*line, strict=True), color="gray", linewidth=0.8, zorder=0)
    for row in rows:
        axes.scatter(row["Cov@5"], row["P@5"], label=str(row["system"]), s=25)
    axes.set(xlabel="Cov@5 (%)", ylabel="P@5 (%)")
    axes.legend(fontsize=8, loc="lower left")


@declare(
    "coverage-table1", source=COVERAGE, item="Table 1", picture=draw,
    shows="label tree, PS-PLT, COV-PLT by searching the tree, and bounded random selection, at 1, 3 and 5",
    note="COV-PLT chooses anew for every k. `looked at`: labels per item whose probability the search needed. Seconds: "
    "training and ranking, for the COV-PLT and BRS rows ranking only.",
)  # fmt: skip
def systems(work: Work) -> list[Row]:
    """One row per system."""
    seed = work.seeds((0,))[0]
    rows: list[Row] = []
    for system in ("plt", "ps-plt"):
        path, seconds = predictions(work, system, seed)
        cell = work.cell(system, lambda path=path: scores(work, path))  # type: ignore[misc]
        rows.append({"system": system, **_columns(cell), "looked at": None, "seconds": seconds})
    for beta in BETAS[:2] if work.smoke else BETAS:
        cell = work.cell(f"cov-plt {beta}", lambda beta=beta: _tree_row(work, beta, seed))  # type: ignore[misc]
        rows.append({"system": f"cov-plt β={beta:g}", **cell})
    source, _ = predictions(work, "plt", seed)
    cell = work.cell("brs", lambda: _reranked(work, source, lambda k: {"objective": "brs", "bound": BOUND}))
    rows.append({"system": f"brs b={BOUND:g}", **cell})
    return rows


def _columns(found: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}@{k}": found[f"{name}@{k}"] for name in ("P", "PSP", "macro F1", "Cov") for k in KS}


def _tree(work: Work, seed: int) -> Plt:
    """The label tree, trained once per folder."""
    from pusl.baselines.model import load_baseline, save_baseline

    folder = work.shared / "classifiers" / f"plt-model-{seed}"
    if not (folder / "baseline.json").exists():
        model = Plt(PltConfig(seed=seed, **(SMALL["plt"] if work.smoke else {})))
        model.fit(read_training(work.file("train")))
        save_baseline(folder, "plt", model)
    loaded = load_baseline(folder, "plt")
    assert isinstance(loaded, Plt)
    return loaded


def _tree_row(work: Work, beta: float, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    looked, began = [], time.perf_counter()
    items = list(read_examples(work.file("test"), labeled=False))
    for k in KS:
        model = _tree(work, seed)
        model.config.coverage_beta = beta
        path = work.out / f"cov-plt-{beta:g}-{k}.jsonl"
        write_rows(path, prediction_rows(model, items, k), force=True)
        looked.append(model.coverage.fetched / max(1, model.coverage.items))
        found |= scores(work, path, (k,))
    spent = time.perf_counter() - began
    return {**_columns(found), "looked at": float(np.mean(looked)), "seconds": spent / len(KS)}


def _reranked(work: Work, source: Path, plan: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Scores of candidates chosen anew for every k."""
    found: dict[str, Any] = {}
    began = time.perf_counter()
    for k in KS:
        settings = plan(k)
        path = work.out / f"{'-'.join(str(value) for value in settings.values())}-{k}.jsonl"
        make_folder(path.parent)
        rerank(source, path, k, force=True, **settings)
        found |= scores(work, path, (k,))
    return {**_columns(found), "looked at": None, "seconds": (time.perf_counter() - began) / len(KS)}


@declare(
    "coverage-table2", source=COVERAGE, item="Table 2",
    shows="precision and coverage in one number: a least P@k, a weighted sum, the harmonic mean",
    note="β is chosen by the tree's own probabilities among its 100 best candidates. `F(P, Cov)`: harmonic mean of the "
    "measured values. A least precision is a share of what plain ranking promises.",
)  # fmt: skip
def balances(work: Work) -> list[Row]:
    """One row per way to choose β."""
    from pusl.balance import expected, gather
    from pusl_eval.records import read_predictions

    source, _ = predictions(work, "plt", work.seeds((0,))[0])
    plain = gather((list(p.keyphrases), np.array(p.scores or [])) for p in read_predictions(source))
    promised = {k: work.cell(f"promised {k}", lambda k=k: expected(plain, k, 1e6)[0]) for k in KS}  # type: ignore[misc]
    plans: dict[str, Callable[[int], dict[str, Any]]] = {"top k": lambda k: {"beta": 1e6}}
    for share in (0.99, 0.95, 0.9):
        plans[f"P@k ≥ {share:g} of the most"] = lambda k, share=share: {"min_precision": share * promised[k]}  # type: ignore[misc]
    for weight in (0.25, 0.5, 0.75):
        plans[f"{weight:g} P + {1 - weight:g} Cov"] = lambda k, weight=weight: {"precision_weight": weight}  # type: ignore[misc]
    plans["harmonic mean"] = lambda k: {"harmonic": True}
    rows: list[Row] = []
    for name, plan in plans.items():
        cell = work.cell(name, lambda plan=plan: _reranked(work, source, plan))  # type: ignore[misc]
        both = {k: (cell[f"P@{k}"], cell[f"Cov@{k}"]) for k in KS}
        columns = {f"{m}@{k}": cell[f"{m}@{k}"] for m in ("P", "Cov", "macro F1") for k in KS}
        means = {f"F(P, Cov)@{k}": 2 * p * c / (p + c) if p + c else 0.0 for k, (p, c) in both.items()}
        rows.append({"chosen by": name, **columns, **means})
    return rows


@declare(
    "coverage-table3", source=COVERAGE, item="Table 3",
    shows="the head is enough for precision: the tree trained on the most frequent labels only",
    note="Scores count all labels of the test items. Seconds: training and ranking.",
)  # fmt: skip
def heads(work: Work) -> list[Row]:
    """One row per share of the labels that training keeps."""
    data = read_training(work.file("train"))  # most frequent first
    rows: list[Row] = []
    for share in HEADS[1:] if work.smoke else HEADS:
        count = max(2, round(share * len(data.labels)))
        train = work.shared / "classifiers" / f"head-{count}.jsonl"
        if share < 1 and not train.exists():
            kept = {normalize(label) for label in data.labels[:count]}
            examples = (
                {"id": one.id, "text": one.text, "keyphrases": [p for p in one.keyphrases if normalize(p) in kept]}
                for one in read_examples(work.file("train"))
            )
            write_rows(train, examples, force=True)
        settings = {"train": train} if share < 1 else {}
        path, seconds = predictions(work, "plt", work.seeds((0,))[0], **settings)
        cell = work.cell(str(count), lambda path=path: scores(work, path))  # type: ignore[misc]
        occurrences = 100 * data.frequencies[:count].sum() / data.frequencies.sum()
        rows.append({
            "labels kept": count, "% of labels": 100 * count / len(data.labels),
            "% of occurrences": float(occurrences), **_columns(cell), "seconds": seconds,
        })  # fmt: skip
    return rows
