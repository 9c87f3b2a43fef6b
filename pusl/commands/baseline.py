"""Simpler methods, for comparison and for `pusl fuse`. They choose among the labels of the training file.

examples:
  pusl baseline knn --train train.jsonl --input test.jsonl --output knn.jsonl -k 10
  pusl baseline svm --train train.jsonl --save models/svm
  pusl baseline svm --model models/svm --input test.jsonl --output svm.jsonl -k 10

Input and predictions have the same formats as those of `pusl generate`. `pusl baseline NAME --help` explains
the flags of one method.
"""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from pusl.baselines.model import BASELINES, baseline_class
from pusl.commands.shared_flags import add_columns, add_force, add_k
from pusl.config import add_flags, build
from pusl.examples import Columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-command per baseline, with the shared flags and the baseline's own."""
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, (_, summary) in BASELINES.items():
        example = f"  pusl baseline {name} --train train.jsonl --input test.jsonl --output {name}.jsonl -k 10"
        found = baseline_class(name)
        text = f"{summary}\n\n{inspect.getdoc(found)}\n\nexample:\n{example}"
        child = names.add_parser(name, help=summary, description=text)
        add_shared_arguments(child)
        add_flags(child.add_argument_group(f"the {name} baseline"), found.Config)
        add_columns(child)


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of every baseline."""
    parser.add_argument("--train", metavar="FILE", help="labeled examples to learn from")
    parser.add_argument("--model", metavar="DIR", help="a saved baseline, instead of --train")
    parser.add_argument("--save", metavar="DIR", help="store the trained baseline here")
    parser.add_argument("--input", metavar="FILE", help="items to predict for (their keyphrases are ignored)")
    parser.add_argument("--output", metavar="FILE", help="predictions: id, keyphrases, scores")
    add_k(parser, default=10)
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Trains or loads, saves if asked, predicts if asked."""
    from pusl.baselines.predict import run_baseline

    config: Any = build(baseline_class(args.name).Config, args)
    columns = build(Columns, args)
    run_baseline(
        args.name, config, train=args.train, model_folder=args.model, save=args.save, input=args.input,
        output=args.output, k=args.k, columns=columns, force=args.force,
    )  # fmt: skip
    return 0
