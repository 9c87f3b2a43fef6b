"""The study script on a toy catalog: every system trains for the same steps, tables come out, nothing is done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eval.files import write_rows

SCRIPT = Path(__file__).parents[1] / "scripts" / "reproduce.py"
SYSTEMS = ["one2seq", "pusl", "pusl-rich", "pusl-pt", "one2one-pt"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Items with one or four keyphrases, of which the complete file knows one more."""
    things, colors = ("shoe", "boot", "hat", "coat"), ("red", "blue", "green", "black")
    for name, start, count in (("train", 0, 48), ("dev", 100, 8), ("test", 200, 12), ("complete", 200, 12)):
        rows = []
        for number in range(start, start + count):
            thing, color = things[number % 4], colors[number // 4 % 4]
            phrases = [thing, color, f"{color} {thing}", f"{thing} {color}"][: 4 if number % 3 == 0 else 1]
            phrases += ["thing"] if name == "complete" else []
            rows.append({"id": f"i{number}", "text": f"a {color} {thing}, no. {number}", "keyphrases": phrases})
        write_rows(tmp_path / "toy" / f"{name}.jsonl", rows)
    return tmp_path / "toy"


def reproduce(data: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = [str(data), "--out", str(data.parent / "runs"), "--seeds", "0", "--systems", *SYSTEMS, *more]
    options = ["vocab_size=330", "batch_size=12", "patience=0", "eval_every=100"]
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words, "--set", *options], capture_output=True, text=True, timeout=300
    )


def test_same_steps_for_everyone_and_a_second_call_uses_what_is_there(data: Path) -> None:
    first = reproduce(data, "--steps", "6", "--post-share", "0.5", "--post", 'sources="raw"')
    assert first.returncode == 0, first.stderr
    runs = data.parent / "runs"
    configs = {}
    for system in SYSTEMS:
        record = json.loads((runs / f"{system}-0" / "model" / "run.json").read_text())
        configs[system] = record["config"]
        assert record["summary"]["trained"] == (16 if system.endswith(("-rich", "-pt")) else 48)
        assert record["status"] == "finished" and record["steps"] == (3 if system.endswith("-pt") else 6)
    base = json.loads((runs / "pusl-pt-0" / "base" / "run.json").read_text())
    assert base["steps"] == 3 and configs["pusl-pt"]["lr"] == base["config"]["lr"]
    assert configs["pusl-rich"]["min_keyphrases"] == 3 and configs["pusl"]["min_keyphrases"] == 1  # μ = 2
    table = (runs / "table.md").read_text()
    assert "PUSL+PT" in table and "Against the complete labels" in table and "true B" in table
    assert (runs / "faithfulness.svg").exists()
    times = {path: path.stat().st_mtime_ns for path in runs.rglob("*.safetensors")}
    again = reproduce(data, "--steps", "6", "--post-share", "0.5", "--post", 'sources="raw"')
    assert again.returncode == 0 and (runs / "table.md").read_text() == table
    assert times == {path: path.stat().st_mtime_ns for path in runs.rglob("*.safetensors")}

    other = reproduce(data, "--steps", "8")
    assert other.returncode == 1 and "--max-steps is 8, but the run in" in other.stderr
    assert "Traceback" not in other.stderr, "models of another study are not mixed in"


def test_a_wrong_share_is_refused(data: Path) -> None:
    found = reproduce(data, "--steps", "6", "--post-share", "1")
    assert found.returncode == 2 and "--post-share" in found.stderr and "Traceback" not in found.stderr
