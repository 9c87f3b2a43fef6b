"""Scores predictions of one system or several, fairly where labels are missing.

Prints the scores, with 95% intervals for means over items. --output FILE writes them as JSON, with the intervals of
every group.

examples:
  pusl evaluate --references test.jsonl --predictions pusl.jsonl --k 3 6 --train train.jsonl --output metrics.json
  pusl evaluate --references test.jsonl --predictions pusl=a.jsonl svm=b.jsonl --k mu 2mu --train train.jsonl
  pusl evaluate --references test.jsonl --predictions pusl.jsonl --k 3 6 --dataset scores
"""

from __future__ import annotations

import argparse

from pusl_eval.command import add_arguments as add_shared_arguments
from pusl_eval.command import score


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `pusl-eval`, and what needs more than numpy."""
    add_shared_arguments(parser)
    parser.add_argument("--dataset", metavar="DIR", help="also save the scores as a Hugging Face dataset: one row per "
                        "system, group and metric")  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Scores, prints and writes."""
    if not args.dataset:
        score(args)
        return
    from pusl.data.hf_datasets import check_dataset_folder, save_scores
    from pusl_eval.score_rows import score_rows

    check_dataset_folder(args.dataset, args.force, args.output)
    save_scores(score_rows(score(args)), args.dataset)
