"""The two losses against cross entropy, against zero, against hand values, and their gradients."""

from __future__ import annotations

import pytest
import torch

from pusl.training.losses import multi_softmax_loss, sequence_loss


@pytest.mark.parametrize("width", [1, 3])
def test_one_allowed_id_is_cross_entropy(width):
    torch.manual_seed(0)
    logits, labels = torch.randn(7, 11, dtype=torch.float64).requires_grad_(), torch.randint(11, (7,))
    allowed = torch.full((7, width), -1)
    allowed[:, 0] = labels
    expected = sequence_loss(logits, labels)
    (wanted,) = torch.autograd.grad(expected, logits)
    found = multi_softmax_loss(logits, allowed)
    (gradient,) = torch.autograd.grad(found, logits)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, wanted)


def test_whole_vocabulary_allowed_gives_zero():
    logits = torch.randn(5, 9).requires_grad_()
    loss = multi_softmax_loss(logits, torch.arange(9).repeat(5, 1))
    torch.testing.assert_close(loss, torch.tensor(0.0), atol=1e-5, rtol=0)
    loss.backward()
    assert logits.grad is not None and logits.grad.abs().max() < 1e-6


def test_hand_example():
    # p = (1/2, 1/4, 1/8, 1/8); allowed {0, 2} has mass 5/8, allowed {3} has 1/8
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.125, 0.125]])).repeat(2, 1)
    loss = multi_softmax_loss(logits, torch.tensor([[0, 2], [3, -1]]))
    torch.testing.assert_close(loss, -torch.log(torch.tensor(5 / 8)) - torch.log(torch.tensor(1 / 8)))


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0]]).requires_grad_()
    loss = multi_softmax_loss(logits, torch.tensor([[1, 2]]))
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logits.grad).all()
