"""Versions and hardware, to paste into a bug report.

example:
  pusl env
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No flags."""


def run(args: argparse.Namespace) -> None:
    """Prints one `name: value` line per fact."""
    from pusl.environment import describe

    for name, value in describe().items():
        print(f"{name + ':':<14} {value}")
