"""What a run leaves in its folder: nothing after wrong input, everything after a kill at its very end and --resume."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pusl.cli import main
from pusl.training import TrainConfig, train
from pusl.training.dev_scores import DevSet, warn_of_overlap
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


@pytest.mark.parametrize("force", [False, True], ids=["", "force"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("README.md", "my notes"),
        ("run.json", '{"mine": 1}'),
        ("training/data/mine.txt", "mine"),
        ("selection/mine.txt", "mine"),
        ("config.json", "{}"),
    ],
)
def test_a_folder_with_other_files_is_refused_and_stays(files, tmp_path, name, content, force):
    path = tmp_path / "mine" / name
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(InputError, match=rf"mine: holds other files \({name.split('/')[0]}\); name a new folder"):
        train(settings(files, tmp_path / "mine"), force=force)
    assert path.read_text() == content and len(list((tmp_path / "mine").rglob("*.*"))) == ("." in name)


def test_files_that_no_run_replaces_are_no_obstacle(tmp_path):
    for name in (".gitkeep", "train.log", "config.yaml"):
        (tmp_path / name).write_text("")
    assert RunFolder(tmp_path).admit(resume=False, force=False) is None
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.tensorboard.mkdir()
    folder.begin({"status": "running"}, force=True)  # a forced run that ended at once, and another one
    folder.discard()
    assert folder.admit(resume=False, force=True) is None


def test_what_a_killed_command_left_is_no_obstacle(tmp_path):
    (tmp_path / "selection").mkdir()
    for name in ("sparse-1.jsonl", "generated-1.jsonl", "generated-1.json", "selected.jsonl", "selection.json"):
        (tmp_path / "selection" / name).write_text("")
    (tmp_path / ".run.json.0123456789abcdef01234567.tmp").write_text("")
    assert RunFolder(tmp_path).admit(resume=True, force=False) is None


def test_a_damaged_run_is_still_a_run(tmp_path):
    (tmp_path / "training" / "data").mkdir(parents=True)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run.json: not valid JSON .*pass --force to start again"):
        RunFolder(tmp_path).admit(resume=True, force=False)
    assert RunFolder(tmp_path).admit(resume=False, force=True) is None


def test_nothing_to_resume_is_said(tmp_path, capsys):
    assert main(["train", "--resume", "--out", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.startswith(f"pusl: {tmp_path / 'nowhere'}: no run to resume; omit --resume")


@pytest.mark.parametrize(("shared", "warned"), [(0, False), (3, True), (20, True)])
def test_dev_items_that_are_training_items_are_counted(files, tmp_path, shared, warned, caplog):
    """Their scores would choose the model that knows its training items best."""
    rows = [{"id": f"dev-{n}" if n >= shared else str(n), "text": f"a red shoe, no. {n}", "keyphrases": ["shoe"]}
            for n in range(20)]  # fmt: skip
    write_rows(tmp_path / "dev.jsonl", rows)
    dev = DevSet(tmp_path / "dev.jsonl", 2.0, 500)
    warn_of_overlap(dev, files / "train.jsonl")
    assert bool(caplog.messages) == warned
    if warned:
        assert f"{shared} of 20 dev items are in the training file too (e.g. '0')" in caplog.messages[0]


@pytest.mark.slow
def test_a_run_warns_of_dev_items_that_are_training_items_once(files, tmp_path, caplog):
    config = settings(files, tmp_path / "model", dev=str(files / "train.jsonl"))
    train(config)
    assert sum("40 of 40 dev items are in the training file" in said for said in caplog.messages) == 1


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
