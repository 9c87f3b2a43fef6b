"""A model folder whose weights or pusl.json are damaged is refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding_models import checkpoint
from safetensors.torch import load_file, save_file

from pusl.checkpoint import load_base, load_checkpoint, load_labels, save_checkpoint, save_labels
from pusl.cli import main
from pusl.decoding.generator import KeyphraseGenerator
from pusl.fusion.folder import read_fused
from pusl.fusion.learn import fuse
from pusl_eval.files import InputError, write_rows

NORM = "decoder.final_layer_norm.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    one = checkpoint("pusl")
    meta = {"paradigm": "pusl", "defaults": {"max_phrase_tokens": 5}}
    return save_checkpoint(tmp_path / "model", one.model, one.tokenizer, meta)


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_whole_folder_loads(folder: Path) -> None:
    assert load_checkpoint(folder).model is not None


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder: Path) -> None:
    """Without its settings, transformers reads the tokenizer as T5's and adds a hundred marks that have no weights."""
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match=r"its tokenizer has \d+ tokens, its model \d+"):
        load_checkpoint(folder)


@pytest.mark.parametrize("load", [load_checkpoint, lambda folder: load_base(str(folder))], ids=["checkpoint", "base"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: change_weights(folder, lambda w: w.pop(NORM)), f"lacks {NORM}"),
        (lambda folder: change_config(folder, num_layers=5), "lacks encoder.block"),
        (lambda folder: change_config(folder, num_layers=1), "config.json does not mention: encoder.block"),
        (lambda folder: change_weights(folder, lambda w: w.update(extra=torch.ones(2))), "does not mention: extra"),
        (lambda folder: change_weights(folder, lambda w: w.update({NORM: torch.ones(3)})), "cannot be loaded"),
        (lambda folder: change_weights(folder, lambda w: w[NORM].fill_(torch.nan)), f"{NORM} holds values"),
        (lambda folder: change_weights(folder, lambda w: w[NORM][:1].fill_(torch.inf)), f"{NORM} holds values"),
    ],
    ids=["missing", "more layers", "fewer layers", "surplus", "shape", "NaN", "infinite"],
)
def test_damaged_weights_are_refused(folder: Path, load: Any, damage: Any, said: str) -> None:
    damage(folder)
    with pytest.raises(InputError, match=said) as raised:
        load(folder)
    assert "\n" not in str(raised.value) and str(folder) in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "'format' must be an integer"),
        ({"format": 99}, "newer than this PUSL"),
        ({"paradigm": ["pusl"]}, "'paradigm' must be one of"),
        ({"defaults": [1]}, "'defaults' must be an object"),
        ({"defaults": {"k": "ten"}}, "'k' must be an integer"),
        ({"defaults": {"max_source_length": 0}}, "'max_source_length' must be an integer from 1"),
        ({"defaults": {"max_phrase_tokens": 1e300}}, "'max_phrase_tokens' must be an integer"),
    ],
    ids=str,
)
def test_a_damaged_pusl_json_is_refused(folder: Path, change: dict[str, Any], said: str) -> None:
    path = folder / "pusl.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=said) as raised:
        load_checkpoint(folder)
    assert "\n" not in str(raised.value) and str(path) in str(raised.value)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("load", [load_checkpoint, lambda folder: load_base(str(folder))], ids=["checkpoint", "base"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_or_cut_file_is_named(folder: Path, load: Any, name: str) -> None:
    cut(folder / name)
    with pytest.raises(InputError, match="copy the folder again or train again") as raised:
        load(folder)
    assert str(raised.value).startswith(str(folder / name)) and "\n" not in str(raised.value)
    (folder / name).unlink()
    with pytest.raises(InputError, match=rf"{name} is missing\)?; copy the folder again or train again") as raised:
        load(folder)
    assert str(folder) in str(raised.value)


def test_a_tokenizer_that_transformers_makes_from_nothing_is_refused(folder: Path) -> None:
    """It makes a T5 tokenizer of a hundred marks where there is no file to read one from."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "T5Tokenizer"}))
    (folder / "tokenizer.json").unlink()
    for load in (load_checkpoint, lambda name: load_base(str(name))):
        with pytest.raises(InputError, match=r"tokenizer\.json is missing"):
            load(folder)


@pytest.mark.parametrize("size", [0, 1, 10], ids="{} bytes".format)
def test_damaged_labels_are_refused_where_they_are_read(folder: Path, size: int) -> None:
    save_labels(folder, ["red shoe", "boot"])
    path = folder / "labels.txt.gz"
    path.write_bytes(path.read_bytes()[:size])
    generator = KeyphraseGenerator(load_checkpoint(folder))
    for read in (lambda: load_labels(folder), lambda: generator.explain("a red shoe", ["red shoe"])):
        with pytest.raises(InputError, match="damaged") as raised:
            read()
        assert str(raised.value).startswith(f"{path}: ") and "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("fused")
    items = [{"id": name, "text": f"a red shoe {name}", "keyphrases": ["shoe"]} for name in "ab"]
    write_rows(home / "train.jsonl", items)
    fuse(home / "train.jsonl", None, ["knn", "frequency", "text"], home / "fused")
    return home / "fused"


@pytest.mark.parametrize("part", ["ranker.npz", "memory", "sources/frequency", "sources/frequency/baseline.json"])
def test_a_missing_part_of_a_fused_model_is_named(fused: Path, tmp_path: Path, part: str) -> None:
    copy = Path(shutil.copytree(fused, tmp_path / "copy"))
    assert KeyphraseGenerator.from_pretrained(copy).generate(["a shoe"], 1)[0].keyphrases == ["shoe"]
    shutil.rmtree(copy / part) if (copy / part).is_dir() else (copy / part).unlink()
    with pytest.raises(InputError, match="copy the folder again") as raised:
        KeyphraseGenerator.from_pretrained(copy)
    assert str(copy) in str(raised.value) and Path(part).name in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("fusion.json", '{"percent": {', "fusion.json: not valid JSON"),
        ("pusl.json", '{"paradigm": "fused", "sources": [1], "depth": 1, "defaults": {}, "memory": "m"}', "is damaged"),
    ],
    ids=["fusion.json", "pusl.json"],
)
def test_damaged_json_of_a_fused_model_is_refused(
    fused: Path, tmp_path: Path, name: str, content: str, said: str
) -> None:
    copy = Path(shutil.copytree(fused, tmp_path / "copy"))
    (copy / name).write_text(content)
    with pytest.raises(InputError, match=said) as raised:
        KeyphraseGenerator.from_pretrained(copy)
    assert str(copy / name) in str(raised.value) and "\n" not in str(raised.value)


def test_updating_a_trained_model_says_what_it_is(
    folder: Path, fused: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = fused.parent / "train.jsonl"
    assert main(["fuse", "--update", str(folder), "--train", str(train)]) == 2
    said = capsys.readouterr().err
    assert "a trained model (pusl), not a fused one" in said and "--out NEW" in said
    with pytest.raises(InputError, match="no such model folder"):
        read_fused(folder / "nowhere")
    with pytest.raises(InputError, match=r"not a fused model \(no pusl.json\)"):
        read_fused(folder.parent)
