"""word-label and doc-vec from a pretrained encoder, and the BiLSTM: what is read, what moves, what is stored."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from test_baselines import zoo

from pusl.baselines import attention
from pusl.baselines.attention import PAD, AttentionConfig, AttentionXml, AttentionXmlConfig, DocVec, WordLabel
from pusl.baselines.attention_net import BiLstm
from pusl.baselines.label_matrix import TrainingData, label_matrix
from pusl.baselines.model import load_baseline, save_baseline
from pusl.baselines.pretrained import load_encoder
from pusl.checkpoint import scratch_model
from pusl.cli import main
from pusl.tokenizer import train_tokenizer
from pusl_eval.files import InputError, write_rows

with contextlib.suppress(pytest.skip.Exception):  # torch is too old for it
    import_module("simulated_device")  # before any backward pass of this process: autograd learns of devices once

ROWS = zoo(60, 1)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A T5 of two layers with random weights, as a folder."""
    folder = tmp_path_factory.mktemp("t5")
    tokenizer = train_tokenizer([row["text"] for row in ROWS], 200)
    model = scratch_model("tiny", tokenizer, dropout=0.0, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def data() -> TrainingData:
    labels, matrix = label_matrix([row["keyphrases"] for row in ROWS])
    return TrainingData([row["text"] for row in ROWS], labels, matrix)


def settings(encoder: str, **more: object) -> AttentionConfig:
    quick = {"epochs": 8, "batch": 16, "rate": 0.02, "dropout": 0.0, "length": 24, "encoder_rate": 2e-3}
    return AttentionConfig(**{**quick, "encoder": encoder, **more})  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("kind, name", [(WordLabel, "word-label"), (DocVec, "doc-vec")])
def test_a_pretrained_encoder_learns_and_survives_a_round_trip(kind, name, encoder: str, tmp_path: Path) -> None:
    model = kind(settings(encoder))
    model.fit(data())
    numbers, scores = model.rank([row["text"] for row in ROWS], 3)
    hits = data().matrix[np.arange(60)[:, None], numbers].sum() / data().matrix.sum()
    assert hits > 0.85
    save_baseline(tmp_path / "model", name, model)
    again = load_baseline(tmp_path / "model", name)
    found, values = again.rank([row["text"] for row in ROWS], 3)
    assert (found == numbers).all() and np.allclose(values, scores)


def test_lower_layers_move_less(encoder: str) -> None:
    before, _ = load_encoder(encoder)
    model = DocVec(settings(encoder, epochs=1, layer_decay=0.1, encoder_rate=1e-3))
    model.fit(data())

    def moved(layer: int) -> float:
        pairs = zip(before._layers[layer].parameters(), model.net.encoder._layers[layer].parameters(), strict=True)
        return max(float((a - b).detach().abs().max()) for a, b in pairs)

    assert 0 < moved(0) < 0.3 * moved(1)
    rates = [group["lr"] for group in before.groups(1e-3, 0.1)]
    assert rates == pytest.approx([1e-3, 1e-4, 1e-5])


def test_layers_are_kept_from_below(encoder: str) -> None:
    whole, tokenizer = load_encoder(encoder)
    short, _ = load_encoder(encoder, 1)
    assert len(short._layers) == 1 and len(whole._layers) == 2
    assert torch.equal(next(short._layers[0].parameters()), next(whole._layers[0].parameters()))
    ids = torch.tensor(tokenizer(["red cat"])["input_ids"])
    assert not torch.equal(short(ids), whole(ids))
    with pytest.raises(InputError, match="--encoder-layers is 9; the encoder has 2 layers"):
        load_encoder(encoder, 9)


def test_wrong_encoders_are_one_line(encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "train.jsonl", ROWS)
    (tmp_path / "empty").mkdir()
    base = ["--train", str(tmp_path / "train.jsonl"), "--save", str(tmp_path / "model")]
    assert main(["baseline", "doc-vec", *base, "--encoder", str(tmp_path / "empty")]) == 2
    assert "not a folder with a model" in capsys.readouterr().err
    assert main(["baseline", "attention-xml", *base, "--encoder", encoder]) == 2
    assert "its own BiLSTM" in capsys.readouterr().err
    assert main(["baseline", "doc-vec", *base, "--encoder", encoder, "--layers", "2"]) == 2
    assert "with --encoder it is --encoder-layers" in capsys.readouterr().err
    assert main(["baseline", "doc-vec", *base, "--encoder-layers", "2"]) == 2
    assert "--encoder-layers needs --encoder" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_the_bilstm_does_not_see_padding() -> None:
    torch.manual_seed(0)
    net = BiLstm(20, AttentionXmlConfig(width=8, dropout=0.0)).eval()
    ids = torch.tensor([[3, 4, 5]])
    padded = torch.tensor([[3, 4, 5, PAD, PAD], [6, 7, 8, 9, 10]])
    assert torch.allclose(net(ids)[0], net(padded)[0, :3], atol=1e-6)


@pytest.mark.slow
def test_attention_xml_learns() -> None:
    model = AttentionXml(AttentionXmlConfig(width=32, epochs=30, rate=0.02, batch=16, dropout=0.0))
    model.fit(data())
    numbers, _ = model.rank([row["text"] for row in ROWS], 3)
    assert data().matrix[np.arange(60)[:, None], numbers].sum() / data().matrix.sum() > 0.85
    assert model.net.out is None  # shared last layers, as published


@pytest.mark.slow
def test_the_depth_table_sweeps_a_pretrained_encoder(encoder: str, tmp_path: Path) -> None:
    script = Path(__file__).parent.parent / "scripts" / "studies" / "paper.py"
    command = [sys.executable, str(script), "tail-table5", "--smoke", "--model", encoder, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "tail-table5.json").read_text())["rows"]
    assert [(row["system"], row["layers"], row["rates"]) for row in rows] == [
        (system, 1, rates) for system in ("doc-vec", "word-label") for rates in ("slanted", "flat")
    ]
    wrong = subprocess.run([*command[:-3], str(tmp_path), "--out", str(tmp_path / "b")], capture_output=True, text=True)
    assert wrong.returncode == 2 and "cannot be read" in wrong.stderr


