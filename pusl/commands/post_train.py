"""Trains a model again, on items that have many keyphrases (PUSL+PT).

Where the items come from (--sources):
  raw        training items with more keyphrases than the mean, μ
  synthetic  items with fewer, to which the model added its own; kept if they now have more than μ

OUT/selection/selection.json counts what was kept and rejected. With --dev, the model is scored before and
after, and OUT holds the better one. --resume continues a run that was stopped or killed.

examples:
  pusl post-train --model models/pusl --train train.jsonl --dev dev.jsonl --out models/pusl-pt
  pusl post-train --model models/pusl --train train.jsonl --out models/raw-only --sources raw
  pusl post-train --model models/one2seq --generator models/pusl --train train.jsonl --out models/one2seq-pt
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from pusl.commands.push import settle_labels
from pusl.commands.shared_flags import add_force, add_threads
from pusl.config import add_flags, build, option
from pusl.training.posttraining import Selection
from pusl.training.train_config import OPTIMIZERS, TrainConfig
from pusl_eval.files import InputError

INHERITED = (
    "paradigm", "model", "train", "out", "loss", "order", "restart", "learn_bok", "max_source_length", "vocab_size",
    "mu",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class SecondTraining(TrainConfig):
    """The flags of `pusl train`, some of them with other defaults."""

    epochs: float = option(3.0, "passes over the selected items", minimum=0.0001)  # paper
    optimizer: str | None = option(None, "muon or adamw (default: that of the first training)", OPTIMIZERS)
    batch_size: int | None = option(
        None, "items per optimizer step on average, over all processes (default: 32)", minimum=1
    )
    dropout: float | None = option(None, "dropout rate (default: the model's own)", minimum=0.0)
    lr: float | None = option(
        None, "peak learning rate (default: half that of the first training, if the optimizer is the same)", minimum=0.0
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the selection and of the second training."""
    parser.add_argument(
        "--model", required=True, metavar="MODEL", help="made by `pusl train`: a folder, or user/model on the Hub"
    )
    parser.add_argument("--train", required=True, metavar="FILE", help="the training file of that model")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the new model")
    parser.add_argument("--resume", action="store_true", help="continue the unfinished run in --out")
    add_force(parser)
    parser.add_argument(
        "--generate-workers", type=int, metavar="N",
        help="processes that complete the synthetic items (default: by cores and memory, or one per GPU)",
    )  # fmt: skip
    add_threads(parser)
    add_flags(parser.add_argument_group("selection"), Selection)
    add_flags(parser.add_argument_group("training"), SecondTraining, skip=INHERITED)


def run(args: argparse.Namespace) -> int:
    """Selects, trains, reports."""
    from pusl.process import prepare_process

    prepare_process(args.threads, keep_memory=True)
    from pusl.training import TrainingError
    from pusl.training.posttraining import post_train

    given = {"epochs": SecondTraining.epochs, **vars(args)}
    names = {field.name for field in dataclasses.fields(TrainConfig)} - set(INHERITED) | {"train"}
    config = build(TrainConfig, {name: value for name, value in given.items() if name in names})
    config = settle_labels(config)
    if args.generate_workers is not None and args.generate_workers < 1:
        raise InputError(f"--generate-workers is {args.generate_workers}; it must be at least 1")
    try:
        result, report = post_train(
            args.model, args.out, config, build(Selection, args), resume=args.resume, force=args.force,
            workers=args.generate_workers,
        )  # fmt: skip
    except TrainingError as error:
        print(f"pusl: {error}", file=sys.stderr)
        return 1
    if "raw" in report:
        print(f"raw: {report['raw']['kept']:,} items with more than μ = {report['mu']:.2f} keyphrases")
    if "synthetic" in report:
        part = report["synthetic"]
        print(f"synthetic: {part['kept']:,} of {part['candidates']:,} kept, {part['rejected']:,} rejected, "
              f"{part['phrases_added']:,} keyphrases added; {part['available']:,} items had few enough")  # fmt: skip
    if not result.finished:
        print(f"pusl: stopped at step {result.steps}; resume with the same command and --resume", file=sys.stderr)
        return 130
    best = result.best or {}
    if best.get("step") == 0:
        print(f"post-training did not help: {_before_and_after(result.record, config.metric)}. "
              f"{result.path} holds the model as it was")  # fmt: skip
    print(f"{result.path}: {result.steps} steps  " + "  ".join(f"{n} {v:.3f}" for n, v in best.items() if n != "step"))
    return 0


def _before_and_after(record: Mapping[str, Any], metric: str) -> str:
    """The dev metric of the model as it was and the best one that training reached."""
    before, *after = [point[metric] for point in record["history"] if metric in point]
    reached = f"at most {max(after):.3f} after it" if after else "not scored again"
    return f"dev {metric} was {before:.3f} before it, {reached}"
