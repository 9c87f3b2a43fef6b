"""Describes example files: labels per item, rare labels, hot and rare items, overlap.

Three numbers say how uneven the labels are (n_j is the number of items with label j, and n the number of all items):
  min IR   for the rarest label, items with it divided by items without it: n_j / (n - n_j)
  ILIR     the most frequent label's items divided by the rarest label's: max n_j / min n_j
  Pos-80%  the smallest share of the labels that makes up 80% of all occurrences

With several files, each is compared with the first, which is taken as the training file.

examples:
  pusl data stats train.jsonl
  pusl data stats train.jsonl test.jsonl --plot stats.svg
  pusl data stats items.csv --text-template "{title}. {body}" --json
"""

from __future__ import annotations

import argparse

from pusl.commands.shared_flags import add_columns, add_force
from pusl.config import build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, output forms and the columns."""

    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="JSONL, JSONL.gz, Parquet, CSV or TSV files of examples"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--plot", metavar="FILE", help="also write a picture; FILE ends in .svg")
    add_force(parser)
    add_columns(parser)


def run(args: argparse.Namespace) -> None:
    """Prints the numbers of every file."""
    import json

    from pusl.data.stats import stats, table
    from pusl.data.stats_plot import check_plot_path, plot
    from pusl.examples import Columns
    from pusl_eval.files import check_output

    if args.plot:
        check_plot_path(args.plot)
        check_output(args.plot, args.force)
    described, tallies = stats(args.files, build(Columns, args))
    if args.plot:
        plot(tallies, args.plot, args.force)
    print(json.dumps(described, indent=2, ensure_ascii=False) if args.json else table(described))
