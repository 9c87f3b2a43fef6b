"""Model folders, saved baselines and universes from strangers: loading them runs no code of theirs."""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoding_models import checkpoint, tokenizer

from pusl.baselines.label_matrix import TrainingData, label_matrix
from pusl.baselines.model import BASELINES, baseline_class, load_baseline, save_baseline
from pusl.checkpoint import load_base, load_checkpoint, save_checkpoint
from pusl.decoding.universe import Universe
from pusl_eval.files import InputError

CODE = "from pathlib import Path\nPath('hacked').touch()\n"


class Bomb:
    """Unpickling it makes the file `hacked`."""

    def __reduce__(self) -> Any:
        return (exec, (CODE,))


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path("hacked").exists(), "a stranger's code has run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    one = checkpoint("pusl")
    return save_checkpoint(tmp_path / "model", one.model, one.tokenizer, {"paradigm": "pusl", "defaults": {}})


def refused(folder: Path) -> None:
    for load in (load_checkpoint, lambda path: load_base(str(path))):
        with pytest.raises(InputError) as raised:
            load(folder)
        assert "\n" not in str(raised.value)


def test_pickled_weights_are_not_unpickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"shared.weight": Bomb()}, folder / "pytorch_model.bin")
    refused(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    refused(folder)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_a_model_folder_is_not_run(folder: Path, file: str) -> None:
    (folder / "evil.py").write_text(CODE)
    path = folder / file
    names = {"AutoConfig": "evil.Config", "AutoModelForSeq2SeqLM": "evil.Model", "AutoTokenizer": ["evil.T", "evil.T"]}
    about = {**json.loads(path.read_text()), "auto_map": names}
    if "tokenizer" in file:
        about["tokenizer_class"] = "EvilTokenizer"
    else:
        about["model_type"] = "evil"
    path.write_text(json.dumps(about))
    with contextlib.suppress(InputError):
        load_checkpoint(folder)  # transformers may ignore what it does not know; it must not run it


def test_a_universe_index_is_not_unpickled(tmp_path: Path) -> None:
    (tmp_path / "u.txt").write_text("red shoe\nlamp\n")
    Universe.open(tmp_path / "u.txt", tokenizer())
    np.save(tmp_path / "u.txt.index" / "digests.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="is damaged"):
        Universe.load(tmp_path / "u.txt.index")
    assert len(Universe.open(tmp_path / "u.txt", tokenizer())) == 2, "it is built again"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # numpy leaves damaged files open
@pytest.mark.parametrize("name", ["frequency", "knn", "svm", "logistic", "fastxml"])
def test_a_saved_baseline_is_not_unpickled_and_damage_is_one_line(tmp_path: Path, name: str) -> None:
    assert name in BASELINES
    texts = [f"{word} number {i}" for i in range(8) for word in ("red shoe", "blue lamp", "green boot")]
    labels = [["shoe"], ["lamp"], ["boot", "lamp"]] * 8
    kind = baseline_class(name)
    model = kind(kind.Config())
    model.fit(TrainingData(texts, *label_matrix(labels)))
    save_baseline(tmp_path / "saved", name, model)
    assert load_baseline(tmp_path / "saved").rank(["red shoe"], 1)
    for path in sorted((tmp_path / "saved").iterdir()):
        for content in (b"", path.read_bytes()[: path.stat().st_size // 2], pickle.dumps(Bomb()), b"[" * 100_000):
            shutil.rmtree(tmp_path / "copy", ignore_errors=True)
            shutil.copytree(tmp_path / "saved", tmp_path / "copy")
            (tmp_path / "copy" / path.name).write_bytes(content)
            with pytest.raises(InputError) as raised:
                load_baseline(tmp_path / "copy")
            assert "\n" not in str(raised.value) and "copy" in str(raised.value)
