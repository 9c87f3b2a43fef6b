"""The two study scripts, small: they run, and their tables say what the data was built to show."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pusl_eval.errors import exit_code
from pusl_eval.files import write_rows

SCRIPTS = Path(__file__).parent.parent / "scripts" / "studies"


@pytest.fixture(autouse=True)
def studies_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.slow
def test_a_wrong_propensity_model_reports_an_impossible_precision() -> None:
    study = load("propensity")
    args = argparse.Namespace(
        train_items=4000, test_items=2000, labels=40, dimensions=5, seeds=2, epochs=4, output=None, force=False
    )
    rows = {tuple(cells(line)[:2]): cells(line)[2:] for line in study.hiding_study(args).splitlines()[4:]}
    assert len(rows) == 8

    def number(key: tuple[str, str], column: int) -> float:
        return float(rows[key][column].split(" ±")[0])

    # Columns: P@1, P@3, P@5, PSP@1 (jpv), PSP@1 (power law).
    assert number(("jpv", "jpv"), 4) > 130  # "precision" above 100%: the power law overstates what was hidden
    assert number(("jpv", "jpv"), 3) == pytest.approx(number(("jpv", "jpv"), 0), abs=6)  # the true model estimates P@1
    assert number(("power law", "power law"), 4) == pytest.approx(number(("power law", "power law"), 0), abs=12)
    for truth, other in (("jpv", "power law"), ("power law", "jpv")):
        assert number((truth, truth), 2) > number((truth, other), 2)  # P@5 on complete labels


@pytest.mark.slow
def test_fits_recover_their_own_family() -> None:
    study = load("propensity")
    counts = np.unique(np.geomspace(5, 9000, 60).astype(int))
    for family, parameters in study.FAMILIES.items():
        truth = study.propensities(counts, 10_000, family, parameters)
        found = study.errors(counts, 10_000, truth, truth)
        assert found[f"{family} p"] < 0.01 and found[f"{family} 1/p"] < 0.02
        assert found["direct p"] == 0


@pytest.mark.slow
def test_tail_study_on_a_small_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    for name, count in (("train", 150), ("test", 40)):
        rows = []
        for number in range(count):
            words = sorted(set((draw.zipf(1.6, 4) % 25).tolist()))
            text = " ".join(f"word{word}" for word in words)
            rows.append({"id": f"{name}{number}", "text": text, "keyphrases": [f"label {word}" for word in words]})
        write_rows(tmp_path / "data" / f"{name}.jsonl", rows)
    arguments = ["--data", str(tmp_path / "data"), "--work", str(tmp_path / "work"), "--output", str(tmp_path / "t.md")]
    systems = ["--systems", "frequency", "knn", "plt", "cov-plt"]
    monkeypatch.setattr(sys, "argv", ["tail.py", *arguments, *systems])
    study = load("tail")
    assert study.main() == 0
    table = [cells(line) for line in (tmp_path / "t.md").read_text().splitlines() if line.startswith("|")]
    assert [row[0] for row in table[2:]] == [
        "frequency",
        "knn",
        "plt",
        *(f"cov-plt β={b}" for b in ("0", "0.25", "0.5", "1")),
    ]
    assert table[0][1:5] == ["micro F1@5", "macro F1@5", "P@5", "Cov@5"]
    value = {row[0]: [float(cell.strip("*").split(" ±")[0]) for cell in row[1:]] for row in table[2:]}
    assert value["knn"][1] > value["frequency"][1]
    assert value["cov-plt β=0"][3] >= value["plt"][3]  # coverage is what it is for
    assert "<svg" in (tmp_path / "work" / "data.svg").read_text()
    # Missing data is an input error, not a traceback.
    monkeypatch.setattr(sys, "argv", ["tail.py", "--data", str(tmp_path), "--work", str(tmp_path / "work")])
    assert exit_code(study.main, "tail") == 2
    assert "has no train.jsonl" in capsys.readouterr().err
