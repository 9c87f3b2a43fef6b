"""A model folder whose weights or pusl.json are damaged is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding_models import checkpoint
from safetensors.torch import load_file, save_file

from pusl.checkpoint import load_base, load_checkpoint, save_checkpoint
from pusl_eval.files import InputError

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
