"""The shipped accelerate configs: all of them load, and the one for DDP trains on two CPU processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import Trainer

from pusl.training import TrainConfig, train
from pusl_eval.files import InputError, write_rows

pytestmark = pytest.mark.slow

CONFIGS = sorted((Path(__file__).parent.parent / "configs" / "accelerate").glob("*.yaml"))
KINDS = {"ddp": "MULTI_GPU", "fsdp": "FSDP", "deepspeed_zero2": "DEEPSPEED", "deepspeed_zero3": "DEEPSPEED"}


def test_all_are_here() -> None:
    assert {path.stem for path in CONFIGS} == set(KINDS)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_is_one_that_accelerate_knows(path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file  # refuses unknown keys
    from accelerate.commands.launch import launch_command_parser

    config = load_config_from_file(str(path))
    assert config.distributed_type.value == KINDS[path.stem]
    assert config.mixed_precision == "no", "T5 overflows in fp16; `pusl train --bf16` decides"
    known = vars(launch_command_parser().parse_args(["-m", "pusl"]))
    inner = {**(config.fsdp_config or {}), **(config.deepspeed_config or {})}
    assert not [key for key in inner if key not in known], "accelerate would not read this key"
    assert path.read_text().startswith("# "), "says what it is for"
    if config.distributed_type.value == "DEEPSPEED":
        assert config.deepspeed_config["zero_stage"] == int(path.stem[-1])


def write_training_data(path: Path) -> None:
    words = ["zeto", "drone", "camera", "mini", "pro", "case", "tablet", "kids", "gps", "leather"]
    pairs = [[words[i % 10], words[i * 3 % 10]] for i in range(64)]
    rows = [{"id": str(i), "text": f"{' '.join(pair)} {i % 7}", "keyphrases": pair} for i, pair in enumerate(pairs)]
    write_rows(path, rows)


def test_ddp_trains_on_two_processes(tmp_path: Path) -> None:
    write_training_data(tmp_path / "train.jsonl")
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS[0]), "--num_processes", "2",
        "--main_process_port", "0", "-m", "pusl", "train", "--paradigm", "pusl", "--model", "scratch:tiny",
        "--train", str(tmp_path / "train.jsonl"), "--out", str(tmp_path / "model"), "--max-steps", "2",
        "--batch-size", "8", "--vocab-size", "300",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    run = json.loads((tmp_path / "model" / "run.json").read_text())
    assert run["status"] == "finished" and run["steps"] == 2
    assert run["processes"] == 2 and (tmp_path / "model" / "model.safetensors").exists()


def test_muon_is_refused_where_no_process_has_a_whole_matrix(tmp_path: Path, monkeypatch) -> None:
    """accelerate turns FSDP on for GPUs only, so the trainer is told that it is on."""
    make = Trainer.create_accelerator_and_postprocess

    def with_fsdp(trainer: Trainer) -> None:
        make(trainer)
        trainer.is_fsdp_enabled = True

    monkeypatch.setattr(Trainer, "create_accelerator_and_postprocess", with_fsdp)
    write_training_data(tmp_path / "train.jsonl")
    config = TrainConfig(
        paradigm="pusl", model="scratch:tiny", train=str(tmp_path / "train.jsonl"), out=str(tmp_path / "model"),
        max_steps=2, batch_size=8, vocab_size=300, optimizer="muon",
    )  # fmt: skip
    with pytest.raises(InputError, match="use adamw with FSDP or DeepSpeed"):
        train(config)
