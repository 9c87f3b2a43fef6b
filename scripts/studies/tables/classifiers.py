"""A data folder -> predictions of the closed-vocabulary systems, their time, and their scores; each computed once.

Predictions are shared by all tables of one --out folder. A system is a baseline of `pusl baseline` with the settings
of tail.py; a smoke run uses smaller ones, and --steps shortens the networks' training.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tail

from pusl.baselines.attention import AttentionConfig
from pusl.baselines.model import baseline_class
from pusl.baselines.predict import run_baseline
from pusl_eval.evaluation import Evaluation, evaluate
from pusl_eval.files import make_folder, write_json
from pusl_eval.records import read_references
from tables.registry import Work

KS = (1, 3, 5)
SMALL: dict[str, dict[str, Any]] = {  # of a smoke run, per baseline
    "svm": {"jobs": 1},
    "plt": {"jobs": 1},
    "logistic": {"epochs": 2, "jobs": 1, "pejl_labels": 4},
    "fastxml": {"trees": 2, "jobs": 1},
    **{name: {"width": 16, "epochs": 1, "length": 16} for name in ("word-label", "doc-vec", "attention-xml")},
}
COLUMNS = {
    "P": "B", "PSP": "PSP", "nDCG": "nDCG", "micro F1": "MicroF1", "macro F1": "MacroF1", "Cov": "Cov",
}  # fmt: skip
NEURAL = ("word-label", "doc-vec")  # those that can start from a pretrained encoder


def predictions(work: Work, system: str, seed: int = 0, **settings: Any) -> tuple[Path, float]:
    """The predictions file of a system of tail.SYSTEMS and the seconds it took; `settings` differ from its own."""
    baseline, usual = tail.SYSTEMS[system]
    chosen: dict[str, Any] = {**(SMALL.get(baseline, {}) if work.smoke else {}), **usual, **settings}
    train = chosen.pop("train", work.file("train"))
    if baseline in NEURAL and work.options.model:
        chosen.setdefault("encoder", work.options.model)
    if work.options.steps and baseline in (*NEURAL, "attention-xml"):
        batch = int(chosen.get("batch", AttentionConfig().batch))
        items = sum(1 for _ in read_references(work.file("train")))
        chosen["epochs"] = max(1, round(work.options.steps * batch / max(1, items)))
    if "seed" in {field for field in baseline_class(baseline).Config.__dataclass_fields__}:
        chosen["seed"] = seed
    words = [system, str(seed), *(f"{name}={value}" for name, value in sorted(settings.items()) if name != "train")]
    if "train" in settings:
        words.append(Path(settings["train"]).name.split(".")[0])
    stem = work.shared / "classifiers" / "_".join(words).replace("/", "-")
    path, clock = stem.with_name(stem.name + ".jsonl"), stem.with_name(stem.name + ".seconds.json")
    if not clock.exists():
        make_folder(path.parent)
        config = baseline_class(baseline).Config(**chosen)
        began = time.perf_counter()
        run_baseline(baseline, config, train=train, input=work.file("test"), output=path, k=tail.CANDIDATES, force=True)
        write_json(clock, {"seconds": time.perf_counter() - began}, force=True)
    return path, float(json.loads(clock.read_text(encoding="utf-8"))["seconds"])


def measure(work: Work, path: Path, ks: Sequence[int], **settings: Any) -> Evaluation:
    """`evaluate` without its warning about F1@O, which no table of k phrases shows."""
    found = evaluate(work.file("test"), path, k=list(ks), bootstrap=0, warn=False, **settings)
    short = found["provenance"]["short_lists"]
    for note in found["provenance"]["warnings"]:
        if not note.startswith("prediction lists are shorter") or any(short[cut] for cut in short if cut != "O"):
            print(f"warning: {note}", file=sys.stderr)
    return found


def scores(work: Work, path: Path, ks: Sequence[int] = KS, **settings: Any) -> dict[str, Any]:
    """`scores` and `bins` of all test items, in percent; P@k is the literature's, which this project calls B@k."""
    found = measure(work, path, ks, train=work.file("train"), **settings)
    values = found["scores"]["all"]
    kept = {}
    for k in ks:
        for name, ours in COLUMNS.items():
            value = values.get(f"{ours}@{k}")
            kept[f"{name}@{k}"] = None if value is None else 100 * value
    return kept


def bins(work: Work, path: Path, k: int = 5) -> dict[str, float | None]:
    """Macro F1@k by training frequency, in percent."""
    found = measure(work, path, [k], train=work.file("train"), propensity="none")
    return {
        name: None if (value := part.get(f"MacroF1@{k}")) is None else 100 * value
        for name, part in found["bins"].items()
    }


def repeated(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The mean of every column over runs, and the largest minus the smallest as `column ±` if there are several."""
    found: dict[str, float | None] = {}
    for column in rows[0]:
        values = [row[column] for row in rows]
        known = [value for value in values if value is not None]
        found[column] = float(np.mean(known)) if known else None
        if len(rows) > 1 and known and column.endswith("@5"):
            found[column + " ±"] = (max(known) - min(known)) / 2
    return found
