"""Flags -> a table on the terminal and metrics.json.

Defined here once; `python -m pusl_eval` and `pusl evaluate` are both this.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from pusl_eval.columns import add_columns, name_columns
from pusl_eval.files import check_apart, check_input, check_output, write_json
from pusl_eval.flags import MOST, add_cuts, add_force, add_seed, integer, named_files, parameters

if TYPE_CHECKING:
    from pusl_eval.evaluation import Evaluation

DESCRIPTION = """Every metric for incomplete labels, one system or several.

examples:
  {prog} --references test.jsonl --predictions pusl.jsonl --k 3 6 --train train.jsonl --output metrics.json
  {prog} --references test.jsonl --predictions pusl=a.jsonl svm=b.jsonl --k mu 2mu --train train.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All flags of the command, and below them the metrics."""
    from pusl_eval.glossary import help_text

    parser.epilog = help_text()
    add = parser.add_argument
    add("--references", required=True, metavar="FILE", help="items with their observed keyphrases")
    add(
        "--predictions", required=True, nargs="+", action="extend", metavar="[NAME=]FILE",
        help="keyphrases per item, best first; several files are compared",
    )  # fmt: skip
    add_cuts(parser, required=True)
    add(
        "--train",
        metavar="FILE",
        help="training items, for μ and all scores that ask how often a label was seen in training",
    )
    add(
        "--universe",
        metavar="FILE",
        help="real queries or labels, one per line, or a file of examples; for Uni@k, the share found in it",
    )
    add(
        "--label-space",
        metavar="FILE",
        help="labels to average over in scores per label (default: those of the references)",
    )
    add("--weights", metavar="FILE", help="what each label is worth, for weighted P@k: `phrase<TAB>weight` lines, "
        "or a table with columns keyphrase and weight")  # fmt: skip
    add("--rank-weights", metavar="FILE", help="what each label is worth at each rank, for rank-weighted P@k: lines "
        "of a phrase and its weights separated by tabs, or a table with columns keyphrase and weights")  # fmt: skip
    add("--output", metavar="FILE", help="write metrics.json here")
    add_force(parser)
    add(
        "--normalization",
        default="basic",
        metavar="HOW",
        help="how phrases are compared: basic (case and spaces), stem, nltk-stem or none (default: basic)",
    )
    add(
        "--propensity",
        metavar="MODEL",
        help="model of how probably a right label is seen: jpv, power, richards, direct or none "
        "(default: jpv with --train)",
    )
    add("--propensity-parameters", nargs="+", default=[], metavar="NAME=X",
        help="numbers of the propensity model: a=0.55 b=1.5 (jpv, the default), beta and gamma (power), "
        "c to h (richards)")  # fmt: skip
    add("--unbiased", metavar="FILE", help="items in which every right label was kept with the same probability "
        "(--control-probability); they give the `direct` propensities, and the numbers of jpv, power or richards "
        "are fitted to them")  # fmt: skip
    add("--control-probability", type=float, default=1.0, metavar="P",
        help="probability with which a right label of the unbiased file was kept (default: 1)")  # fmt: skip
    add("--prior", type=float, default=0.0, metavar="ALPHA",
        help="steadier propensities of rare labels: ALPHA is added to a label's items and to all items "
        "(default: 0, off)")  # fmt: skip
    add("--bins", type=integer(-MOST), nargs="+", default=[1, 10, 100, 1000], metavar="N",
        help="where the bins of labels by training frequency begin (default: 1 10 100 1000)")  # fmt: skip
    add(
        "--alpha",
        type=float,
        default=0.5,
        metavar="X",
        help="recall from which a label counts as covered in αCov@k (default: 0.5)",
    )
    add("--beta", type=float, default=2.0, metavar="X", help="weight of recall in MacroF_β@k (default: 2)")
    add("--coverage-items", type=integer(-MOST), nargs="+", default=[1000], metavar="N",
        help="items to draw for `Cov@k (N items)` (default: 1000)")  # fmt: skip
    add(
        "--bootstrap",
        type=integer(-MOST),
        default=1000,
        metavar="N",
        help="bootstrap draws for the intervals; 0: no intervals (default: 1000)",
    )
    add_seed(parser)
    add_columns(parser, of="--references, --train and --unbiased")


def run(args: argparse.Namespace) -> None:
    """The command."""
    score(args)


def score(args: argparse.Namespace) -> dict[str, Evaluation]:
    """Scores, prints and writes. The metrics by system."""
    name_columns(args, ("references", "train", "unbiased"))
    systems = named_files(args.predictions)
    names = ("references", "train", "universe", "label_space", "weights", "rank_weights", "unbiased")
    sources = {f"--{name.replace('_', '-')}": getattr(args, name) for name in names}
    sources |= {f"--predictions {name}": path for name, path in systems.items()}
    for path in sources.values():
        if path is not None:
            check_input(path)
    if args.output:
        check_apart([args.output], sources)
        check_output(args.output, args.force)

    from pusl_eval.evaluation import compare, evaluate

    settings: dict[str, Any] = {
        name: getattr(args, name)
        for name in (
            "train", "universe", "label_space", "weights", "rank_weights", "unbiased", "control_probability",
            "normalization", "propensity", "prior", "bins", "alpha", "beta", "coverage_items", "bootstrap", "seed",
        )
    }  # fmt: skip
    settings["progress"] = sys.stderr.isatty()
    settings["propensity_parameters"] = parameters(args.propensity_parameters)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    if len(systems) == 1:
        ((name, file),) = systems.items()
        result = evaluate(args.references, file, args.k, **settings)
        text, document = f"{result.verdict()}\n\n{result.table(color)}", dict(result)
        found = {name: result}
    else:
        compared = compare(args.references, systems, args.k, **settings)
        text, document = f"{compared.verdict()}\n\n{compared.table(color)}", dict(compared)
        found = compared.evaluations
    if args.output:
        write_json(args.output, document, args.force)
    print(text)
    return found
