"""Writes one HTML page that compares systems: scores with intervals, charts, examples.

The page loads nothing from other servers.

example:
  pusl report --references test.jsonl --predictions PUSL=pusl.jsonl --predictions One2Seq=one2seq.jsonl \\
      --train train.jsonl --output report.html
"""

from __future__ import annotations

import argparse

from pusl.commands.shared_flags import add_columns, add_force, add_seed, integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `pusl report`."""
    add = parser.add_argument
    add("--references", required=True, metavar="FILE", help="items with their (incomplete) keyphrases")
    add(
        "--predictions",
        required=True,
        nargs="+",
        action="extend",
        metavar="[NAME=]FILE",
        help="predictions of a system; several are compared",
    )
    add(
        "--train",
        metavar="FILE",
        help="training items, for μ and all scores that ask how often a label was seen in training",
    )
    add("--universe", metavar="FILE", help="real queries, one per line; phrases outside it are marked")
    add("--complete", metavar="FILE", help="the complete labels of the same items, if known; adds a second table")
    add("--judged", nargs="+", default=[], metavar="FILE", help="summaries of `pusl judge`; adds a table of verdicts")
    add("--output", required=True, metavar="FILE", help="the page to write, for example report.html")
    add("--title", default="Keyphrase report", help="heading of the page (default: %(default)s)")
    add("--examples", type=integer(0), default=60, metavar="N", help="items shown one by one (default: %(default)s)")
    add(
        "--normalization",
        choices=("basic", "stem", "nltk-stem", "none"),
        default="basic",
        help="how phrases are compared (default: %(default)s)",
    )
    add_seed(parser)
    add_force(parser)
    add_columns(parser, of="--references, --train and --complete")


def run(args: argparse.Namespace) -> None:
    """Writes the page and prints its path."""
    from pusl_eval.columns import name_columns
    from pusl_eval.files import check_apart, check_output
    from pusl_eval.flags import named_files
    from pusl_eval.report import write_report

    name_columns(args, ("references", "train", "complete"))
    systems = named_files(args.predictions)
    for name in ("references", "train", "universe", "complete"):
        check_apart([args.output], {f"--{name}": getattr(args, name)})
    check_apart([args.output], {f"--predictions {name}": path for name, path in systems.items()})
    check_output(args.output, args.force)
    write_report(
        args.output, args.references, systems, train=args.train, universe=args.universe,
        complete=args.complete, title=args.title, examples=args.examples, seed=args.seed,
        normalization=args.normalization, judged=args.judged, force=args.force,
    )  # fmt: skip
    print(f"wrote {args.output}")
