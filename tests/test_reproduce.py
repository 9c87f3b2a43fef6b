"""The study script on a toy catalog: every system trains for the same steps, tables come out, nothing is done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from script_runs import run_here

from pusl import KeyphraseGenerator
from pusl.training import TrainConfig, train
from pusl_eval.files import write_rows

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "scripts" / "studies" / "reproduce.py"
SYSTEMS = ["one2seq", "pusl", "pusl-rich", "pusl-pt", "one2one-pt"]
OTHERS_MODELS = {"one2one-stock": "one2one", "pusl-a1": "pusl"}  # decoded in another way


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


def reproduce(data: Path, *more: str, here: bool = False) -> subprocess.CompletedProcess[str]:
    words = [str(data), "--out", str(data.parent / "runs"), "--seeds", "0", "--systems", *SYSTEMS]
    words += [*OTHERS_MODELS, *more]
    options = ["vocab_size=330", "batch_size=12", "patience=0", "eval_every=100"]
    words += ["--set", *options]
    if here:
        return run_here(SCRIPT, *words)
    return subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=300)


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
    found = {}
    for system, trained in OTHERS_MODELS.items():
        assert not (runs / f"{system}-0" / "model").exists() and (runs / f"{trained}-0" / "model" / "run.json").exists()
        predictions = runs / f"{system}-0" / "predictions-5.jsonl"
        found[system] = [json.loads(line)["keyphrases"] for line in predictions.read_text().splitlines()]
    assert all(len(phrases) == 5 for phrases in found["one2one-stock"])  # the richest complete item has five
    assert found["pusl-a1"] != [
        json.loads(line)["keyphrases"] for line in (runs / "pusl-0" / "predictions-5.jsonl").read_text().splitlines()
    ]
    table = (runs / "table.md").read_text()
    assert "One2One, stock beam search" in table and "PUSL, Algorithm 1" in table
    assert "PUSL+PT" in table and "Against the complete labels" in table and "true B" in table
    assert (runs / "faithfulness.svg").exists()
    times = {path: path.stat().st_mtime_ns for path in runs.rglob("*.safetensors")}
    again = reproduce(data, "--steps", "6", "--post-share", "0.5", "--post", 'sources="raw"')
    assert again.returncode == 0 and (runs / "table.md").read_text() == table
    assert times == {path: path.stat().st_mtime_ns for path in runs.rglob("*.safetensors")}

    other = reproduce(data, "--steps", "8", here=True)
    assert other.returncode == 2 and "--max-steps is 8, but the run in" in other.stderr
    assert "Traceback" not in other.stderr, "models of another study are not mixed in"


def test_stock_beam_ranks_by_probability_or_by_its_mean_per_token(tmp_path: Path) -> None:
    # The short phrase is the likelier one of every item, the long one has the likelier tokens.
    phrases = [["shoe", "red shoe for hiking"][: 2 if n % 4 else 1] for n in range(24)]
    rows = [{"id": f"i{n}", "text": f"a red shoe, no. {n}", "keyphrases": found} for n, found in enumerate(phrases)]
    write_rows(tmp_path / "train.jsonl", rows)
    for paradigm in ("one2one", "pusl"):
        train(
            TrainConfig(
                paradigm=paradigm, model="scratch:tiny", train=str(tmp_path / "train.jsonl"), vocab_size=300,
                out=str(tmp_path / paradigm), batch_size=12, max_steps=40, max_target_length=96, max_phrase_tokens=30,
            )
        )  # fmt: skip

    def stock(model: str, *more: str) -> subprocess.CompletedProcess[str]:
        words = ["--model", str(tmp_path / model), "--input", str(tmp_path / "train.jsonl"), "-k", "6", "--force"]
        words += ["--output", str(tmp_path / "out.jsonl"), *more]
        return run_here(SCRIPT.with_name("stock_beam.py"), *words)

    nonsense = stock("one2one", "--batch-size", "0")
    assert nonsense.returncode == 2 and "--batch-size 0" in nonsense.stderr and "Traceback" not in nonsense.stderr
    refused = stock("pusl")
    assert refused.returncode == 2 and "expected one2one" in refused.stderr and "Traceback" not in refused.stderr
    assert not (tmp_path / "out.jsonl").exists()
    first = {}
    for penalty in ("0", "1"):
        done = stock("one2one", "--length-penalty", penalty)
        assert done.returncode == 0, done.stderr
        found = [json.loads(line)["keyphrases"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert len(found) == 24 and all(len(phrases) == 6 for phrases in found)
        first[penalty] = [phrases[0] for phrases in found]
    ours = KeyphraseGenerator.from_pretrained(tmp_path / "one2one").generate([row["text"] for row in rows], 6)
    assert first["0"] == [one.keyphrases[0] for one in ours]
    assert set(first["0"]) == {"shoe"} and set(first["1"]) == {"red shoe for hiking"}


def test_a_wrong_share_is_refused(data: Path) -> None:
    found = reproduce(data, "--steps", "6", "--post-share", "1", here=True)
    assert found.returncode == 2 and "--post-share" in found.stderr and "Traceback" not in found.stderr
