"""Simulates a shop whose buyers label what they look at. All keyphrases that are right are known.

An item has a text and a set of right queries. Each interaction of a buyer shows one of them. A few
popular items get many interactions and show most of their right queries; the many rare items show one
or two. The folder --out gets:
  train.jsonl      the observed keyphrases with counts; dev.jsonl and test.jsonl likewise
  complete.jsonl   the test items with ALL their right keyphrases
  universe.txt     every right query of the catalog
  simulation.json  the settings and the resulting shares

example:
  pusl data simulate --out shop --items 10000 --seed 1
"""

from __future__ import annotations

import argparse
import sys

from pusl.commands.shared_flags import add_force
from pusl.config import add_flags, build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag per setting of SimulateConfig."""
    from pusl.data.simulate import SimulateConfig

    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    add_force(parser)
    add_flags(parser, SimulateConfig)


def run(args: argparse.Namespace) -> None:
    """Simulates and prints a summary."""
    from pusl.data.simulate import SimulateConfig, simulate

    def say(text: str) -> None:
        if sys.stderr.isatty():  # as the progress bars of other commands: in a log only errors count
            print(text, file=sys.stderr)

    about = simulate(args.out, build(SimulateConfig, args), args.force, say)
    train, sizes = about["train"], about["config"]
    print(f"{args.out}: {sizes['train_items']:,} train, {sizes['dev_items']:,} dev, {sizes['test_items']:,} test items")
    print(
        f"train: {train['right_per_item']:.1f} right queries per item, {train['observed_per_item']:.1f} observed, "
        f"CV {train['cv']:.2f}"
    )
    print("       " + ", ".join(f"{share:.1%} {name}" for name, share in train["quadrants"].items()))
