"""The one-line benchmarks run to their end and their rows agree; the CPU stands in for a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_runs import run_here

BENCH = Path(__file__).parent.parent / "scripts" / "bench"


def rows(printed: str) -> dict[str, list[str]]:
    """The table's cells by the first of each row."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if "|" in line]
    return {first: rest for first, *rest in cells[2:]}


@pytest.mark.slow
def test_the_training_table() -> None:
    done = run_here(BENCH / "training.py", "--device", "cpu", "--steps", "1", "--items", "60")
    assert done.returncode == 0, done.stderr
    table = rows(done.stdout)
    assert list(table) == ["pusl fp32", "pusl bf16", "plain fp32", "plain bf16"]
    losses = {name: float(cells[2]) for name, cells in table.items()}  # a row that failed has no number
    assert losses["pusl fp32"] == pytest.approx(losses["plain fp32"], abs=2e-4)
    assert losses["pusl bf16"] == pytest.approx(losses["plain bf16"], abs=2e-2)
    assert all(float(cells[0].replace(",", "")) > 0 for cells in table.values())


@pytest.mark.slow
def test_the_decoding_table() -> None:
    words = ["--device", "cpu", "--sets", "device", "--shapes", "tiny:32", "--items", "6", "--rounds", "1"]
    done = run_here(BENCH / "decoding.py", *words)
    assert done.returncode == 0, done.stderr
    table = rows(done.stdout)
    mine = ["pusl fp32", "pusl bf16", "beam fp32", "beam bf16", "generate bf16", "generate bf16 static"]
    assert list(table)[:6] == mine  # CTranslate2 comes behind, if it is installed
    assert table["pusl fp32"][2] == table["beam fp32"][2] == "100.0%"
    assert all(float(cells[0].replace(",", "")) > 0 for cells in table.values())


@pytest.mark.parametrize("script", ["training.py", "decoding.py"])
def test_a_gpu_that_is_not_there_is_one_line(script: str) -> None:
    done = run_here(BENCH / script, "--device", "cuda:7")
    assert done.returncode != 0 and not done.stdout
