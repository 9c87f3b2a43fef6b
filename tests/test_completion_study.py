"""scripts/studies/completion.py on a toy: a PUSL model is asked twice, others once, and mistakes are one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from decoding_models import checkpoint, documents
from script_runs import run_here

from pusl.checkpoint import save_checkpoint
from pusl.fusion.learn import fuse
from pusl_eval.files import write_rows

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "scripts" / "studies" / "completion.py"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=300)


def test_told_and_not_told_beside_one2one(tmp_path: Path) -> None:
    for name in ("pusl", "one2one"):
        one = checkpoint(name)
        save_checkpoint(tmp_path / name, one.model, one.tokenizer, {"paradigm": name, "defaults": {}})
    rows = [{"id": str(i), "text": text, "keyphrases": ["drone"]} for i, text in enumerate(documents(4))]
    write_rows(tmp_path / "items.jsonl", rows)
    write_rows(tmp_path / "truth.jsonl", [{**row, "keyphrases": ["Drone", "lamp"]} for row in rows])
    models = [f"PUSL={tmp_path / 'pusl'}", f"One2One={tmp_path / 'one2one'}"]
    items = ["--items", str(tmp_path / "items.jsonl")]
    done = run(*items, "--truth", str(tmp_path / "truth.jsonl"), "-k", "2", "--models", *models)
    assert done.returncode == 0, done.stderr
    assert [line.split(" | ")[0] for line in done.stdout.splitlines()[2:5]] == ["| PUSL, told", "| PUSL", "| One2One"]
    assert "4 items that lack a keyphrase; each has 1.0 on average." in done.stdout
    for more, message in (
        (["--models", *models], "no field 'complete'; name a file with --truth"),
        (["--truth", str(tmp_path / "items.jsonl"), "--models", *models], "no item lacks a keyphrase"),
        (["--truth", str(tmp_path / "truth.jsonl"), "--models", "pusl="], "expected DIR or NAME=DIR"),
    ):
        wrong = run_here(SCRIPT, *items, *more)
        assert wrong.returncode == 2 and message in wrong.stderr and "Traceback" not in wrong.stderr


def test_a_fused_model_is_told_too(tmp_path: Path) -> None:
    rows = [{"id": str(i), "text": text, "keyphrases": ["drone", "lamp"]} for i, text in enumerate(documents(12))]
    write_rows(tmp_path / "train.jsonl", rows)
    fuse(tmp_path / "train.jsonl", None, ["knn", "text"], tmp_path / "fused")
    write_rows(
        tmp_path / "items.jsonl", [{**row, "keyphrases": ["drone"], "complete": ["drone", "lamp"]} for row in rows]
    )
    items, model = ["--items", str(tmp_path / "items.jsonl")], f"fused={tmp_path / 'fused'}"
    done = run_here(SCRIPT, *items, "-k", "1", "--models", model)
    assert done.returncode == 0, done.stderr
    assert [line.split(" | ")[0] for line in done.stdout.splitlines()[2:4]] == ["| fused, told", "| fused"]
