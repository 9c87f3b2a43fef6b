"""Input that once ended in a traceback, a hang or a crash: now exit code 2 (1 for the disk) and one or two lines."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from pusl.cli import main
from pusl.llm.answers import AnswerStore
from pusl.training import TrainConfig, train
from pusl_eval.errors import DISK_ERRORS
from pusl_eval.files import InputError, write_rows

ROWS = [
    {"id": str(number), "text": f"a red shoe, no. {number}", "keyphrases": ["shoe", "red shoe"], "counts": [2, 1]}
    for number in range(30)
]
TRAIN = (
    "train --model scratch:tiny --train items.jsonl --out out --vocab-size 280 --batch-size 8 --max-steps 2 "
    "--max-source-length 16 --max-target-length 16 --max-phrase-tokens 4"
)


@pytest.fixture(autouse=True)
def items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with sound items and predictions."""
    monkeypatch.chdir(tmp_path)
    write_rows("items.jsonl", ROWS)
    write_rows(
        "predictions.jsonl", [{"id": row["id"], "keyphrases": ["shoe", "lamp"], "scores": [-1, -2]} for row in ROWS]
    )


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command line; returns what it says, in one or two lines, after it ended so and wrote nothing."""

    def run(line: str, code: int = 2) -> str:
        before = sorted(map(os.fsencode, Path().rglob("*")))
        assert main(line.split()) == code
        said = capfd.readouterr().err
        lines = [text for text in said.splitlines() if text and "it/s" not in text and "%|" not in text]
        assert 1 <= len(lines) <= 2 and "Traceback" not in said and max(map(len, lines)) < 1100, said
        assert sorted(map(os.fsencode, Path().rglob("*"))) == before
        return said

    return run


WRITERS = {
    "convert": "data convert items.jsonl --format table --to {}",
    "thin": "data thin items.jsonl --keep 0.9 --out {}",
    "group": "data group items.jsonl --out {}",
    "evaluate": "evaluate --references items.jsonl --predictions predictions.jsonl -k 2 --output {}",
    "report": "report --references items.jsonl --predictions predictions.jsonl --output {}",
    "rerank": "rerank --predictions predictions.jsonl --objective brs -k 2 --output {}",
    "baseline": "baseline frequency --train items.jsonl --input items.jsonl --output {}",
    "judge": "judge --references items.jsonl --predictions predictions.jsonl --base-url http://127.0.0.1:1 --output {}",
    "llm": "generate --llm m --base-url http://127.0.0.1:1 --input items.jsonl -k 2 --output {}",
}
NAMES = {
    "file/below.jsonl": "file: is a file; expected a folder",
    "n" * 250 + ".jsonl": "too long",
    "dangling.jsonl": "is a link to nothing",
    "circle.jsonl": "is a link to nothing",
    "pipe.jsonl": "is not a regular file",
}


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("name", NAMES, ids=["below", "long", "dangling", "circle", "pipe"])
def test_outputs_that_cannot_be(refused: Callable[..., str], command: str, name: str) -> None:
    Path("file").write_text("mine")
    Path("dangling.jsonl").symlink_to("nowhere/deep")
    Path("circle.jsonl").symlink_to("circle.jsonl")
    os.mkfifo("pipe.jsonl")
    force = "" if command == "llm" else " --force"
    for line in (WRITERS[command], WRITERS[command] + force):
        assert NAMES[name] in refused(line.format(name))


@pytest.mark.parametrize("command", WRITERS)
def test_an_output_is_not_an_input(refused: Callable[..., str], command: str) -> None:
    """Neither by its name nor through a link, not even with --force."""
    given = "predictions.jsonl" if command == "rerank" else "items.jsonl"
    Path("link.jsonl").symlink_to(given)
    before = Path(given).read_bytes()
    for name in (given, "link.jsonl"):
        assert "is the" in refused(WRITERS[command].format(name) + " --force")
        assert Path(given).read_bytes() == before


def test_a_chat_model_is_asked_from_one_process(refused: Callable[..., str]) -> None:
    """An endpoint that fails was a traceback of a worker process."""
    for flag in ("--workers 2", "--engine ray"):
        assert "use --concurrency" in refused(WRITERS["llm"].format("out.jsonl") + " " + flag)


def test_layers_have_a_bound(refused: Callable[..., str]) -> None:
    """A billion of them took 6 GB before the machine said no."""
    for name in ("doc-vec", "attention-xml"):
        line = f"baseline {name} --train items.jsonl --input items.jsonl --output out.jsonl --layers 1000000000"
        assert "at most 100" in refused(line)


def test_padding_has_a_bound(refused: Callable[..., str]) -> None:
    assert "at most 1024" in refused("train --train items.jsonl --out model --pad-multiple 1000000000")


READERS = {
    "stats": "data stats {}",
    "split": "data split {} --out out",
    "convert": "data convert {} --format table --to out.jsonl",
    "evaluate": "evaluate --references {} --predictions predictions.jsonl -k 2",
    "baseline": "baseline frequency --train {} --save out",
}


def make_parquet(name: str, column: str, values: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = pa.table({name: [row[name] for row in ROWS] for name in ("id", "text", "keyphrases")})
    place = table.column_names.index(column)
    parquet.write_table(table.set_column(place, column, values), name)


def make_hostile(name: str) -> None:
    """Makes the file of this name."""
    import pyarrow as pa

    sound = Path("items.jsonl").read_bytes()
    if name == "deep.jsonl":
        deep = b"[" * 600 + b"]" * 600
        Path(name).write_bytes(sound + b'{"id": "d", "text": "t", "keyphrases": ' + deep + b"}\n")
    elif name == "deeper.jsonl":
        Path(name).write_bytes(sound + b'{"id": "d", "text": ' + b'{"a": ' * 100_000 + b"\n")
    elif name == "deep.csv":
        Path(name).write_bytes(b"id,text,keyphrases\n1,a lamp," + b"[" * 60_000 + b"\n")
    elif name == "surrogate.csv":
        Path(name).write_bytes(b'id,text,keyphrases\n1,a lamp,"[""\\ud800""]"\n')
    elif name == "bytes.parquet":
        make_parquet(name, "text", pa.array([b"\xff\xfe"] * len(ROWS)).view(pa.string()))
    elif name == "duration.parquet":
        make_parquet(name, "text", pa.array([2**62 + 7] * len(ROWS), pa.duration("ns")))
    elif name == "time.parquet":
        make_parquet(name, "id", pa.array([2**62 + 7] * len(ROWS), pa.timestamp("ns")))
    elif name == "pipe.jsonl":
        os.mkfifo(name)  # to open it would wait forever


HOSTILE = (
    "deep.jsonl", "deeper.jsonl", "deep.csv", "surrogate.csv", "bytes.parquet", "duration.parquet", "time.parquet",
    "pipe.jsonl",
)  # fmt: skip


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(refused: Callable[..., str], command: str, name: str) -> None:
    make_hostile(name)
    assert name in refused(READERS[command].format(name))


@pytest.mark.parametrize("command", READERS)
def test_file_names_that_are_not_utf8(capfd: pytest.CaptureFixture[str], command: str) -> None:
    name = os.fsdecode(b"items\xff.jsonl")
    shutil.copy("items.jsonl", name)
    assert main(READERS[command].format(name).split()) == 0
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("content", ["lr: .nan", "epochs: .inf", "mu: .nan", "seed: 4294967296", "seed: [1]"])
def test_numbers_in_yaml_that_cannot_be(refused: Callable[..., str], content: str) -> None:
    Path("run.yaml").write_text(content + "\n")
    assert content.partition(":")[0] in refused(f"{TRAIN} --config run.yaml")


def test_a_tracker_that_is_not_installed(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations import integration_utils

    monkeypatch.setattr(integration_utils, "get_available_reporting_integrations", lambda: ["tensorboard"])
    assert "--report-to wandb: not installed or not known" in refused(f"{TRAIN} --report-to wandb")


def test_dev_without_keyphrases(refused: Callable[..., str]) -> None:
    write_rows("dev.jsonl", [{**row, "keyphrases": [], "counts": []} for row in ROWS])
    assert "dev.jsonl" in refused(f"{TRAIN} --dev dev.jsonl")


@pytest.mark.parametrize("count", [1, 2, 30])
def test_fastxml_on_items_that_no_tree_can_split(count: int) -> None:
    """Few items, or all alike: every tree is one leaf. Probably the one cause behind 182 tracebacks."""
    write_rows("few.jsonl", [{**row, "text": "the same"} for row in ROWS[:count]])
    line = "baseline fastxml --jobs 1 --trees 2 --train few.jsonl --save out --input items.jsonl --output out.jsonl"
    assert main(line.split()) == 0
    assert set(json.loads(Path("out.jsonl").read_text().splitlines()[0])["keyphrases"]) == {"shoe", "red shoe"}
    assert main(["baseline", "fastxml", "--model", "out", "--input", "items.jsonl", "--output", "again.jsonl"]) == 0
    assert Path("again.jsonl").read_bytes() == Path("out.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["plt", "svm"])
def test_more_jobs_than_can_be_started(name: str) -> None:
    write_rows("train.jsonl", ROWS)
    line = f"baseline {name} --jobs 1000000000 --train train.jsonl --input items.jsonl --output out.jsonl"
    assert main(line.split()) == 0


def test_thinning_that_leaves_nothing(refused: Callable[..., str]) -> None:
    assert "no label would be left" in refused("data thin items.jsonl --by jpv --keep 5e-324 --out out.jsonl")


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_a_temperature_no_language_model_takes(refused: Callable[..., str], value: str) -> None:
    line = WRITERS["llm"].format("out.jsonl")
    assert "'temperature' is" in refused(f"{line} --retries 0 --temperature={value}")


def test_a_full_disk_is_one_line_after_progress_too(refused: Callable[..., str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    try:
        said = refused("data simulate --items 60 --dev-items 10 --test-items 10 --out out", code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said == "pusl: File too large; nothing was left half-written\n"


@pytest.mark.slow
def test_a_disk_that_is_full_while_a_model_is_saved(
    refused: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    """One line, exit code 1; what was there before stays, and --resume finishes once there is room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        assert main(TRAIN.split()) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    said = capfd.readouterr().err
    assert "Traceback" not in said and "File too large" in said and "half-written" in said
    assert not list(Path().rglob("*.tmp")) and not Path("out/pusl.json").exists()
    assert main(["train", "--resume", "--out", "out"]) == 0
    assert Path("out/pusl.json").exists()
    assert len({path.stat().st_mode for path in Path("out").iterdir()}) == 1, "one set of permissions"


