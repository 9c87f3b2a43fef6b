"""Turn XMC repository files, interaction logs, Hugging Face datasets or tables into examples.

  xmc     trn.json(.gz) with lbl.json(.gz) beside it: raw text of the XMC repository
  libsvm  a label file `l1,l2 f:v ...` or `l:v ...` with --texts and --labels, one per line
  log     item id, text, query and count in columns: added up to keyphrases with counts
  hf      a dataset folder, or the name of a dataset of the Hugging Face hub
  table   JSONL, Parquet, CSV or TSV with a text and a list column

examples:
  pusl data convert LF-AmazonTitles/trn.json.gz --to train.jsonl.gz
  pusl data convert train_X_Y.txt --to train.jsonl --texts train.txt --labels labels.txt
  pusl data convert clicks.parquet --to train.jsonl --id-column sku --text-column title --min-count 2
  pusl data convert user/keyphrases --to train.jsonl --format hf --split train --keyphrases-column tags
  pusl data convert items.csv --to items.jsonl --text-template "{title}. {body}" --keyphrases-column tags --separator ,
"""

from __future__ import annotations

import argparse
import sys

from pusl.commands.shared_flags import add_columns, add_force
from pusl.config import add_flags, build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, output, the options of ConvertConfig and the columns."""
    from pusl.data.convert import ConvertConfig

    parser.add_argument("source", metavar="SRC", help="file, folder, or name of a dataset")
    parser.add_argument("--to", required=True, metavar="FILE", help="example file to write (.jsonl, .jsonl.gz, ...)")
    add_force(parser)
    add_flags(parser, ConvertConfig)
    add_columns(parser)


def run(args: argparse.Namespace) -> None:
    """Converts and prints the counts."""
    from pusl.data.convert import ConvertConfig, convert
    from pusl.examples import Columns

    report = convert(args.source, args.to, build(ConvertConfig, args), build(Columns, args), args.force)
    for warning in report.warnings:
        print(f"pusl: {args.source}: {warning}", file=sys.stderr)
    print(f"{args.to}: {report.written:,} items with {report.labels:,} keyphrases (read as {report.format})")
    for what, count in report.notes.items():
        print(f"  {count:,} {what}")
