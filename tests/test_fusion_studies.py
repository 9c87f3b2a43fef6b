"""scripts/studies/related.py and fusion.py on a toy: nobody votes for itself; lists are as long as F1@O needs."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from unittest import mock

from script_runs import run_here

from pusl.fusion.fused import FusedGenerator
from pusl.fusion.learn import fuse
from pusl_eval.files import write_rows

STUDIES = Path(__file__).parents[1] / "scripts" / "studies"


def row(name: str, text: str, *labels: str) -> dict[str, object]:
    return {"id": name, "text": text, "keyphrases": list(labels)}


def test_a_training_item_does_not_see_its_own_labels(tmp_path: Path) -> None:
    train = [row("a", "red drone", "only a"), row("b", "red drone camera", "only b"), row("c", "garden hose", "water")]
    files = {"train": train, "dev": [row("d", "blue drone", "x")], "test": [row("e", "an unknown thing", "x")]}
    for name, rows in files.items():
        write_rows(tmp_path / f"{name}.jsonl", rows)
    done = run_here(STUDIES / "related.py", str(tmp_path), "--out", str(tmp_path / "out"), "--labels", "1")
    assert done.returncode == 0, done.stderr

    def texts(name: str) -> list[str]:
        return [json.loads(line)["text"] for line in (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()]

    assert texts("train") == ["red drone related: only b", "red drone camera related: only a", "garden hose"]
    assert texts("dev") == ["blue drone related: only a"]
    assert texts("test") == ["an unknown thing"], "nobody is near"
    assert run_here(STUDIES / "related.py", str(tmp_path / "none"), "--out", str(tmp_path / "x")).returncode == 2


def test_new_labels_are_weighed_against_what_stands_in_their_place() -> None:
    with mock.patch("sys.path", [str(STUDIES), *sys.path]):
        study = runpy.run_path(str(STUDIES / "fusion.py"))
    items = [("a", "drone", ["New right", "old", "kept"]), ("b", "hose", ["old"])]
    alone = {"a": ["new right", "new wrong", "kept", "too late"], "b": ["old", "x"]}
    fused = {"a": ["KEPT", "old", "old wrong"], "b": ["old", "x"]}
    found = study["left_out"](items, alone, fused, {"old": 0, "old wrong": 1}, 3)
    assert found == {"new, left out": [2, 1], "instead of them": [2, 1]}
    assert study["unseen"](items, alone, {"old": 0}, 3) == 2, "new right and kept"
    assert study["unseen"](items, fused, {"old": 0}, 3) == 1


def test_items_with_many_labels_get_as_many_candidates(tmp_path: Path) -> None:
    many = [f"label {number}" for number in range(30)]
    train = [row(f"t{number}", f"drone number {number}", many[number]) for number in range(30)]
    write_rows(tmp_path / "train.jsonl", train)
    fuse(tmp_path / "train.jsonl", None, ["knn", "text"], tmp_path / "fused")
    model = FusedGenerator.load(tmp_path / "fused")
    with mock.patch("sys.path", [str(STUDIES), *sys.path]):
        study = runpy.run_path(str(STUDIES / "fusion.py"))
    items = [("few", "drone", ["label 1"]), ("rich", "drone", many)]
    few, rich = study["deep_pools"](model, items)
    assert model.depth == 15 and len(few.forms) == 15 and len(rich.forms) == 30
    predictions = study["chosen"](model, [few, rich], items, study["MOST"])
    assert len(predictions["rich"]) == 30, "F1@O of an item with 30 labels is not cut"
