"""Scores given phrases for given items: which of these candidates fit?

Candidates are one list for all items (one phrase per line), or records with an `id` and a list `candidates` or
`keyphrases` (a predictions file will do). The output holds each item's candidates, best first; `scores` are
log-probabilities. A fused model and --calibrate also give `probabilities`, which `pusl generate` then gives as
`scores`. Work is kept in OUTPUT.parts/ until the output is
complete, so the same command resumes after a crash.

examples:
  pusl score --model models/pusl --input items.jsonl --candidates queries.txt --output scores.jsonl
  pusl score --model models/pusl --input items.jsonl --candidates knn.jsonl --output scores.jsonl \\
      --calibrate dev.jsonl
"""

from __future__ import annotations

import argparse

from pusl.commands.shared_flags import MODEL, add_columns, add_force, add_speed
from pusl.examples import Columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `pusl score`."""
    parser.add_argument("--model", required=True, metavar="MODEL", help=MODEL)
    parser.add_argument("--input", required=True, metavar="FILE", help="items: .jsonl(.gz), .parquet, .csv, .tsv")
    parser.add_argument("--candidates", required=True, metavar="FILE", help="phrases per item, or one list for all")
    parser.add_argument("--output", required=True, metavar="FILE", help="scores: .jsonl(.gz), .parquet, .csv, .tsv")
    parser.add_argument(
        "--calibrate", metavar="FILE",
        help="labeled items; with them, each phrase also gets the probability that it is labeled",
    )  # fmt: skip
    add_force(parser)
    parser.add_argument("--strict", action="store_true", help="check all lines first and stop at the first bad one")
    add_speed(parser)
    add_columns(parser, skip=("counts_column", "timestamp_column", "group_column"))


def run(args: argparse.Namespace) -> int:
    """Scores, and says how to continue after an interruption."""
    from pusl.commands.generate import resumable

    return resumable(args.output, lambda: _score(args))


def _score(args: argparse.Namespace) -> None:
    from pusl.catalog.candidates import score_catalog
    from pusl.commands.generate import describe
    from pusl.process import prepare_process

    prepare_process(keep_memory=True)
    names = {name: value for name, value in vars(args).items() if name in Columns.__dataclass_fields__}
    summary = score_catalog(
        args.model, args.input, args.candidates, args.output, calibrate=args.calibrate, precision=args.precision,
        device=args.device,
        threads=args.threads, columns=Columns(**names), shard_size=args.shard_size,
        workers=args.workers, batch_size=args.batch_size, strict=args.strict, force=args.force,
        progress=not args.quiet,
    )  # fmt: skip
    missing, summary.exhausted = summary.exhausted, 0
    print(describe(summary, args.output))
    if missing:
        print(f"  {missing:,} have no candidates (see 'reason')")
