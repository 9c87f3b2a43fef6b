"""scripts/studies/faithfulness.py where the answer is known: P@k prefers the lazy system, B@k the prolific one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pusl_eval.files import write_rows

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent.parent / "scripts" / "studies" / "faithfulness.py"
SAID = {"lazy": ["a"], "middle": ["a", "b"], "prolific": ["a", "b", "c", "x"]}


def write(folder: Path, name: str, field: list[list[str]]) -> str:
    write_rows(folder / name, [{"id": str(i), "text": f"t{i}", "keyphrases": words} for i, words in enumerate(field)])
    return str(folder / name)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)


def test_precision_ranks_backwards_and_budget_accuracy_rightly(tmp_path: Path) -> None:
    observed = write(tmp_path, "observed.jsonl", [["a"], ["a"], ["b"], ["c"]])
    complete = write(tmp_path, "complete.jsonl", [["a", "b", "c", "d"]] * 4)
    train = write(tmp_path, "train.jsonl", [["a"], ["b", "c"], ["d"]])
    systems = [write(tmp_path, f"{name}.jsonl", [said] * 4) for name, said in SAID.items()]
    done = run("--case", observed, complete, train, *systems, "--k", "4", "--plot", str(tmp_path / "p.svg"))
    assert done.returncode == 0, done.stderr
    rows = {line.split("|")[1].strip(): line.split("|")[2:5] for line in done.stdout.splitlines() if "@k |" in line}
    assert [float(cell) for cell in rows["B@k"]] == [-0.87, 1.0, 1.0]  # the two lazier ones tie in true precision
    assert [float(cell) for cell in rows["P@k"]] == [0.87, -1.0, -1.0]
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")
    lazier = run("--case", observed, complete, train, systems[2], "--k", "4", "--lazy", "1", "2")
    assert [row for row in lazier.stdout.splitlines() if "@k |" in row] == [
        row for row in done.stdout.splitlines() if "@k |" in row
    ]


def test_too_few_systems_or_files(tmp_path: Path) -> None:
    labels = write(tmp_path, "a.jsonl", [["a"]])
    assert "at least three systems" in run("--case", *[labels] * 5, "--k", "1").stderr
    assert "expected observed" in run("--case", labels, labels).stderr
    assert "no such file" in run("--case", labels, labels, "nowhere.jsonl", labels).stderr
