"""Uploads a finished model to the Hugging Face Hub, private unless you say --public.

Log in first, with `hf auth login` or HF_TOKEN. Weights, tokenizer, pusl.json and the model card are uploaded;
checkpoints and run.json are not. Training labels are uploaded only if you say so. A fused model needs them.

examples:
  pusl push models/pusl ann/shoe-keyphrases
  pusl push models/pusl ann/shoe-keyphrases --no-labels --license apache-2.0 --language en --public
  pusl generate --model ann/shoe-keyphrases --input items.jsonl --output predictions.jsonl -k 10
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Any

from pusl_eval.files import InputError

if TYPE_CHECKING:
    from pusl.training.train_config import TrainConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `pusl push`."""
    parser.add_argument("model", metavar="DIR", help="a folder made by `pusl train`, `post-train` or `fuse`")
    parser.add_argument(
        "repository", metavar="USER/MODEL", help="the repository on the Hub; it is created if it does not exist"
    )
    sight = parser.add_mutually_exclusive_group()
    sight.add_argument("--private", action="store_true", help="only you see it (the default)")
    sight.add_argument("--public", action="store_true", help="everybody sees it")
    parser.add_argument(
        "--labels", action=argparse.BooleanOptionalAction,
        help="upload the training labels, and a fused model's texts, too (default: you are asked)",
    )  # fmt: skip
    parser.add_argument("--license", metavar="ID", help="license for the model card: apache-2.0, mit, ...")
    parser.add_argument("--language", metavar="CODE", help="languages for the model card: en, or en,de")
    parser.add_argument("--dataset", metavar="ID", help="Hub id of the training data, for the model card")
    parser.add_argument("--message", metavar="TEXT", default="Push a PUSL model", help="message of the commit")


def run(args: argparse.Namespace) -> int:
    """Asks what has to be asked, uploads, says where the model is."""
    from pusl.hub import push, training_data

    labels = args.labels
    if labels is None:
        held = training_data(args.model)
        labels = ask_about_labels(f"{args.model} holds {held}", "--labels") if held else False
    card: dict[str, Any] = {
        "license": args.license, "datasets": [args.dataset] if args.dataset else None,
        "language": args.language.replace(",", " ").split() if args.language else None,
    }  # fmt: skip
    url = push(args.model, args.repository, public=args.public, labels=labels, card=card, message=args.message)
    print(f"{url}: {'public' if args.public else 'private'}, {'with' if labels else 'without'} training labels")
    return 0


def settle_labels(config: TrainConfig) -> TrainConfig:
    """`--push-to-hub`: the question about training labels comes before the training, after the login is checked."""
    if not config.push_to_hub or "WORLD_SIZE" in os.environ:
        return config  # several processes cannot be asked; `train` names the flags
    from pusl.hub import check_login

    check_login(config.push_to_hub)
    if config.push_labels is not None:
        return config
    wanted = ask_about_labels("--push-to-hub: the model holds its training labels (labels.txt.gz)", "--push-labels")
    return dataclasses.replace(config, push_labels=wanted)


def ask_about_labels(fact: str, flag: str) -> bool:
    """A question in a terminal; elsewhere an InputError that names the flags."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        no = flag.replace("--", "--no-", 1)
        raise InputError(f"{fact}. Pass {flag} to upload them or {no} to leave them out")
    print(f"{fact}. Upload them too? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
