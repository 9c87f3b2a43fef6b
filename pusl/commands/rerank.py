"""Chooses k keyphrases per item from scored predictions, with the whole catalog in view.

examples:
  pusl generate --model models/pusl --input items.jsonl --output wide.jsonl -k 50
  pusl rerank --predictions wide.jsonl --output covered.jsonl --objective coverage --beta 0.25 -k 10

The predictions should hold more than k keyphrases per item. Scores are probabilities or log-probabilities.

Objectives (--objective):
  coverage    as many different right phrases in the catalog as possible. Each item in turn gets the k phrases
              with the largest (f + beta) * score; f is the probability that no earlier item has the phrase
              right. A large --beta leaves the best k as they were. Instead of --beta, you can set a goal with
              --min-precision, --precision-weight or --harmonic; these take the scores for true probabilities.
  propensity  the k phrases with the largest score / propensity, which favors rare labels (needs --train)
  brs         k at random from the best bound * k; the same id and seed give the same phrases
"""

from __future__ import annotations

import argparse

from pusl.commands.shared_flags import add_columns, add_force, add_k, add_seed
from pusl.rerank import OBJECTIVES, SCALES
from pusl_eval.columns import name_columns
from pusl_eval.files import InputError
from pusl_eval.propensity import PARAMETERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `pusl rerank`."""
    parser.add_argument(
        "--predictions", required=True, metavar="FILE", help="scored predictions, with 50 or more per item if possible"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="predictions with k keyphrases per item")
    parser.add_argument("--objective", required=True, choices=OBJECTIVES, help="how to choose (see above)")
    add_k(parser)
    parser.add_argument(
        "--beta", type=float, default=0.0, metavar="B", help="coverage: weight of the score alone (default: 0)"
    )
    parser.add_argument(
        "--min-precision",
        type=float,
        metavar="A",
        help="coverage: the most coverage with an expected P@k of at least A",
    )
    parser.add_argument(
        "--precision-weight", type=float, metavar="W", help="coverage: maximize W * P@k + (1 - W) * coverage"
    )
    parser.add_argument(
        "--harmonic", action="store_true", help="coverage: maximize the harmonic mean of P@k and coverage"
    )
    parser.add_argument("--state", metavar="FILE", help="coverage: continue from this file if it exists, and update it")
    parser.add_argument(
        "--bound", type=float, default=2.0, metavar="B", help="brs: draw from the best B * k (default: 2)"
    )
    add_seed(parser)
    parser.add_argument("--train", metavar="FILE", help="propensity: training file that gives the label counts")
    models = [name for name in PARAMETERS if name != "direct"]
    parser.add_argument(
        "--propensity",
        default="jpv",
        choices=models,
        help="propensity: model of how probably a right label is seen (default: jpv)",
    )
    parser.add_argument(
        "--propensity-parameters",
        nargs="+",
        default=[],
        metavar="NAME=X",
        help="numbers of the propensity model, e.g. a=0.55 b=1.5 (jpv) or beta=2 gamma=0.4 (power)",
    )
    parser.add_argument(
        "--scores", default="auto", choices=SCALES, help="what the scores are (default: log if the first is negative)"
    )
    add_force(parser)
    add_columns(parser, of="--train")


def run(args: argparse.Namespace) -> int:
    """Reranks one file."""
    from pusl.rerank import inverse_propensities, rerank
    from pusl_eval.flags import parameters

    name_columns(args, ["train"])
    weight = None
    if args.objective == "propensity" and args.train is not None:
        weight = inverse_propensities(args.train, args.propensity, parameters(args.propensity_parameters))
    elif args.train is not None:
        raise InputError(f"--train is for --objective propensity, not for '{args.objective}'")
    rerank(
        args.predictions, args.output, args.k, args.objective, beta=args.beta,
        min_precision=args.min_precision, precision_weight=args.precision_weight, harmonic=args.harmonic,
        bound=args.bound, seed=args.seed,
        scores=args.scores, weight=weight, state=args.state, force=args.force,
    )  # fmt: skip
    return 0
