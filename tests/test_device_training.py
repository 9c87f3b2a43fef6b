"""Training on GPUs, as far as it can be tried without one: whole graphs, no waits, never nn.DataParallel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding_models import checkpoint, tokenizer
from simulated_device import on_device, simulated_device
from torch.utils.data import DataLoader
from transformers import TrainingArguments

from pusl import paradigms
from pusl.devices import float32_products
from pusl.tokenizer import token_ids
from pusl.training import TrainConfig
from pusl.training.collate import BatchPlan, Collator, TokenizedItem
from pusl.training.objective import IGNORED, with_loss
from pusl.training.record import RunFolder
from pusl.training.train_config import resolve
from pusl.training.trainer import KeyphraseTrainer
from pusl.training.training_run import _arguments

ITEMS = [TokenizedItem([20, 21, 22, 1], [[30, 31], [32]]), TokenizedItem([23, 1], [[33], [34, 35, 36], [37]])]
CASES = [("pusl", False), ("pusl", True), ("one2one", False), ("one2seq", False), ("groov", True)]


def batch_of(paradigm: str, order_free: bool) -> dict[str, Any]:
    collator = Collator(paradigms.get(paradigm), token_ids(tokenizer()), order_free=order_free)
    made = collator(ITEMS)
    return {name: value for name, value in made.items() if isinstance(value, torch.Tensor)}


@pytest.mark.slow
@pytest.mark.parametrize(("paradigm", "order_free"), CASES)
def test_the_forward_with_our_losses_is_one_graph(paradigm: str, order_free: bool) -> None:
    model, batch = with_loss(checkpoint().model), batch_of(paradigm, order_free)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    expected = model(**batch)["loss"]
    assert torch.allclose(compiled(**batch)["loss"], expected)
    positions = batch.pop("positions")
    assert torch.equal(positions, torch.nonzero(batch["labels"].flatten() != IGNORED)[:, 0])
    assert model(**batch)["loss"] == expected  # they are found where nobody names them


@pytest.mark.parametrize(("paradigm", "order_free"), CASES)
def test_our_losses_wait_for_nothing(paradigm: str, order_free: bool) -> None:
    batch = batch_of(paradigm, order_free)
    with torch.no_grad():
        expected = with_loss(checkpoint().model)(**batch)["loss"]
        with simulated_device() as log:
            model = with_loss(on_device(checkpoint().model))
            there = {name: value.to("sim") for name, value in batch.items()}
            log.clear()
            loss = model(**there)["loss"]
            ours = {place for kind, place in log.places if place.startswith(("objective.py", "losses.py"))}
            assert not ours, log.places
            assert loss.cpu() == pytest.approx(expected.item(), rel=1e-4)


def trainer_with(args: TrainingArguments) -> KeyphraseTrainer:
    plan = BatchPlan(*torch.tensor([[4, 2], [5, 8]]).numpy(), rows=2)
    return KeyphraseTrainer(
        plan=plan, score=None, keep=lambda scores: None, metric="B@2mu", patience=0, seed=0,
        model=with_loss(checkpoint().model), args=args, train_dataset=ITEMS,
        data_collator=Collator(paradigms.get("pusl"), token_ids(tokenizer())),
    )  # fmt: skip


def test_several_gpus_without_a_launcher_are_never_data_parallel(tmp_path: Any, capsys: Any) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", max_steps=1)
    assert args.n_gpu < 2
    args._n_gpu = 4
    trainer = trainer_with(args)
    wrapped = trainer._wrap_model(trainer.model)
    assert not isinstance(wrapped, torch.nn.DataParallel) and trainer.args.n_gpu == 1
    assert "4 GPUs are here and one is used" in capsys.readouterr().err
    assert trainer.args.train_batch_size == args.per_device_train_batch_size


def test_batches_are_pinned_and_moved_without_a_wait(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", max_steps=1)
    trainer = trainer_with(args)
    loader = trainer.get_train_dataloader()
    assert isinstance(loader, DataLoader) and loader.pin_memory == torch.cuda.is_available()
    with simulated_device() as log:
        monkeypatch.setattr(type(args), "device", torch.device("sim:0"))
        moved = trainer._prepare_inputs({**batch_of("pusl", False), "items": 2})
        assert moved["labels"].device.type == "sim" and moved["items"] == 2
        assert set(log.copies) == {"to device, asynchronous"} and not log.waits


def test_bfloat16_is_the_default_where_the_gpu_has_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(train=__file__, out=str(tmp_path), compile=True, bf16=False)
    args = _arguments(resolve(config), RunFolder(str(tmp_path)), 10, 5, False)
    assert args.torch_compile and not args.bf16
    assert TrainConfig().bf16 is None
    before = torch.get_float32_matmul_precision()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with float32_products("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
