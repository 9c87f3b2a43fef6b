"""The whole job on a simulated shop catalog, in a few minutes and without downloads.

It simulates a shop whose labels are incomplete. It trains two models from scratch: One2Seq, which learns
when to stop, and PUSL, which does not. It fuses PUSL with the labels of similar items and the words of the
text. Then it asks each system for 2μ keyphrases per test item, twice the mean number of labels. It scores
them against the observed labels and against the complete ones, which only a simulation knows. The report is
one HTML page.

example:
  pusl demo --out pusl-demo
"""

from __future__ import annotations

import argparse

from pusl.commands.shared_flags import add_force
from pusl.config import add_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `pusl demo`."""
    from pusl.demo import DemoConfig

    parser.add_argument("--out", default="pusl-demo", metavar="DIR", help="folder to write (default: %(default)s)")
    add_force(parser)
    add_flags(parser, DemoConfig)


def run(args: argparse.Namespace) -> None:
    """Runs every step and prints the result."""
    from pusl.config import build
    from pusl.demo import DemoConfig, demo, outcome

    config = build(DemoConfig, args)
    print(outcome(args.out, config, demo(args.out, config, force=args.force)))
