"""Splits files into train, dev and test. A text is never in two of them.

Rows with the same text become one item, with all their keyphrases and the sums of their counts. The
folder gets:
  train.jsonl         to learn from; dev.jsonl and test.jsonl are held out
  test_narrow.jsonl   test items with at most 2μ keyphrases; test_diverse.jsonl: those with more
  test_count_N.jsonl  test items with N keyphrases
  unlabeled.jsonl     items without keyphrases
  split.json          what was done

With --by-time, the folder also gets:
  future_unseen.jsonl   later texts that are not in train.jsonl; test.jsonl is the same
  future_seen.jsonl     later rows whose text is in train.jsonl
  uniform_unseen.jsonl  texts from the time of train.jsonl that are not in it

A table then says what each file shares with train.jsonl. The procedure is the paper's Algorithm 2 and
Appendix F.

examples:
  pusl data split catalog.jsonl --out splits --seed 1
  pusl data split 2024.csv 2025.csv --out splits --text-template "{title}. {description}"
  pusl data split log.parquet --out splits --by-time --cutoff 2025-10-01
  pusl data split catalog.jsonl --out splits --count-sets train --count-size 100 --every-count
  pusl data split items.csv --out splits --duplicates merge
"""

from __future__ import annotations

import argparse
from typing import Any

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
    for what, count in about.get("duplicates", {}).items():
        print(f"  {count:,} {what}")
    for name, size in about["sizes"].items():
        if not name.startswith("test_count_"):
            print(f"  {name:<22} {size:>9,}")
    counts = [name for name in about["sizes"] if name.startswith("test_count_")]
    if counts:
        print(f"  and {len(counts)} test files by number of keyphrases ({counts[0]} ... {counts[-1]})")
    if "out_of_time" in about:
        print(out_of_time_table(about["out_of_time"]))


def out_of_time_table(sets: dict[str, dict[str, Any]]) -> str:
    """The test sets of a split by time, in percent except the first two columns."""
    heads = ("items", "labels/item", "texts in train", "items unchanged", "labels unchanged", "labels in train")
    lines = ["", f"  {'test set':<16}" + "".join(f"{head:>18}" for head in heads)]
    for name, row in sets.items():
        items, per_item, *shares = row.values()
        cells = [f"{items:,}", _cell(per_item, 1, 2), *(_cell(share, 100, 1) for share in shares)]
        lines.append(f"  {name:<16}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def _cell(value: float | None, scale: int, digits: int) -> str:
    return "–" if value is None else f"{scale * value:.{digits}f}"
