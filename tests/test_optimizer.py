"""Muon: orthogonal steps for matrices, Adam for the rest, a state that can be saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from pusl.training.optimizer import Muon, orthogonal


def small_t5(tied: bool = True) -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    config = T5Config(vocab_size=40, d_model=16, d_kv=4, num_heads=2, d_ff=24, num_layers=1)
    model = T5ForConditionalGeneration(config)
    if not tied:
        model.lm_head = torch.nn.Linear(16, 40, bias=False)
    return model


def give_gradients(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 8, 20), (2, 20, 8), (1, 1, 5)])
def test_singular_values_end_near_one_and_directions_stay(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    turned = orthogonal(matrices)
    values = torch.linalg.svdvals(turned)
    assert turned.shape == matrices.shape
    assert values.min() > 0.3 and values.max() < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    inner = left.mT @ turned @ right.mT  # diagonal, if the singular vectors are the same
    assert torch.allclose(inner, torch.diag_embed(inner.diagonal(dim1=1, dim2=2)), atol=1e-4)


def test_each_parameter_is_in_one_group_and_matrices_lead() -> None:
    model = small_t5(tied=False)
    optimizer = Muon(model, lr=0.02)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {group["part"]: [names[id(p)] for p in group["params"]] for group in optimizer.param_groups}
    assert sorted(name for group in groups.values() for name in group) == sorted(names.values())
    assert next(iter(groups)) == "matrices"  # Trainer logs the first group's rate
    assert optimizer.param_groups[0]["lr"] == 0.02
    assert "lm_head.weight" in groups["embeddings"] and "shared.weight" in groups["embeddings"]
    assert all("SelfAttention" in n or "EncDecAttention" in n or "DenseReluDense" in n for n in groups["matrices"])
    assert any("relative_attention_bias" in name for name in groups["vectors"])


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon to compare with")
def test_matrices_move_as_with_torchs_muon() -> None:
    """torch's own iterates in bfloat16, hence the tolerance; a wrong scale or momentum is far outside of it."""
    ours, theirs = small_t5(), small_t5()
    mine = Muon(ours, lr=0.02)
    chosen = dict(theirs.named_parameters())
    names = [name for name, p in ours.named_parameters() if any(p is q for q in mine.param_groups[0]["params"])]
    reference = torch.optim.Muon([chosen[name] for name in names], lr=0.02, weight_decay=0.0, adjust_lr_fn="original")
    before = {name: chosen[name].detach().clone() for name in names}
    for step in range(4):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        mine.step()
        reference.step()
    for name in names:
        moved = chosen[name] - before[name]
        difference = dict(ours.named_parameters())[name] - chosen[name]
        assert difference.norm() < 0.05 * moved.norm(), name


def test_embeddings_move_as_with_torchs_adam() -> None:
    ours, theirs = small_t5(), small_t5()
    mine = Muon(ours, lr=0.02)
    rate = next(group["lr"] for group in mine.param_groups if group["part"] == "embeddings")
    reference = torch.optim.Adam([theirs.shared.weight], lr=rate)
    for step in range(5):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        mine.step()
        reference.step()
    assert torch.allclose(ours.shared.weight, theirs.shared.weight, atol=1e-6)


def test_a_saved_state_goes_on_as_if_never_saved(tmp_path: Path) -> None:
    straight, stopped = small_t5(), small_t5()
    optimizer = Muon(straight, lr=0.02, weight_decay=0.1)
    first = Muon(stopped, lr=0.02, weight_decay=0.1)
    for step in range(3):
        for model, chosen in ((straight, optimizer), (stopped, first)):
            give_gradients(model, step)
            chosen.step()
    torch.save(first.state_dict(), tmp_path / "optimizer.pt")
    second = Muon(stopped, lr=0.5)
    second.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for model, chosen in ((straight, optimizer), (stopped, second)):
        give_gradients(model, 9)
        chosen.step()
    for one, other in zip(straight.parameters(), stopped.parameters(), strict=True):
        assert torch.equal(one, other)


def test_long_matrices_take_the_short_way_to_the_same_place() -> None:
    """Iterating on x xT alone (long matrices) is the same polynomial as iterating on x."""
    square = torch.randn((2, 8, 8), generator=torch.Generator().manual_seed(3))
    long = torch.cat([square, torch.zeros(2, 8, 12)], 2)
    assert torch.allclose(orthogonal(long)[:, :, :8], orthogonal(square), atol=1e-5)


def test_parameters_without_a_gradient_rest() -> None:
    model = small_t5()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    Muon(model, lr=0.02, weight_decay=0.5).step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
