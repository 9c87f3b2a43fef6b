"""The simulated device behaves as a GPU does, and counts what a GPU would do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from decoding_models import padded_batch, random_t5, random_texts
from simulated_device import DEVICE, MixedDevices, on_device, simulated_device


def test_numbers_are_those_of_the_cpu_and_every_kernel_counts() -> None:
    x, y = torch.randn(4, 6), torch.randn(6, 3)
    with simulated_device() as log:
        a, b = x.to("sim"), y.to(DEVICE)
        log.clear()
        c = (a @ b).relu_().view(3, 4).t()  # two kernels, two views
        assert c.device == DEVICE
        assert log.operations == 2, log.kernels
        assert not log.copies and not log.waits
        c = c.cpu()
    assert torch.equal(c, (x @ y).relu().view(3, 4).t())


def test_writing_in_place_and_through_views() -> None:
    with simulated_device():
        x = torch.zeros(3, 4, device="sim")
        row = x[1]
        row += 1
        x[:, 2] = 5.0
        x.index_copy_(0, torch.tensor([2], device="sim"), torch.full((1, 4), 7.0, device="sim"))
        assert x.cpu().tolist() == [[0, 0, 5, 0], [1, 1, 5, 1], [7, 7, 7, 7]]


def test_what_a_gpu_refuses_is_refused() -> None:
    with simulated_device():
        x = torch.ones(3, device="sim")
        with pytest.raises(MixedDevices, match="sim:0 and cpu"):
            x + torch.ones(3)
        with pytest.raises(MixedDevices):
            F.rms_norm(torch.ones(3), (3,), x)
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()
        assert (x + torch.tensor(1.0)).cpu().tolist() == [2, 2, 2]  # a number may come from the CPU


def test_copies_and_waits_are_told_apart() -> None:
    with simulated_device() as log:
        x = torch.arange(4).to("sim", non_blocking=True)
        here = torch.empty(4, dtype=torch.int64)
        here.copy_(x, non_blocking=True)
        assert log.copies == {"to device, asynchronous": 1, "to host, asynchronous": 1} and not log.waits
        x.cpu()
        assert x.sum().item() == 6 and x.tolist() == here.tolist()
        torch.tensor([1], device="sim")
        assert log.copies["to host"] == 2 and log.copies["to device"] == 1
        assert log.waits == {"copy": 3, "item": 1}
        log.clear()
        x[x > 2] = 0  # masked_fill_
        assert not log.waits
        x[x > 1], torch.nonzero(x), bool((x == 0).all())
        assert log.waits == {"size": 2, "item": 1}


def test_a_whole_model_runs_there_in_inference_mode() -> None:
    model, batch = random_t5(0, "gated-gelu", tied=False), padded_batch(random_texts(0, 3))
    tokens = torch.tensor([[0, 97, 5]] * 3)
    with torch.inference_mode():
        expected = model(**batch, decoder_input_ids=tokens).logits
        with simulated_device():
            there = on_device(model)
            moved = {name: part.to("sim") for name, part in batch.items()}
            logits = there(**moved, decoder_input_ids=tokens.to("sim")).logits.cpu()
    assert torch.allclose(logits, expected, atol=1e-5)


def test_tied_weights_stay_tied() -> None:
    with simulated_device():
        there = on_device(random_t5(0))
        assert there.lm_head.weight is there.shared.weight is there.encoder.embed_tokens.weight


def test_torch_does_not_see_the_device_outside() -> None:
    assert not torch.accelerator.is_available()
    with simulated_device():
        assert torch.accelerator.is_available()
    assert not torch.accelerator.is_available()
