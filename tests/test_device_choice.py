"""`--device` and `--precision`: what is there is used, what is not there ends in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding_models import IDS, checkpoint, documents, random_t5, random_texts

from pusl import devices
from pusl.catalog.engine_ray import gpus_per_worker
from pusl.catalog.processes import run_tasks
from pusl.catalog.run import fitting_workers
from pusl.checkpoint import load_checkpoint, save_checkpoint
from pusl.cli import main
from pusl.decoding.cpu.engine import Engine
from pusl.decoding.device.device_engine import DeviceEngine
from pusl.decoding.generator import KeyphraseGenerator
from pusl.decoding.greedy import decode_sequences
from pusl.decoding.rules import Rules
from pusl.devices import ends_process, gpu_count, resolve_device, resolve_precision, worker_environment
from pusl_eval.files import InputError


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0) if device.index != 1 else (7, 5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = checkpoint("pusl")
    meta = {"paradigm": "pusl", "defaults": {"max_phrase_tokens": 5}}
    return save_checkpoint(tmp_path_factory.mktemp("model"), made.model, made.tokenizer, meta)


def test_without_gpus() -> None:
    assert resolve_device("auto") == resolve_device(None) == resolve_device("CPU ") == "cpu"
    assert resolve_precision(None, "cpu") == "fp32" and resolve_precision("bf16", "cpu") == "bf16"
    for name, words in (("cuda", "no CUDA GPU here"), ("cuda:3", "no CUDA GPU"), ("mps", "no Apple GPU")):
        with pytest.raises(InputError, match=words):
            resolve_device(name)
    for name in ("gpu", "cpu:1", "cuda:x", "tpu"):
        with pytest.raises(InputError, match="expected cpu, cuda, cuda:1, mps or auto"):
            resolve_device(name)
    with pytest.raises(InputError, match="'tf32' needs a CUDA GPU"):
        resolve_precision("tf32", "cpu")
    with pytest.raises(InputError, match="'fp16' is unknown; allowed: fp32, tf32, bf16, int8"):
        resolve_precision("fp16", "cpu")


@pytest.mark.usefixtures("two_gpus")
def test_with_gpus() -> None:
    assert resolve_device() == "cuda" and resolve_device("cuda:1") == "cuda:1"
    with pytest.raises(InputError, match="only 2 CUDA GPUs"):
        resolve_device("cuda:2")
    assert resolve_precision(None, "cuda") == "bf16"
    assert resolve_precision(None, "cuda:1") == "fp32"  # it only emulates bfloat16
    with pytest.raises(InputError, match="does not compute in bfloat16"):
        resolve_precision("bf16", "cuda:1")
    with pytest.raises(InputError, match="'int8' needs a CPU"):
        resolve_precision("int8", "cuda")
    assert (gpu_count("cuda"), gpu_count("cuda:1"), gpu_count("cpu")) == (2, 0, 0)
    assert (
        fitting_workers(1, 100, "cuda") == 2 and fitting_workers(1, 1, "cuda") == fitting_workers(1, 9, "cuda:1") == 1
    )


def test_gpus_are_dealt_out_to_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [worker_environment(i, 2)["CUDA_VISIBLE_DEVICES"] for i in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-7")
    assert [worker_environment(i, 2)["CUDA_VISIBLE_DEVICES"] for i in range(2)] == ["3", "GPU-7"]
    assert worker_environment(0, 0) == {}


def visible() -> Any:
    return lambda task: os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.slow
def test_a_process_sees_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert {seen for _, seen in run_tasks(visible, range(6), 2, gpus=2)} == {"0", "1"}


def test_gpus_that_the_ray_cluster_does_not_have_are_refused_at_once() -> None:
    assert (
        gpus_per_worker(None, 4, "cpu") == gpus_per_worker(None, 0, "auto") == 0
        and gpus_per_worker(0.5, 2, "auto") == 0.5
    )
    with pytest.raises(InputError, match="--gpus-per-worker 1: the Ray cluster has 0 GPUs"):
        gpus_per_worker(1.0, 0.0, "auto")


class AcceleratorError(RuntimeError):
    """As torch raises it."""


def test_errors_that_end_a_process() -> None:
    assert ends_process(AcceleratorError("an illegal memory access was encountered"))
    assert ends_process(RuntimeError("CUDA error: device-side assert triggered"))
    assert not ends_process(torch.OutOfMemoryError("CUDA out of memory")) and not ends_process(ValueError("no"))


def fragile() -> Any:
    def work(task: tuple[str, int]) -> int:
        mark = Path(task[0]) / str(task[1])
        if task[1] == 1 and not mark.exists():
            mark.touch()
            raise AcceleratorError("the device is lost")
        return task[1]

    return work


@pytest.mark.slow
def test_a_process_that_lost_its_device_is_replaced(tmp_path: Path) -> None:
    tasks = [(str(tmp_path), i) for i in range(3)]
    assert sorted(result for _, result in run_tasks(fragile, tasks, 2)) == [0, 1, 2]


@pytest.mark.parametrize("command", ["generate", "score", "serve"])
def test_a_device_that_is_not_there_ends_in_one_line(
    command: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text('{"id": "1", "text": "red shoe", "keyphrases": ["boot"]}\n')
    rest = {
        "generate": ["--input", str(items), "--output", str(tmp_path / "out.jsonl"), "-k", "2"],
        "score": ["--input", str(items), "--output", str(tmp_path / "out.jsonl"), "--candidates", str(items)],
        "serve": ["--port", "0"],
    }[command]
    assert main([command, "--model", str(folder), *rest, "--device", "cuda"]) == 2
    error = capsys.readouterr().err.strip()
    assert "no CUDA GPU here" in error and "\n" not in error


def test_asking_for_the_device_does_not_load_torch() -> None:
    code = "import sys, pusl.devices as d; d.DRIVERS = (); d.find_library = lambda name: None; "
    code += "assert d.resolve_device() == 'cpu' and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_is_loaded_in_its_precision(folder: Path) -> None:
    half = KeyphraseGenerator.from_pretrained(folder, precision="bf16")
    assert {parameter.dtype for parameter in half.checkpoint.model.parameters()} == {torch.bfloat16}
    assert isinstance(half.engine, DeviceEngine) and half.engine.t5.embedding.dtype == torch.bfloat16
    shared = half.checkpoint.model.get_input_embeddings().weight
    assert half.engine.t5.embedding.data_ptr() == shared.data_ptr()  # not a second copy
    assert len(half.generate(documents(3), 3)) == 3
    whole = load_checkpoint(folder)
    assert KeyphraseGenerator(whole).precision == "fp32" and whole.model.dtype == torch.float32


def test_norms_are_folded_in_float32() -> None:
    model, texts, rules = random_t5(0).bfloat16(), random_texts(0, 5), Rules(IDS, True, 3, 4)
    for engine in (Engine(model), Engine(model.float())):
        found = decode_sequences(engine, texts, rules)
        assert found == decode_sequences(Engine(model.float()), texts, rules)


def test_env_names_device_and_precision(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env"]) == 0
    assert "cpu, in fp32 unless told otherwise" in capsys.readouterr().out
    assert devices.PRECISIONS[0] == "fp32"
