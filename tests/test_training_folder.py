"""What a run leaves in its folder: nothing after wrong input, everything after a kill at its very end and --resume."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pusl.training import TrainConfig, train
from pusl.training.record import RunFolder
from pusl_eval.files import InputError, write_rows

PIECES = ("draw_curve", "write_card", "_push")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rows = [{"id": str(n), "text": f"a red shoe, no. {n}", "keyphrases": ["shoe", "red shoe"]} for n in range(40)]
    write_rows(folder / "train.jsonl", rows)
    write_rows(folder / "columns.jsonl", [{"id": "a", "title": "x", "keyphrases": ["y"]}])
    write_rows(folder / "late.jsonl", [*rows, {"id": "z", "text": "x", "keyphrases": "not a list"}])
    write_rows(folder / "unlabeled.jsonl", [{"id": "a", "text": "x", "keyphrases": []}])
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text('{"model_type": "t5"}')
    return folder


def settings(files: Path, out: Path, **more) -> TrainConfig:
    given = {
        "model": "scratch:tiny", "train": str(files / "train.jsonl"), "out": str(out), "vocab_size": 280,
        "batch_size": 8, "max_steps": 2, **more,
    }  # fmt: skip
    return TrainConfig(**given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"train": "nowhere.jsonl"},
        {"train": "columns.jsonl"},
        {"train": "late.jsonl"},
        {"dev": "nowhere.jsonl"},
        {"dev": "unlabeled.jsonl"},
        {"model": "broken"},
        {"model": "no/such-model"},
        {"min_keyphrases": 9},
        {"accumulation": 100},
        {"report_to": "no-such-tracker"},
        {"lr": float("nan")},
        {"epochs": float("inf")},
        {"mu": float("nan")},
        {"seed": 2**32},
    ],
)
def test_wrong_input_leaves_no_run_behind(files, tmp_path, wrong, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    places = {name: str(files / value) for name, value in wrong.items() if (files / str(value)).exists()}
    with pytest.raises(InputError):
        train(settings(files, tmp_path / "model", **{**wrong, **places}))
    assert not (tmp_path / "model").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("my notes")
    with pytest.raises(InputError):
        train(settings(files, tmp_path / "mine", **{**wrong, **places}))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["README.md"]


@pytest.mark.slow
def test_force_with_a_wrong_model_keeps_the_run_that_is_there(files, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = settings(files, tmp_path / "model")
    train(config)
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    for wrong in ({"model": str(files / "broken")}, {"train": str(files / "columns.jsonl")}, {"dev": "nowhere.jsonl"}):
        with pytest.raises(InputError):
            train(dataclasses.replace(config, **wrong), force=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before


def test_a_run_does_not_replace_the_model_it_starts_from(files, tmp_path):
    """Not even with --force: after a kill there would be neither."""
    (tmp_path / "link").symlink_to(files / "broken")
    for out in (files / "broken", tmp_path / "link"):
        with pytest.raises(InputError, match="is the --model folder; name another --out"):
            train(settings(files, out, model=str(files / "broken"), vocab_size=None), force=True)
        assert [path.name for path in (files / "broken").iterdir()] == ["config.json"]


def test_missing_flags_are_named_before_torch_loads(tmp_path):
    code = (
        "import sys; from pusl.cli import main\n"
        f"code = main(['train', '--out', {str(tmp_path / 'model')!r}])\n"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["2", "False"] and "--train must be given" in done.stderr


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


@pytest.fixture(scope="module")
def undisturbed(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "model"
    train(settings(files, out))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["draw_curve", "write_card", "_push", "finished", "tidy"])
@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_a_kill_while_a_run_finishes_is_repaired_by_resume(files, tmp_path, piece, after, undisturbed, monkeypatch):
    pushed = []
    monkeypatch.setattr("pusl.training.training_run.check_login", lambda name: "me")
    monkeypatch.setattr("pusl.training.training_run._push", lambda folder, config: pushed.append(config.push_to_hub))
    config = settings(files, tmp_path / "model", push_to_hub="me/model", push_labels=True)
    with monkeypatch.context() as patched:
        where = "pusl.training.training_run" if piece in PIECES else "pusl.training.record.RunFolder"
        name = f"{where}.{'write' if piece == 'finished' else piece}"
        real = RunFolder.write if piece == "finished" else RunFolder.tidy if piece == "tidy" else None
        if real is None:
            import pusl.training.training_run

            real = getattr(pusl.training.training_run, piece)

        def kill(*args):
            if piece == "finished" and args[1]["status"] != "finished":
                return real(*args)
            if after:
                real(*args)
            raise Killed

        patched.setattr(name, kill)
        with pytest.raises(Killed):
            train(config)
    result = train(config, resume=True)
    assert result.finished and pushed
    found, expected = ({path.name for path in folder.iterdir()} for folder in (tmp_path / "model", undisturbed))
    assert found == expected and "training" not in found
    for name in ("model.safetensors", "labels.txt.gz", "pusl.json", "tokenizer.json"):
        assert (tmp_path / "model" / name).read_bytes() == (undisturbed / name).read_bytes(), name
    records = [json.loads((folder / "run.json").read_text()) for folder in (tmp_path / "model", undisturbed)]
    assert records[0]["status"] == "finished" and records[0]["history"] == records[1]["history"]


@pytest.mark.slow
def test_large_seeds_train(files, tmp_path):
    assert train(settings(files, tmp_path / "model", max_steps=1, seed=2**32 - 1)).finished
