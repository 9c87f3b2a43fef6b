"""Combines several sources in one ranking. The result is a model folder.

Sources (--sources):
  NAME=DIR    a trained model or a saved baseline; NAME=user/model: a model on the Hub
  knn         similar items; any other method of `pusl baseline` also works, and is trained here
  text        phrases of the text that are known labels
  NAME=FILE   predictions made elsewhere

The ranking is learned on --dev, which must not be part of --train; its scores are probabilities. Without --dev,
nothing is learned: the reciprocal ranks are added up.

examples:
  pusl fuse --train train.jsonl --dev dev.jsonl --sources pusl=models/pusl knn svm text --out models/fused
  pusl generate --model models/fused --input items.jsonl --output predictions.jsonl -k 10 --min-score 0.3
  pusl fuse --update models/fused --train new.jsonl
"""

from __future__ import annotations

import argparse

from pusl.commands.shared_flags import add_columns, add_device, add_force, add_precision, add_seed, add_threads, integer
from pusl.examples import Columns
from pusl_eval.files import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `pusl fuse`."""
    parser.add_argument(
        "--train", required=True, metavar="FILE", help="labeled items, for neighbors, classifiers and counts"
    )
    parser.add_argument("--dev", metavar="FILE", help="other labeled items, from which the ranking is learned")
    parser.add_argument(
        "--sources", nargs="+", metavar="SOURCE", help="what to combine: NAME=DIR, NAME=FILE, text, knn, svm, plt, ..."
    )
    parser.add_argument("--out", metavar="DIR", help="folder for the fused model")
    parser.add_argument(
        "--update", metavar="DIR", help="add the items of --train as neighbors to this fused model; nothing is trained"
    )
    parser.add_argument(
        "--depth", type=integer(1), metavar="N", help="candidates per source (default: 3μ, at least 15, at most 50)"
    )
    parser.add_argument(
        "--dev-items",
        type=integer(1),
        default=2000,
        metavar="N",
        help="use at most this many dev items (default: 2000)",
    )
    parser.add_argument(
        "--no-ablation", action="store_true", help="skip the table that shows what is lost without each source"
    )
    add_device(parser)
    add_precision(parser)
    add_threads(parser)
    add_seed(parser)
    add_force(parser)
    add_columns(parser)


def run(args: argparse.Namespace) -> int:
    """Fuses, or adds items to a fused model."""
    names = {name: value for name, value in vars(args).items() if name in Columns.__dataclass_fields__}
    if args.update is not None:
        if args.sources or args.out or args.dev:
            raise InputError("--update adds --train to a fused model; it takes no --sources, --dev or --out")
        from pusl.fusion.learn import update

        items, labels = update(args.update, args.train, Columns(**names))
        print(f"{args.update}: {items:,} items and {labels:,} labels in its memory")
        return 0
    if not args.sources or not args.out:
        raise InputError("name the --sources and the folder --out (or --update DIR)")
    from pusl.fusion.held_out import describe
    from pusl.fusion.learn import fuse
    from pusl.process import prepare_process

    prepare_process(args.threads, keep_memory=True)
    report = fuse(
        args.train, args.dev, args.sources, args.out, columns=Columns(**names), depth=args.depth,
        dev_items=args.dev_items, precision=args.precision, device=args.device, seed=args.seed,
        ablate=not args.no_ablation, force=args.force,
    )  # fmt: skip
    if "percent" in report:
        print(describe(report))
    print(f"{args.out}: ready for pusl generate, pusl serve and KeyphraseGenerator.from_pretrained")
    return 0
