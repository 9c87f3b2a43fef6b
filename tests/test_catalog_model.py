"""`pusl generate` with a real tiny model: layout changes nothing, a kill changes nothing, errors are two lines."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pusl.cli import main
from pusl_eval.files import read_rows, write_rows

pytestmark = pytest.mark.slow  # processes and kills

WORDS = ["zeto", "bavix", "drone", "camera", "foldable", "travel", "mini", "pro", "headset", "charger", "case", "gps"]


def texts(count: int) -> list[str]:
    return [" ".join(WORDS[(i * 7 + j * (1 + i % 5)) % len(WORDS)] for j in range(2 + i % 9)) for i in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from pusl.checkpoint import save_checkpoint, scratch_model
    from pusl.tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("models") / "pusl"
    tokenizer = train_tokenizer(texts(200), vocab_size=320)
    network = scratch_model("tiny", tokenizer, seed=1)
    with torch.no_grad():
        network.shared.weight.mul_(0.3)  # flatter than a fresh model's: phrases of several lengths
    meta = {"paradigm": "pusl", "defaults": {"k": 4, "max_source_length": 32, "max_phrase_tokens": 5}}
    save_checkpoint(folder, network, tokenizer, meta)
    return folder


@pytest.fixture
def items(tmp_path: Path) -> Path:
    return write_items(tmp_path / "items.jsonl")


def write_items(path: Path) -> Path:
    write_rows(path, [{"id": f"a{i}", "text": text} for i, text in enumerate(texts(60))])
    return path


@pytest.fixture(scope="module")
def expected(model: Path) -> Path:
    """The output of one process, shards of 16, batches of 32, one thread."""
    items = write_items(model.parent / "items.jsonl")
    assert main(flags(model, items, model.parent / "expected.jsonl")) == 0
    return model.parent / "expected.jsonl"


def flags(model: Path, items: Path, output: Path, *more: str) -> list[str]:
    return [
        "generate", "--model", str(model), "--input", str(items), "--output", str(output), "-k", "4", "--quiet",
        "--workers", "1", "--shard-size", "16", *more,
    ]  # fmt: skip


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_rows(path)]


@pytest.mark.parametrize(
    "layout",
    [["--batch-size", "1"], ["--batch-size", "5"], ["--shard-size", "7"], ["--shard-size", "500"], ["--threads", "2"]],
    ids=" ".join,
)
def test_layout_changes_no_keyphrase_and_no_order(
    model: Path, items: Path, expected: Path, tmp_path: Path, layout: list[str]
) -> None:
    assert main(flags(model, items, tmp_path / "out.jsonl", *layout)) == 0
    first, second = rows_of(expected), rows_of(tmp_path / "out.jsonl")
    assert [row["keyphrases"] for row in first] == [row["keyphrases"] for row in second]
    for one, two in zip(first, second, strict=True):
        assert one["scores"] == pytest.approx(two["scores"], abs=1e-3)
    assert len({json.dumps(row["keyphrases"]) for row in first}) > 5, "the model says the same for every text"


def test_workers_and_kills_change_no_byte(model: Path, items: Path, expected: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pusl", *flags(model, items, tmp_path / "out.jsonl")]
    parts = tmp_path / "out.jsonl.parts"
    for workers, end, code in ((2, signal.SIGKILL, -9), (1, signal.SIGINT, 130)):
        before = len(list(parts.glob("part-*")))
        with subprocess.Popen([*command, "--workers", str(workers)], stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None and len(list(parts.glob("part-*"))) < before + 1:
                time.sleep(0.002)
            process.send_signal(end)
            assert process.stderr is not None
            said = process.stderr.read()
        assert process.returncode == code and not (tmp_path / "out.jsonl").exists()
    assert said.strip().endswith(f"kept in {parts}; the same command resumes.")
    assert main(command[3:]) == 0
    assert (tmp_path / "out.jsonl").read_bytes() == expected.read_bytes()


def test_a_closed_universe_and_explanations(model: Path, items: Path, tmp_path: Path) -> None:
    from pusl.checkpoint import save_labels

    save_labels(model, ["drone", "zeto drone"])
    (tmp_path / "real.txt").write_text("drone\nzeto\npro drone\n")
    more = ("--universe", str(tmp_path / "real.txt"), "--vocabulary", "closed", "--explain")
    assert main(flags(model, items, tmp_path / "out.jsonl", *more)) == 0
    rows = rows_of(tmp_path / "out.jsonl")
    assert all(sorted(row["keyphrases"]) == ["drone", "pro drone", "zeto"] and row["exhausted"] for row in rows)
    marks = dict(zip(rows[0]["keyphrases"], rows[0]["explain"], strict=True))  # the text is "zeto bavix"
    assert marks["zeto"] == {"present": True, "offsets": [[0, 4]], "seen": False, "in_universe": True}
    assert marks["drone"] == {"present": False, "offsets": [], "seen": True, "in_universe": True}
    assert main(flags(model, items, tmp_path / "out.parquet", *more)) == 0
    assert json.loads(rows_of(tmp_path / "out.parquet")[0]["explain"]) == rows[0]["explain"]


def test_sampling_depends_on_the_seed_and_the_text_only(model: Path, items: Path, tmp_path: Path) -> None:
    sampling = ("--temperature", "1.0", "--strategy", "sequence", "--seed")
    assert main(flags(model, items, tmp_path / "a.jsonl", *sampling, "3")) == 0
    assert main(flags(model, items, tmp_path / "b.jsonl", *sampling, "3", "--shard-size", "9")) == 0
    assert main(flags(model, items, tmp_path / "c.jsonl", *sampling, "4")) == 0
    a, b, c = ([row["keyphrases"] for row in rows_of(tmp_path / f"{name}.jsonl")] for name in "abc")
    assert a == b and a != c


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--vocabulary", "closed"], "--vocabulary closed needs --universe FILE"),
        (["--model", "nowhere"], "nowhere: not a PUSL model folder (no pusl.json)"),
        (["--input", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--output", "out.txt"], "out.txt: unknown file ending"),
        (["--text-column", "title"], "none of 60 lines can be used; line 1: no field 'title' (found: id, text)"),
        (["--top-p", "2"], "top_p is 2.0"),
        (["--llm", "gpt"], "either --model DIR (made by `pusl train`) or --llm NAME"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_flags_end_with_2(
    model: Path, items: Path, tmp_path: Path, change: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags(model, items, tmp_path / "out.jsonl", *change)) == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said and len(said.splitlines()) <= 2
    assert os.listdir(tmp_path) == ["items.jsonl"]


def test_a_full_disk_ends_with_1_and_can_go_on(
    model: Path, items: Path, expected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # Parts are small enough, the output is not.
        resource.setrlimit(resource.RLIMIT_FSIZE, (expected.stat().st_size - 1000, limits[1]))
        assert main(flags(model, items, tmp_path / "out.jsonl")) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err
    assert "File too large" in said and "the same command resumes" in said and "Traceback" not in said
    assert sorted(os.listdir(tmp_path)) == ["items.jsonl", "out.jsonl.parts"]
    assert main(flags(model, items, tmp_path / "out.jsonl")) == 0
    assert (tmp_path / "out.jsonl").read_bytes() == expected.read_bytes()


def test_the_last_lines_tell_what_happened(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = tmp_path / "items.csv"
    write_rows(items, [{"id": 1, "text": "zeto drone"}, {"id": 2, "text": "zeto drone"}, {"id": 3, "text": ""}])
    items.write_text(items.read_text() + "4,a,b\n")
    assert main(flags(model, items, tmp_path / "out.csv")) == 0
    said = capsys.readouterr().out
    assert "3 items in" in said and "1 have the text of an earlier item" in said
    assert "1 have no usable text" in said and f"bad lines left out: 1, see {tmp_path / 'out.csv'}.rejects" in said


def test_calibrated_scores_are_probabilities(
    model: Path, items: Path, expected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A phrase is right for even items if it came first: the likeliest phrases must get the higher probabilities."""
    rows = [json.loads(line) for line in expected.read_text().splitlines()]
    known = [row["keyphrases"][:1] if i % 2 == 0 else ["nothing of the kind"] for i, row in enumerate(rows)]
    write_rows(
        tmp_path / "dev.jsonl",
        [{"id": f"a{i}", "text": text, "keyphrases": known[i]} for i, text in enumerate(texts(60))],
    )
    output, dev = tmp_path / "out.jsonl", str(tmp_path / "dev.jsonl")
    assert main([*flags(model, items, output), "--calibrate", dev]) == 0
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["keyphrases"] for row in found] == [row["keyphrases"] for row in rows]
    assert all(0 <= score <= 1 for row in found for score in row["scores"])
    values = sorted((raw, new) for a, b in zip(rows, found, strict=True)
                    for raw, new in zip(a["scores"], b["scores"], strict=True))  # fmt: skip
    assert all(low <= high for (_, low), (_, high) in itertools.pairwise(values))
    assert values[-1][1] > values[0][1]
    curves = list(tmp_path.glob("out.jsonl.calibration-*"))
    assert [path.suffix for path in curves] == [".json"]  # the curve stays, the predictions behind it do not
    first, stamp = output.read_bytes(), curves[0].stat().st_mtime_ns
    assert main([*flags(model, items, output), "--calibrate", dev, "--force"]) == 0
    assert (output.read_bytes(), curves[0].stat().st_mtime_ns) == (first, stamp)
    most = values[-1][1]
    assert main([*flags(model, items, output), "--calibrate", dev, "--force", "--min-score", str(most)]) == 0
    kept = [json.loads(line) for line in output.read_text().splitlines()]
    assert {score for row in kept for score in row["scores"]} == {most}
    assert main([*flags(model, items, tmp_path / "b.jsonl"), "--calibrate", str(items)]) == 2
    assert "no field 'keyphrases'" in capsys.readouterr().err


def test_predictions_of_a_source_need_a_fused_model(
    model: Path, items: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--model", str(model), "--input", str(items), "--output", str(items.parent / "out.jsonl")]
    assert main(["generate", *files, "-k", "2", "--source", f"mine={items}"]) == 2
    assert "--source works with a fused model only" in capsys.readouterr().err
    assert [path.name for path in items.parent.iterdir()] == [items.name]
