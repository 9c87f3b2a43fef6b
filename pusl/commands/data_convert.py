"""Reads other people's formats and writes examples. Writes examples or
predictions in formats that other tools read. The source's format is found by
its structure, or named with --format.

Sources (--format):
  table          JSONL, Parquet, CSV or TSV with a text and a list column
  log            rows of item id, text, query and count, which are added up
  hf             a dataset folder, or a dataset of the Hugging Face Hub
  predictions    what `pusl generate` writes
  xmc            trn.json(.gz) of the XMC repository, with lbl.json(.gz) beside it
  libsvm         a label file, `l1,l2 f:v ...` or `l:v ...`, with --texts and
                 --labels
  annif          a corpus of Annif: TSV, CSV, JSONL, or a folder of texts
  label-studio   an export of Label Studio, JSON or JSON-MIN
  elasticsearch  bulk NDJSON of Elasticsearch or OpenSearch
  vespa          a feed of Vespa, one JSON operation per line
  vocabulary     SKOS (.ttl, .nt, .rdf) or Annif's vocabulary (.tsv, .csv);
                 the output is .txt (a universe), .tsv, .jsonl, .ttl, .nt
                 or .rdf

Targets (--to-format): rows (the default), annif, label-studio, elasticsearch
(OpenSearch too) and vespa.

examples:
  pusl data convert LF-AmazonTitles/trn.json.gz --to train.jsonl.gz
  pusl data convert train_X_Y.txt --to train.jsonl --texts train.txt \\
      --labels labels.txt
  pusl data convert clicks.parquet --to train.jsonl --id-column sku \\
      --text-column title --min-count 2
  pusl data convert user/keyphrases --to train.jsonl --format hf \\
      --split train --keyphrases-column tags
  pusl data convert user/keyphrases --to data --format hf --split all \\
      --keyphrases-column tags
  pusl data convert items.csv --to items.jsonl --keyphrases-column tags \\
      --text-template "{title}. {body}" --separator , --duplicates merge
  pusl data convert yso.ttl --to universe.txt --language en
  pusl data convert train.tsv --to train.jsonl --vocabulary yso.ttl \\
      --language en
  pusl data convert pusl.jsonl --to mapped.jsonl --vocabulary yso.ttl \\
      --language en
  pusl data convert pusl.jsonl --to tasks.json --to-format label-studio \\
      --texts items.jsonl
  pusl data convert export.json --to test.jsonl --format label-studio
  pusl data convert pusl.jsonl --to bulk.ndjson --index shop \\
      --to-format elasticsearch
  pusl data convert pusl.jsonl --to feed.jsonl --to-format vespa \\
      --namespace shop --document-type product
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pusl.commands.shared_flags import add_columns, add_force
from pusl.config import add_groups, build

GROUPS = {
    "formats": ("format", "to_format"),
    "items": ("number_ids", "duplicates", "drop_unlabeled"),
    "vocabulary": ("vocabulary", "language", "alternatives"),
    "XMC and libsvm": ("labels", "texts"),
    "query logs": ("query_column", "count_column", "min_count"),
    "Hugging Face datasets": ("split", "config_name", "streaming"),
    "search engines and Label Studio": ("action", "index", "namespace", "document_type", "model_version"),
}

if TYPE_CHECKING:
    from pusl.data.convert import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, output, the options of ConvertConfig and the columns."""
    from pusl.data.convert import ConvertConfig

    parser.add_argument("source", metavar="SRC", help="file, folder, or name of a dataset")
    parser.add_argument("--to", required=True, metavar="FILE", help="file to write (.jsonl, .jsonl.gz, .parquet, ...)")
    add_force(parser)
    add_groups(parser, ConvertConfig, GROUPS)
    add_columns(parser)


def run(args: argparse.Namespace) -> None:
    """Converts and prints the counts."""
    from pusl.data.convert import ConvertConfig, convert
    from pusl.examples import Columns

    config, columns = build(ConvertConfig, args), build(Columns, args)
    if config.split != "all":
        _print_report(args.source, args.to, convert(args.source, args.to, config, columns, args.force))
        return
    from dataclasses import replace

    from pusl.data.hf_datasets import split_files
    from pusl_eval.files import check_outputs, written_together

    files = split_files(args.source, args.to, config.config_name)
    check_outputs(list(files.values()), args.force)
    with written_together(list(files.values()), args.force) as places:
        reports = [
            convert(args.source, place, replace(config, split=split, format="hf"), columns)
            for split, place in zip(files, places, strict=True)
        ]
    for path, report in zip(files.values(), reports, strict=True):
        _print_report(args.source, path, report)


def _print_report(source: str, to: str | Path, report: Report) -> None:
    for warning in report.warnings:
        print(f"pusl: {source}: {warning}", file=sys.stderr)
    things = "concepts with {:,} labels" if report.format == "vocabulary" else "items with {:,} keyphrases"
    print(f"{to}: {report.written:,} {things.format(report.labels)} (read as {report.format})")
    for what, count in report.notes.items():
        print(f"  {count:,} {what}")
