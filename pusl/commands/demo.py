"""The whole job on a simulated shop catalog, in a few minutes and without any download.

Simulates a catalog whose labels are incomplete, trains a One2Seq and a PUSL model from scratch,
generates 2μ keyphrases for each test item, and scores both against the labels that were observed
and against the complete truth, which only a simulation knows. The report is one HTML page.

example:
  pusl demo --out pusl-demo
"""

from __future__ import annotations

import argparse

from pusl.config import add_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `pusl demo`."""
    from pusl.demo import DemoConfig

    parser.add_argument("--out", default="pusl-demo", metavar="DIR", help="folder to write (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="start over in a folder that holds a finished demo")
    add_flags(parser, DemoConfig)


def run(args: argparse.Namespace) -> None:
    """Runs every step and prints what came of it."""
    from pusl.config import build
    from pusl.demo import DemoConfig, demo

    demo(args.out, build(DemoConfig, args), force=args.force)