NETWORKS = {
    "word-label": (WordLabel, AttentionConfig),
    "doc-vec": (DocVec, AttentionConfig),
    "attention-xml": (AttentionXml, AttentionXmlConfig),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_and_ranks_on_a_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated device refuses tensors of different places, as a GPU does; the weights are those of a CPU."""
    from simulated_device import DEVICE, simulated_device

    kind, config = NETWORKS[name]
    quick = {"width": 16, "heads": 2, "epochs": 1, "batch": 16, "length": 8, "dropout": 0.0, "negatives": 8}
    here, there = (kind(config(**quick)) for _ in range(2))
    here.fit(data())
    texts = [row["text"] for row in ROWS[:8]]
    numbers, scores = here.rank(texts, 2)
    monkeypatch.setattr(attention, "resolve_device", lambda name: "sim")
    with simulated_device() as log:
        there.fit(data())
        assert {parameter.device for parameter in there.net.parameters()} == {DEVICE}
        assert log.waits["item"] == 0, log.places  # nothing asks for a number between two steps
        found = there.rank(texts, 2)
        for (key, one), other in zip(here.net.state_dict().items(), there.net.state_dict().values(), strict=True):
            apart = (one - other.cpu()).abs()
            if key.endswith("in_proj_bias"):
                apart[16:32] = 0.0  # a bias of keys changes nothing: its gradient is rounding, which Adam enlarges
            assert apart.max() < 1e-4, key
    assert np.array_equal(numbers, found[0])
    assert np.allclose(scores, found[1], atol=1e-4)
