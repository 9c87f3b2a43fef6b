"""A loss over some tokens of the vocabulary: exact where all others are drawn, right on average elsewhere."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from pusl.training.losses import multi_softmax_loss, sequence_loss
from pusl.training.sampled_softmax import SampledSoftmax

KEPT = np.array([7, 2, 11, 2])


@pytest.fixture
def head():
    """Hidden states of five positions, a head of 40 tokens, and right answers among the kept ones."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 8, generator=generator, dtype=torch.float64) for n in (5, 40))
    return hidden, weight.requires_grad_(), torch.tensor([2, 7, 11, 7, 2])


def test_with_all_others_drawn_it_is_the_full_softmax(head):
    hidden, weight, labels = head
    sampled = SampledSoftmax(KEPT, 40, 1000)
    losses = [
        sequence_loss(functional.linear(hidden, weight), labels),
        sequence_loss(sampled.logits(hidden, weight), sampled.places(labels)),
    ]
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, weight)[0] for loss in losses))


def test_lists_of_allowed_tokens_keep_their_padding(head):
    hidden, weight, _ = head
    allowed = torch.tensor([[2, 7], [11, -1], [2, 11], [7, -1], [7, 2]])
    sampled = SampledSoftmax(KEPT, 40, 37)
    torch.testing.assert_close(
        multi_softmax_loss(sampled.logits(hidden, weight), sampled.places(allowed)),
        multi_softmax_loss(functional.linear(hidden, weight), allowed),
    )


def test_drawn_tokens_stand_for_all_others_on_average(head):
    hidden, weight, _ = head
    full = functional.linear(hidden, weight).exp().sum(1)  # (N,)
    sampled = SampledSoftmax(KEPT, 40, 5)
    torch.manual_seed(0)
    with torch.no_grad():
        estimates = torch.stack([sampled.logits(hidden, weight).exp().sum(1) for _ in range(4000)])
    assert estimates.shape == (4000, 5) and estimates.std(0).min() > 0
    error = (estimates.mean(0) - full).abs() / (estimates.std(0) / 4000**0.5)
    assert error.max() < 4  # standard errors


def test_it_lasts_until_the_next_call_of_with_loss():
    """Views of a model share their state, so a loss without sampling has to say so."""
    from transformers import T5Config, T5ForConditionalGeneration

    from pusl.training.objective import with_loss

    model = T5ForConditionalGeneration(T5Config(vocab_size=12, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    sampled = SampledSoftmax(KEPT, 12, 1)
    assert with_loss(model, sampled).sampled_softmax is sampled
    assert with_loss(model).sampled_softmax is None


@pytest.mark.slow
@pytest.mark.parametrize("paradigm", ["pusl", "groov"])
def test_a_run_learns_and_can_be_repeated(tmp_path, paradigm):
    from pusl.checkpoint import scratch_model
    from pusl.tokenizer import train_tokenizer
    from pusl.training import TrainConfig, train

    colors, things = ("red", "blue", "green"), ("shoe", "lamp", "chair", "mug")
    rows = [
        {"id": f"{color}-{thing}-{i}", "text": f"a {color} {thing} {i}", "keyphrases": [color, f"{color} {thing}"]}
        for i in range(8) for color in colors for thing in things
    ]  # fmt: skip
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = train_tokenizer([row["text"] for row in rows] + ["words that no keyphrase has"], 300)
    base = tmp_path / "base"
    scratch_model("tiny", tokenizer, dropout=0.1, seed=0).save_pretrained(base)
    tokenizer.save_pretrained(base)
    weights, histories = [], []
    for name, sampled in (("one", 20), ("again", 20), ("full", None)):
        config = TrainConfig(
            paradigm=paradigm, model=str(base), train=str(tmp_path / "train.jsonl"), out=str(tmp_path / name),
            max_steps=20, batch_size=16, lr=6e-3, sampled_softmax=sampled, max_phrase_tokens=8, max_target_length=32,
            log_every=1,
        )  # fmt: skip
        train(config)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
        history = json.loads((tmp_path / name / "run.json").read_text())["history"]
        histories.append([point["loss"] for point in history if "loss" in point])
    assert weights[0] == weights[1] != weights[2]
    sampled_curve, full_curve = histories[0], histories[2]
    assert sampled_curve[-1] < sampled_curve[0] / 2
    assert abs(sampled_curve[-1] - full_curve[-1]) < 0.1 * full_curve[0]
