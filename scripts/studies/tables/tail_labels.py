"""A data folder -> the tables and figures of the study on tail labels: what micro averages hide.

Every closed-vocabulary system by micro and macro averages, by training frequency, and the depth of the encoder under
one vector per text or word-label attention. --model names a pretrained encoder for word-label and doc-vec.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pusl_eval.files import InputError
from pusl_eval.labels import bin_names, bin_of
from pusl_eval.normalize import distinct_forms
from pusl_eval.records import read_references
from tables.classifiers import bins, predictions, repeated, scores
from tables.registry import Row, Work, declare

TAIL = "Tail labels"
SYSTEMS = (
    "frequency", "knn", "svm", "plt", "ps-plt", "logistic", "unbiased", "pejl", "fastxml", "word-label", "doc-vec",
    "attention-xml",
)  # fmt: skip
SEEDED = ("plt", "ps-plt", "fastxml", "word-label", "doc-vec", "attention-xml")  # others give the same every time
SEEDS = (0,)
LAYERS = (1, 2, 4, 0)  # 0: all
COLORS = 10  # in matplotlib's cycle


def _systems(work: Work) -> Sequence[str]:
    return ("frequency", "knn", "svm", "plt") if work.smoke else SYSTEMS


def _runs(work: Work, system: str) -> Sequence[int]:
    return work.seeds(SEEDS) if system in SEEDED else (0,)


@declare(
    "tail-table1", source=TAIL, item="Table 1", shows="labels by training frequency: how long the tail is",
)  # fmt: skip
def frequencies(work: Work) -> list[Row]:
    """Labels and occurrences by bin of training frequency."""
    counts: Counter[str] = Counter()
    for record in read_references(work.file("train")):
        counts.update(distinct_forms(record.keyphrases).keys())
    test: Counter[str] = Counter()
    for record in read_references(work.file("test")):
        test.update(distinct_forms(record.keyphrases).keys())
    names = bin_names()
    rows: list[Row] = []
    every = sorted({*counts, *test})
    number = dict(zip(every, bin_of(np.array([counts[label] for label in every], np.int64)).tolist(), strict=True))
    for place, name in enumerate(names):
        inside = [label for label in every if number[label] == place]
        rows.append({
            "training items": name, "labels": len(inside), "% of labels": 100 * len(inside) / len(every),
            "% of training occurrences": 100 * sum(counts[label] for label in inside) / max(1, counts.total()),
            "% of test occurrences": 100 * sum(test[label] for label in inside) / max(1, test.total()),
        })  # fmt: skip
    return rows


@declare(
    "tail-table3", source=TAIL, item="Table 3",
    shows="every system: precision, micro and macro F1, PSP and coverage at 1, 3 and 5, and its time",
    note="`±`: half the range over --seeds, for systems that depend on a seed. Seconds: training and ranking.",
)  # fmt: skip
def systems(work: Work) -> list[Row]:
    """One row per system."""
    rows: list[Row] = []
    for system in _systems(work):
        found = []
        for seed in _runs(work, system):
            path, seconds = predictions(work, system, seed)
            cell = work.cell(f"{system} {seed}", lambda path=path: scores(work, path))  # type: ignore[misc]
            found.append({**cell, "seconds": seconds})
        rows.append({"system": system, **repeated(found)})
    return rows


def by_bin(work: Work) -> list[Row]:
    """Macro F1@5 of every system by training frequency."""
    rows: list[Row] = []
    for system in _systems(work):
        found = []
        for seed in _runs(work, system):
            path, _ = predictions(work, system, seed)
            found.append(work.cell(f"{system} {seed}", lambda path=path: bins(work, path)))  # type: ignore[misc]
        rows.append({"system": system, **repeated(found)})
    return rows


declare(
    "tail-table4", source=TAIL, item="Table 4", shows="macro F1@5 by the labels' training frequency",
)(by_bin)  # fmt: skip


@declare(
    "tail-table5", source=TAIL, item="Table 5",
    shows="depth of the encoder, and one vector per text against word-label attention; flat and slanted rates",
    note="--model DIR starts from a pretrained encoder; without it the Transformer starts from nothing.",
)  # fmt: skip
def depth(work: Work) -> list[Row]:
    """Systems by depth and by learning rates."""
    rows: list[Row] = []
    pretrained = bool(work.options.model)
    layers = _depths(str(work.options.model)) if pretrained else (1, 2)
    for layer in layers[:1] if work.smoke else layers:
        for system in ("doc-vec", "word-label"):
            for rates in ("slanted", "flat") if pretrained else ("linear",):
                settings: dict[str, Any] = {"encoder_layers": layer} if pretrained else {"layers": layer}
                if rates == "flat":
                    settings |= {"layer_decay": 1.0, "warmup": 0.0}
                path, seconds = predictions(work, system, work.seeds(SEEDS)[0], **settings)
                name = f"{system} {layer} {rates}"
                cell = work.cell(name, lambda path=path: {**scores(work, path, (5,)), **bins(work, path)})  # type: ignore[misc]
                rows.append({"system": system, "layers": layer or "all", "rates": rates, **cell, "seconds": seconds})
    return rows


def _depths(encoder: str) -> list[int]:
    """The depths of LAYERS that a pretrained encoder has, and all of it."""
    from transformers import AutoConfig

    try:
        total = int(AutoConfig.from_pretrained(encoder).num_hidden_layers)
    except (OSError, ValueError) as error:
        raise InputError(f"--model {encoder}: cannot be read ({' '.join(str(error).split())[:100]})") from None
    return [layer for layer in LAYERS if layer < total]


def _look(number: int) -> dict[str, Any]:
    """Color and marker of the nth system; beyond matplotlib's ten colors a square tells two systems apart."""
    return {"color": f"C{number % COLORS}", "marker": "os"[number // COLORS % 2]}


def draw_bins(rows: Sequence[Row], figure: Any) -> None:
    """Macro F1@5 against training frequency, a line per system."""
    axes = figure.add_subplot()
    names = [name for name in bin_names() if any(row.get(name) is not None for row in rows)]
    for number, row in enumerate(rows):
        line = {"markersize": 4, "linewidth": 1.2, "linestyle": "--" if number >= COLORS else "-", **_look(number)}
        axes.plot(names, [row.get(name) or 0.0 for name in names], label=str(row["system"]), **line)
    axes.set(xlabel="training items of the label", ylabel="macro F1@5 (%)")
    figure.legend(loc="outside right upper", fontsize=8)


declare(
    "tail-figure1", source=TAIL, item="Figure 1", shows="macro F1@5 against training frequency", picture=draw_bins,
)(by_bin)  # fmt: skip


def draw_averages(rows: Sequence[Row], figure: Any) -> None:
    """Macro against micro F1@5."""
    axes = figure.add_subplot()
    for number, row in enumerate(rows):
        axes.scatter(row["micro F1@5"], row["macro F1@5"], label=str(row["system"]), s=25, **_look(number))
    axes.set(xlabel="micro F1@5 (%)", ylabel="macro F1@5 (%)")
    figure.legend(loc="outside right upper", fontsize=8)


@declare(
    "tail-figure2", source=TAIL, item="Figure 2", shows="macro against micro F1: systems that look alike differ",
    picture=draw_averages,
)  # fmt: skip
def averages(work: Work) -> list[Row]:
    """Both averages of every system."""
    rows: list[Row] = []
    for system in _systems(work):
        path, _ = predictions(work, system, _runs(work, system)[0])
        cell = work.cell(system, lambda path=path: scores(work, path, (5,)))  # type: ignore[misc]
        rows.append({"system": system, "micro F1@5": cell["micro F1@5"], "macro F1@5": cell["macro F1@5"]})
    return rows
