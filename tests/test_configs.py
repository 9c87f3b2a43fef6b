"""Every shipped config is a test case; unknown keys and bad values are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from pusl.cli import main
from pusl.config import build
from pusl.training.train_config import TrainConfig, resolve
from pusl_eval.files import InputError

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))


def test_the_experiments_of_the_paper_and_the_shared_sets_have_one_each():
    assert {path.stem for path in CONFIGS} >= {
        "eurlex-4.3k", "amazoncat", "wikipedia-1m", "ads-xmc-like", "tate", "tate_hier", "debtags", "cdnjs",
    }  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_is_accepted(path, tmp_path):
    data = tmp_path / "train.jsonl"
    data.write_text('{"id": "a", "text": "t", "keyphrases": ["k"]}\n')
    config = resolve(build(TrainConfig, {"train": str(data), "out": str(tmp_path / "model")}, path))
    assert config.paradigm == "pusl" and config.metric == "B@2mu" and config.loss == "sequence"
    if "paper" in path.read_text().split("lr:")[1].splitlines()[0]:
        assert (config.lr, config.batch_size, config.epochs, config.model) == (2e-4, 32, 10, "google-t5/t5-base")
    assert path.read_text().startswith("#"), "says what it is"
    assert f"configs/{path.name}" in path.read_text(), "and how it is run"


def test_flags_win_over_the_file():
    config = build(TrainConfig, {"lr": 0.5, "paradigm": "groov"}, CONFIGS[0])
    assert (config.lr, config.paradigm) == (0.5, "groov")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("learning_rate: 1e-3", "unknown key 'learning_rate'"),
        ("epoch: 3", "did you mean 'epochs'"),
        ("epochs: many", "key 'epochs': expected float"),
        ("batch_size: 0", "'batch_size' is 0; it must be at least 1"),
        ("paradigm: one2many", "allowed: one2one, one2seq, groov, pusl"),
        ("order: random", "allowed: given, shuffle, frequency"),
        ("bf16: 1", "key 'bf16': expected bool"),
    ],
)
def test_bad_keys_and_values_are_named(tmp_path, capsys, line, message):
    path = tmp_path / "bad.yaml"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        build(TrainConfig, {}, path)
    assert main(["train", "--config", str(path), "--train", "x", "--out", "y"]) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) <= 2
