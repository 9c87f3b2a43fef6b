"""A working folder may hold an eval.py, an eval package or a files.py of its own: no way to run PUSL imports them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from decoding_models import checkpoint, documents
from server_process import Server

from pusl.checkpoint import save_checkpoint
from pusl_eval.files import read_rows, write_rows

pytestmark = pytest.mark.slow
NAMES = ("eval", "files", "errors", "records", "metrics", "process", "search", "rules", "config", "data")
NOTED = "open('imported-' + __name__, 'w').close()\n"  # leaves a file when it is imported

ONCE = pytest.mark.parametrize("folder", ["eval/__init__.py"], indirect=True)

NOTEBOOK = """
import sys
assert sys.path[0] == "", "a notebook has its own folder first"
from pusl import KeyphraseGenerator
from pusl_eval import compare, evaluate
generator = KeyphraseGenerator.from_pretrained("model")
assert generator.generate(["a red drone"], 2)[0].keyphrases
evaluate("items.jsonl", "items.jsonl", k=[1])
import glob
assert not glob.glob("imported-*")
import eval, files
assert len(glob.glob("imported-*")) == 2, "the user's own modules stay theirs"
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    one = checkpoint("pusl")
    save_checkpoint(folder, one.model, one.tokenizer, {"paradigm": "pusl", "defaults": {"max_phrase_tokens": 5}})
    return folder


@pytest.fixture(params=["eval.py", "eval/__init__.py"])
def folder(request: pytest.FixtureRequest, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, and where the test works."""
    rows = [{"id": str(i), "text": text, "keyphrases": ["drone", "lamp"]} for i, text in enumerate(documents(40))]
    write_rows(tmp_path / "items.jsonl", rows)
    for name in NAMES:
        path = tmp_path / (request.param if name == "eval" else f"{name}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(NOTED)
    (tmp_path / "model").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(path).absolute()) for path in paths))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def run(*words: str) -> None:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list(Path().glob("imported-*"))


def test_a_notebook(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_command_line(folder: Path) -> None:
    run("-m", "pusl", "data", "stats", "items.jsonl")
    run("-m", "pusl_eval", "--references", "items.jsonl", "--predictions", "items.jsonl", "--k", "1")


@pytest.mark.slow
@ONCE
def test_generate_and_its_workers(folder: Path) -> None:
    flags = ["--model", "model", "--input", "items.jsonl", "--output", "out.jsonl", "-k", "2", "--shard-size", "10"]
    run("-m", "pusl", "generate", *flags, "--workers", "2", "--quiet")
    assert len(list(read_rows("out.jsonl"))) == 40


@pytest.mark.slow
@ONCE
def test_ray_actors(folder: Path) -> None:
    pytest.importorskip("ray")
    flags = ["--model", "model", "--input", "items.jsonl", "--output", "out.jsonl", "-k", "2", "--shard-size", "20"]
    run("-m", "pusl", "generate", *flags, "--engine", "ray", "--workers", "1", "--quiet")
    assert len(list(read_rows("out.jsonl"))) == 40


@pytest.mark.slow
@ONCE
def test_accelerate(folder: Path) -> None:
    launch = ["-m", "accelerate.commands.launch", "--num_processes", "1", "--num_machines", "1", "--cpu"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "-m", "pusl", "train"]
    flags = ["--paradigm", "pusl", "--model", "scratch:tiny", "--train", "items.jsonl", "--out", "trained"]
    run(*launch, *flags, "--max-steps", "1", "--vocab-size", "300", "--batch-size", "8")
    assert Path("trained/pusl.json").is_file()


@pytest.mark.slow
@ONCE
def test_the_demo_and_its_children(folder: Path) -> None:
    run("-m", "pusl", "demo", "--out", "demo", "--items", "400", "--epochs", "0.1")
    assert Path("demo/report.html").is_file()


@pytest.mark.slow
@ONCE
def test_the_service_and_its_workers(folder: Path) -> None:
    pytest.importorskip("fastapi")
    with Server(folder / "model") as server:
        status, answer, _ = server.wait_ready().ask(["a red drone"], k=2)
        assert status == 200 and answer["results"][0]["keyphrases"]
    assert not list(Path().glob("imported-*"))
