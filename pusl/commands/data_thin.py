"""Hides some labels, as biased labeling would. The field `complete` keeps them all.

Ways to hide labels (--by):
  self-selection  popular items show most of their labels, rare ones one or two. An item's popularity is the
                  sum of its counts, a number from a file, or drawn at random.
  jpv             rare labels are hidden more often than frequent ones. The propensity model jpv says how
                  probably a right label is seen, from the number of items that have it.
  power, richards  the same with other propensity models.

examples:
  pusl data thin train.jsonl --out thin.jsonl --keep 0.3
  pusl data thin train.jsonl --out thin.jsonl --keep 0.4 --popularity downloads.tsv
  pusl data thin train.jsonl --out thin.jsonl --by jpv --propensity-parameters a=0.55 b=1.5
"""

from __future__ import annotations

import argparse

from pusl.commands.shared_flags import add_columns, add_force
from pusl.config import add_flags, build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Input, output, the options of ThinConfig and the columns."""
    from pusl.data.thin import ThinConfig

    parser.add_argument("file", metavar="FILE", help="JSONL, JSONL.gz, Parquet, CSV or TSV file of examples")
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write")
    add_force(parser)
    add_flags(parser, ThinConfig, skip=("propensity_parameters",))
    parser.add_argument(
        "--propensity-parameters", nargs="+", default=[], metavar="NAME=X",
        help="numbers of the propensity model, e.g. a=0.55 b=1.5 (jpv) or beta=2 gamma=0.4 (power)",
    )  # fmt: skip
    add_columns(parser)


def run(args: argparse.Namespace) -> None:
    """Thins and prints what is left."""
    from pusl.data.thin import ThinConfig, thin
    from pusl.examples import Columns

    args.propensity_parameters = " ".join(args.propensity_parameters)
    about = thin(args.file, args.out, build(ThinConfig, args), build(Columns, args), args.force)
    (mu, left), (cv, skew) = about["mu"], about["cv"]
    print(f"{args.out}: {about['items_written']:,} of {about['items']:,} items")
    print(f"labels kept: {about['kept']:,} of {about['occurrences']:,} ({about['share_kept']:.1%})")
    print(f"keyphrases per item: μ {mu:.2f} -> {left:.2f}, CV {cv:.2f} -> {skew:.2f}")
