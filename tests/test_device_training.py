"""Training on GPUs, as far as it can be tried without one: whole graphs, no waits, never nn.DataParallel."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest
import torch
from decoding_models import IDS, checkpoint, documents, random_t5, random_texts, tokenizer
from simulated_device import on_device, simulated_device
from torch.utils.data import DataLoader
from transformers import TrainingArguments

from pusl import paradigms
from pusl.decoding import generator as generator_module
from pusl.decoding.device.device_engine import DeviceEngine
from pusl.decoding.rules import Rules
from pusl.devices import choose_device, cuda_settings
from pusl.tokenizer import token_ids
from pusl.training import TrainConfig
from pusl.training.collate import BatchPlan, Collator, TokenizedItem
from pusl.training.dev_scores import DevSet
from pusl.training.objective import IGNORED, with_loss
from pusl.training.record import RunFolder, new_record
from pusl.training.train_config import resolve
from pusl.training.trainer import KeyphraseTrainer
from pusl.training.training_run import _arguments, with_precision
from pusl_eval.files import InputError, write_rows

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
def test_the_forward_waits_for_nothing(paradigm: str, order_free: bool) -> None:
    batch = batch_of(paradigm, order_free)
    with torch.no_grad():
        expected = with_loss(checkpoint().model)(**batch)["loss"]
        with simulated_device() as log:
            model = with_loss(on_device(checkpoint().model))
            there = {name: value.to("sim") for name, value in batch.items()}
            log.clear()
            loss = model(**there)["loss"]
            assert not log.waits and not log.copies, log.places  # Hugging Face's masks ask for nothing either
            assert loss.cpu() == pytest.approx(expected.item(), rel=1e-4)


def trainer_with(args: TrainingArguments) -> KeyphraseTrainer:
    plan = BatchPlan(*torch.tensor([[4, 2], [5, 8]]).numpy(), rows=2)
    return KeyphraseTrainer(
        plan=plan, score=None, keep=lambda scores: None, metric="B@2mu", patience=0, seed=0,
        model=with_loss(checkpoint().model), args=args, train_dataset=ITEMS,
        data_collator=Collator(paradigms.get("pusl"), token_ids(tokenizer())),
    )  # fmt: skip


def test_several_gpus_without_a_launcher_are_never_data_parallel(tmp_path: Any, caplog: Any) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", max_steps=1)
    assert args.n_gpu < 2
    args._n_gpu = 4
    trainer = trainer_with(args)
    wrapped = trainer._wrap_model(trainer.model)
    assert not isinstance(wrapped, torch.nn.DataParallel) and trainer.args.n_gpu == 1
    assert "4 GPUs are here and one is used" in caplog.text
    assert trainer.args.train_batch_size == args.per_device_train_batch_size


def test_batches_are_pinned_and_moved_without_a_wait(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", max_steps=1)
    trainer = trainer_with(args)
    loader = trainer.get_train_dataloader()
    assert isinstance(loader, DataLoader) and not loader.pin_memory  # there is no GPU to copy to
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: True)
        pinned = trainer.get_train_dataloader()
        assert isinstance(pinned, DataLoader) and pinned.pin_memory
    with simulated_device() as log:
        monkeypatch.setattr(type(args), "device", torch.device("sim:0"))
        moved = trainer._prepare_inputs({**batch_of("pusl", False), "items": 2})
        assert moved["labels"].device.type == "sim" and moved["items"] == 2
        assert set(log.copies) == {"to device, asynchronous"} and not log.waits


@pytest.mark.parametrize("kind", ["cpu", "device"])
def test_dev_scores_use_one_engine_and_the_newest_weights(
    kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dev.jsonl"
    write_rows(path, [{"id": str(i), "text": text, "keyphrases": ["boot"]} for i, text in enumerate(documents(9))])
    dev, models = DevSet(path, 2.0, 9), [checkpoint("pusl", seed) for seed in (0, 1)]
    made: list[str] = []
    make = generator_module.make_engine

    def watched(model: Any, precision: str) -> Any:
        made.append(precision)
        return DeviceEngine(model, precision) if kind == "device" else make(model, precision)

    monkeypatch.setattr(generator_module, "make_engine", watched)
    assert dev.predict(models[0]) != dev.predict(models[1])
    assert made == ["fp32"]
    again = dev.predict(models[0])
    dev._generator = None
    assert again == dev.predict(models[0])


def test_new_weights_go_where_the_old_ones_are() -> None:
    """A CUDA graph holds the addresses of the weights it was captured with."""
    engine, other = DeviceEngine(random_t5(0, "gated-gelu")), random_t5(1, "gated-gelu")
    places = [part.data_ptr() for part in engine.t5._tensors()]
    rules, texts = Rules(IDS, True, 3, 4), random_texts(0, 5)
    engine.decode_sequences(texts, rules)
    pools = dict(engine.pools)
    engine.t5.embedding = engine.t5.embedding.clone()  # the model's own, which must not change
    places[0] = engine.t5.embedding.data_ptr()
    engine.refresh(other)
    assert [part.data_ptr() for part in engine.t5._tensors()] == places
    assert len(places) == 4 + 2 * 4 + 2 * 7
    assert engine.decode_sequences(texts, rules) == DeviceEngine(other).decode_sequences(texts, rules)
    assert engine.pools == pools


def test_a_run_names_its_device_and_precision(tmp_path: Any) -> None:
    config = resolve(TrainConfig(train=__file__, out=str(tmp_path), bf16=True, model="scratch:tiny"))
    assert new_record(config, 1, "cuda")["precision"] == "bf16" and new_record(config, 1, "cuda")["device"] == "cuda"
    for device, precision in (("cuda", "tf32"), ("cpu", "fp32"), ("mps", "fp32")):
        assert new_record(dataclasses.replace(config, bf16=False), 1, device)["precision"] == precision
    with pytest.raises(InputError, match="no CUDA GPU here"):
        resolve(dataclasses.replace(config, device="cuda"))


def test_a_trainer_sees_only_the_gpu_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert (
        choose_device("cuda") == choose_device("cuda:0") == "cuda" and os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    )
    assert choose_device("cuda:2") == "cuda" and os.environ["CUDA_VISIBLE_DEVICES"] == "6"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(InputError, match="uses a GPU already"):
        choose_device("cuda:1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="the launcher gives each process a GPU"):
        choose_device("cuda:1")


def test_compile_reaches_the_trainer(tmp_path: Any) -> None:
    config = TrainConfig(train=__file__, out=str(tmp_path), compile=True, bf16=False)
    args = _arguments(resolve(config), RunFolder(str(tmp_path)), 10, 5, False, "cpu")
    assert args.torch_compile and not args.bf16


@pytest.mark.parametrize("native", [True, False])
def test_bfloat16_is_the_default_where_the_gpu_has_it(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0) if native else (7, 5))
    config = TrainConfig(train=__file__, out="m")
    assert config.bf16 is None
    assert with_precision(config, "cuda").bf16 is native
    assert with_precision(config, "cpu").bf16 is False and with_precision(config, "mps").bf16 is False
    for said in (True, False):
        assert with_precision(dataclasses.replace(config, bf16=said), "cuda").bf16 is said


def test_tf32_and_the_attention_kernel_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for precision, products in (("tf32", "high"), ("fp32", "highest")):
        with cuda_settings(precision):
            assert torch.get_float32_matmul_precision() == products
            assert not torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cuda.mem_efficient_sdp_enabled()
    assert (torch.get_float32_matmul_precision(), torch.backends.cuda.cudnn_sdp_enabled()) == before


def test_which_attention_kernels_have_a_gradient_for_a_bias() -> None:
    """Why cuDNN's is turned off. If torch gives it one, the setting is worth another look."""
    q, bias = (torch.randn(1, 2, 16, n, device="meta", dtype=torch.bfloat16, requires_grad=True) for n in (8, 16))
    out = torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, bias, True)[0]
    assert len(out.grad_fn.next_functions) == 4
    with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'attn_bias'"):
        torch.ops.aten._scaled_dot_product_cudnn_attention(q, q, q, bias, True)
