"""Trains a T5 model to write keyphrases.

What it learns to write for an item (--paradigm):
  one2one  one keyphrase at a time
  one2seq  all keyphrases, then an end: the model learns when to stop
  groov    like one2seq, but every order of the keyphrases counts as right
  pusl     all keyphrases and no end: the model never learns to stop

examples:
  pusl train --paradigm pusl --model scratch:tiny --train train.jsonl --dev dev.jsonl --out model
  pusl train --config tate --train train.jsonl.gz --dev dev.jsonl.gz --out model
  pusl train --resume --out model
  accelerate launch --multi_gpu --num_processes 4 -m pusl train --train train.jsonl --dev dev.jsonl --out model

--out gets the model that was best on --dev: a Hugging Face checkpoint with pusl.json, labels.txt.gz, a model
card, run.json and curve.svg. --resume continues a run that was stopped or killed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys

from pusl.commands.push import settle_labels
from pusl.commands.shared_flags import add_force, add_threads
from pusl.config import add_groups, build
from pusl.examples import Columns
from pusl.training.record import RESUME_COMMAND
from pusl.training.train_config import TrainConfig, resolve
from pusl_eval.files import InputError

COLUMNS = [field.name for field in dataclasses.fields(Columns)]
GROUPS = {
    "files and model": ("paradigm", "model", "train", "dev", "out"),
    "how long": ("epochs", "max_steps", "eval_every", "dev_items", "metric", "patience"),
    "targets": (
        "order", "loss", "restart", "learn_bok", "min_keyphrases", "mu", "max_source_length", "max_target_length",
        "max_phrase_tokens", "vocab_size",
    ),
    "optimization": (
        "optimizer", "lr", "batch_size", "accumulation", "tokens_per_batch", "dropout", "warmup", "weight_decay",
        "max_grad_norm", "seed",
    ),
    "speed": ("device", "bf16", "compile", "gradient_checkpointing", "sampled_softmax", "workers", "pad_multiple"),
    "record": ("save_every", "log_every", "keep_checkpoints", "report_to"),
    "Hub and model card": ("push_to_hub", "push_public", "push_labels", "license", "language", "dataset"),
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of TrainConfig, --config, --resume and --force."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file of settings, or the name of one that comes with PUSL, such as tate; flags win over it",
    )
    parser.add_argument("--resume", action="store_true", help="continue the unfinished run in --out")
    add_force(parser)
    add_threads(parser)
    add_groups(parser, TrainConfig, {**GROUPS, "columns of --train and --dev": COLUMNS})


def run(args: argparse.Namespace) -> int:
    """Trains, or resumes training."""
    config = _resumed(args) if args.resume else build(TrainConfig, args, args.config)
    resolve(config)  # what is wrong with the flags is said at once, before torch loads
    config = settle_labels(config)
    from pusl.process import prepare_process

    prepare_process(args.threads, keep_memory=True)
    from pusl.training import TrainingError, is_main_process, train

    try:
        result = train(config, resume=args.resume, force=args.force)
    except TrainingError as error:
        print(f"pusl: {error}", file=sys.stderr)
        return 1
    if not is_main_process():
        return 0 if result.finished else 130
    if not result.finished:
        print(
            f"pusl: stopped at step {result.steps}; resume with: "
            + os.environ.get(RESUME_COMMAND, f"pusl train --resume --out {result.path}"),
            file=sys.stderr,
        )
        return 130
    best = result.best or {}
    scores = "  ".join(f"{name} {value:.3f}" for name, value in best.items() if name != "step")
    print(f"{result.path}: {result.steps} steps" + (f", best at step {int(best['step'])}: {scores}" if best else ""))
    return 0


def _resumed(args: argparse.Namespace) -> TrainConfig:
    """The settings the run began with; flags given now must agree with them."""
    from pusl.training.record import RunFolder

    out = getattr(args, "out", None)
    if not out:
        raise InputError("--resume needs --out: the folder of the run to continue")
    record = RunFolder(out).record()
    if record is None:
        config = build(TrainConfig, args, args.config)
        if not config.train:
            raise InputError(f"{out}: no run to resume; omit --resume and give --train to start one")
        return config
    if args.config:
        raise InputError("--resume takes its settings from run.json; omit --config")
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    began = {name: value for name, value in record["config"].items() if name in names}
    return build(TrainConfig, {**began, **vars(args)})
