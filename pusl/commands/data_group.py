"""Puts each item into one of four groups: hot or rare, and diverse or narrow.

Hot items have at least 5 interactions, diverse ones at least 5 different keyphrases (the paper's numbers).
`pusl evaluate` and `pusl judge` then also score each group by itself.

examples:
  pusl data group test.jsonl --out grouped.jsonl
  pusl data group test.jsonl --out grouped.jsonl --popularity downloads.tsv --hot-share 0.2 --diverse 8
"""

from __future__ import annotations

import argparse

from pusl.commands.shared_flags import add_columns, add_force
from pusl.config import add_flags, build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Input, output, the options of GroupConfig and the columns."""
    from pusl.data.grouping import GroupConfig

    parser.add_argument("file", metavar="FILE", help="JSONL, JSONL.gz, Parquet, CSV or TSV file of examples")
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write")
    add_force(parser)
    add_flags(parser, GroupConfig)
    add_columns(parser)


def run(args: argparse.Namespace) -> None:
    """Groups and prints their sizes."""
    from pusl.data.grouping import GroupConfig, group
    from pusl.examples import Columns

    about = group(args.file, args.out, build(GroupConfig, args), build(Columns, args), args.force)
    rank = about.get("hot_to_rank")
    hot = f"hot up to rank {rank:,}" if rank else f"hot from {about.get('hot_from', 0):g} interactions on"
    print(f"{args.out}: {about['items']:,} items; {hot}, "
          f"diverse from {about['diverse_from']} keyphrases on")  # fmt: skip
    print(f"  {'group':<14}{'items':>10}{'share':>9}{'keyphrases':>13}{'interactions':>15}")
    for name, row in about["groups"].items():
        per_item = ["–" if row[key] is None else f"{row[key]:,.2f}" for key in row if key.endswith("per_item")]
        print(f"  {name:<14}{row['items']:>10,}{row['share']:>9.1%}{per_item[0]:>13}{per_item[1]:>15}")