class Stop(TrainerCallback):  # type: ignore[misc]
    """Control-C in the first step."""

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after one step of three."""
    folder = tmp_path_factory.mktemp("stopped")
    write_rows(folder / "items.jsonl", ROWS)
    config = TrainConfig(
        model="scratch:tiny", train=str(folder / "items.jsonl"), out=str(folder / "out"), vocab_size=280,
        batch_size=8, max_steps=3, max_source_length=16, max_target_length=16, max_phrase_tokens=4,
    )  # fmt: skip
    assert not train(config, callbacks=[Stop()]).finished
    return folder / "out"


@pytest.mark.slow
def test_damaged_checkpoints_on_resume(stopped: Path, tmp_path: Path) -> None:
    """Whatever file is damaged, if only by one bit: one line that names it."""
    (checkpoint,) = (stopped / "training").glob("checkpoint-*")
    names = sorted(path.name for path in checkpoint.iterdir())
    assert {"complete", "model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"} <= {*names}
    config = TrainConfig(**{**json.loads((stopped / "run.json").read_text())["config"], "out": str(tmp_path / "copy")})
    for name in names:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(stopped, tmp_path / "copy")
        path = tmp_path / "copy" / "training" / checkpoint.name / name
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(
            b"{" if name == "complete" else content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        )
        with pytest.raises(InputError, match=name) as raised:
            train(config, resume=True)
        assert "\n" not in str(raised.value)


def test_a_disk_that_is_full_when_answers_are_to_be_stored(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    try:
        with pytest.raises(OSError) as raised:
            AnswerStore(tmp_path / "answers.sqlite")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.errno in DISK_ERRORS and not list(tmp_path.glob("answers*"))


def test_column_names_that_no_file_can_have(refused: Callable[..., str]) -> None:
    line = "evaluate --references items.jsonl --predictions predictions.jsonl -k 2"
    assert "--text-column: the name contains bytes" in refused("data stats items.jsonl --text-column \udcff")
    assert "--id-column: the name contains bytes" in refused(f"{line} --id-column \udcff")


def test_learning_rates_that_floats_cannot_hold(refused: Callable[..., str]) -> None:
    assert "'rate' is 1e+308" in refused("baseline doc-vec --train items.jsonl --save out --rate 1e308")


@pytest.mark.parametrize("name", ["/", ".", "..", "memory://state.json", "://x"])
def test_states_that_cannot_be(refused: Callable[..., str], name: str) -> None:
    said = "not a URL" if "://" in name else "is a directory"
    line = "rerank --predictions predictions.jsonl --objective coverage -k 2 --output out.jsonl"
    assert said in refused(f"{line} --state {name}")


SWALLOWED = """
import ctypes, sys, time
from pusl_eval.errors import exit_code

def command():
    def callback():
        raise KeyboardInterrupt  # as a Ctrl-C does that arrives while a compiler calls back
    ctypes.CFUNCTYPE(None)(callback)()
    time.sleep(float(sys.argv[1]))

sys.exit(exit_code(command, "pusl"))
"""


@pytest.mark.parametrize("seconds", ["30", "0"])
def test_a_ctrl_c_that_compiled_code_swallows_still_stops_the_command(seconds: str) -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWED, seconds], capture_output=True, text=True, timeout=25)
    assert (done.returncode, done.stderr.strip()) == (130, "pusl: stopped")
