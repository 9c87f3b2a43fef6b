"""One calibrated ranking from several sources: a model folder that works wherever a model folder does.

Sources: a trained model (NAME=DIR, or NAME=user/model on the Hub), baselines trained here (knn, svm, plt, ...), `text`
(phrases of the text that are labels or universe entries), a saved baseline (NAME=DIR) or predictions made elsewhere
(NAME=FILE). The ranker learns on --dev, which must not be part of --train. Without --dev, reciprocal ranks are fused.

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
    parser.add_argument("--train", required=True, metavar="FILE", help="labeled items: neighbors, classifiers, counts")
    parser.add_argument("--dev", metavar="FILE", help="other labeled items, to learn the ranking from")
    parser.add_argument("--sources", nargs="+", metavar="SOURCE", help="NAME=DIR, NAME=FILE, text, knn, svm, plt, ...")
    parser.add_argument("--out", metavar="DIR", help="folder for the fused model")
    parser.add_argument("--update", metavar="DIR", help="add --train to this model's neighbor memory; trains nothing")
    parser.add_argument("--depth", type=integer(1), metavar="N", help="candidates per source (default: 3μ, 15 to 50)")
    parser.add_argument(
        "--dev-items", type=integer(1), default=2000, metavar="N", help="most dev items used (default: 2000)"
    )
    parser.add_argument(
        "--no-ablation", action="store_true", help="skip the table of rankings with each source left out"
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
