"""Merge files by text and split them into train, dev and test (Algorithm 2).

Rows with the same text become one item: keyphrases united, counts added. A text is never in two
splits. Besides train.jsonl, dev.jsonl and test.jsonl the folder gets the narrow (at most 2μ
keyphrases) and diverse part of the test file, test files by number of keyphrases, items without
keyphrases (unlabeled.jsonl) and split.json. With --by-time test.jsonl holds later texts that are new
(also as future_unseen.jsonl), and future_seen.jsonl later rows of texts in train.jsonl.

examples:
  pusl data split catalog.jsonl --out splits --seed 1
  pusl data split 2024.csv 2025.csv --out splits --text-template "{title}. {description}"
  pusl data split log.parquet --out splits --by-time --cutoff 2025-10-01
"""

from __future__ import annotations

import argparse

from pusl.commands.shared_flags import add_columns, add_force
from pusl.config import add_flags, build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Files, output folder, the options of SplitConfig and the columns."""
    from pusl.data.splits import SplitConfig

    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="JSONL, JSONL.gz, Parquet, CSV or TSV files of examples"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    add_force(parser)
    add_flags(parser, SplitConfig)
    add_columns(parser)


def run(args: argparse.Namespace) -> None:
    """Splits and prints the sizes."""
    from pusl.data.splits import SplitConfig, split
    from pusl.examples import Columns

    about = split(args.files, args.out, build(SplitConfig, args), build(Columns, args), args.force)
    print(f"{args.out}: {about['rows']:,} rows, {about['items']:,} different texts, μ = {about['mu']:.2f}")
    for name, size in about["sizes"].items():
        if not name.startswith("test_count_"):
            print(f"  {name:<22} {size:>9,}")
    counts = [name for name in about["sizes"] if name.startswith("test_count_")]
    print(f"  and {len(counts)} test files by number of keyphrases ({counts[0]} ... {counts[-1]})")
