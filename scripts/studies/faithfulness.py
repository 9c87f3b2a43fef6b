"""python scripts/studies/faithfulness.py --case observed.jsonl complete.jsonl train.jsonl A.jsonl B.jsonl --output t.md

Does a metric on observed labels rank systems as complete labels do? A case is one test set with both kinds of
labels, and the predictions of at least three systems. In each case the systems are ranked by each metric on the
observed labels, and by precision (P@k), right phrases per phrase asked for (B@k) and recall (R@k) on the complete
labels. The table gives Spearman's rank correlation, averaged over cases. `--lazy 1 3` adds, for every system, the
same system stopping after 1 and after 3 phrases. `--plot` draws the correlation with the true B@k.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import load_pyplot
from scipy.stats import spearmanr

from pusl_eval.errors import exit_code
from pusl_eval.evaluation import evaluate
from pusl_eval.files import InputError, check_input, open_atomic
from pusl_eval.records import read_predictions

METRICS = ("B", "P", "R", "F1", "nDCG", "PSP", "Success")  # computed on observed labels
TRUTHS = ("P", "B", "R")  # computed on complete labels
Scores = Mapping[str, Any]  # "B@5" -> value
Case = tuple[Sequence[Scores], Sequence[Scores]]  # of each system: on observed and on complete labels


def read_case(files: Sequence[str], ks: Sequence[int | str], lazy: Sequence[int]) -> tuple[Case, list[int]]:
    """Scores of one case's systems, and the k they were computed for."""
    observed, complete, train, *predictions = (str(check_input(name)) for name in files)
    systems: list[dict[str, list[str]]] = []
    for path in predictions:
        whole = {one.id: list(one.keyphrases) for one in read_predictions(path)}
        systems += [whole, *({id: phrases[:stop] for id, phrases in whole.items()} for stop in lazy)]
    if len(systems) < 3:
        raise InputError("a case needs at least three systems to rank")
    found = [
        [evaluate(truth, system, k=ks, train=train, bootstrap=0) for system in systems]
        for truth in (observed, complete)
    ]
    seen, full = ([one["scores"]["all"] for one in side] for side in found)
    return (seen, full), list(found[0][0]["k"])


def faithfulness(cases: Sequence[Case], ks: Sequence[int], plot: Path | None = None) -> str:
    """The table: metrics against truths, for the middle and the last k, and over all k at once."""
    wanted = [[ks[len(ks) // 2]], [ks[-1]], list(ks)]
    heads = [f"k = {ks[len(ks) // 2]}", f"k = {ks[-1]}", "all k"]
    columns = " | ".join(f"{head}: true {truth}" for head in heads for truth in TRUTHS)
    lines = [f"| observed | {columns} |", "|---" * (1 + len(heads) * len(TRUTHS)) + "|"]
    for metric in METRICS:
        values = [correlation(cases, metric, truth, chosen) for chosen in wanted for truth in TRUTHS]
        lines.append(f"| {metric}@k | " + " | ".join(f"{value:.2f}" for value in values) + " |")
    systems = sum(len(seen) for seen, _ in cases)
    said = f"{len(cases)} test sets, {systems} systems in all, k = {', '.join(map(str, ks))}; mean over test sets."
    if plot is not None:
        draw(ks, {metric: [correlation(cases, metric, "B", [k]) for k in ks] for metric in METRICS}, plot)
        said += f"\n\n![Rank correlation with the true B@k]({plot})"
    return "\n".join(lines) + "\n\n" + said


def correlation(cases: Sequence[Case], metric: str, truth: str, ks: Sequence[int]) -> float:
    """Spearman's correlation over systems × ks inside each case; mean over the cases where both vary."""
    found = []
    for seen, full in cases:
        one = [scores[f"{metric}@{k}"] for k in ks for scores in seen]
        other = [scores[f"{truth}@{k}"] for k in ks for scores in full]
        if len(set(one)) > 1 and len(set(other)) > 1:
            found.append(float(spearmanr(one, other).statistic))
    return statistics.mean(found) if found else math.nan


def draw(ks: Sequence[int], curves: Mapping[str, Sequence[float]], path: Path) -> None:
    """One line per metric."""
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(6.5, 3.8))
    for (metric, values), mark in zip(curves.items(), "osD^v*P", strict=True):
        axes.plot(ks, values, marker=mark, markersize=5, linewidth=1.2, label=f"{metric}@k", alpha=0.85)
    axes.axhline(0, color="gray", linewidth=0.6)
    axes.set(xlabel="k", ylabel="rank correlation with the true B@k", ylim=(-1.05, 1.05), xticks=list(ks))
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False)
    axes.grid(alpha=0.25, linewidth=0.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--case", nargs="+", action="append", required=True, metavar="FILE",
        help="observed, complete and training labels, then predictions; repeat for further test sets",
    )  # fmt: skip
    parser.add_argument(
        "-k", "--k", nargs="+", default=["1", "mu", "2mu"], help="integers, mu or 2mu (default: 1 mu 2mu)"
    )
    parser.add_argument("--lazy", type=int, nargs="*", default=[], help="add each system stopped after N phrases")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="an SVG of the correlations over k")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table here too")
    args = parser.parse_args()
    ks = [k if k in ("mu", "2mu") else int(k) for k in args.k]
    if short := next((case for case in args.case if len(case) < 4), None):
        parser.error(f"--case {' '.join(short)}: expected observed, complete, train and predictions")
    read = [read_case(files, ks, args.lazy) for files in args.case]
    if any(found != read[0][1] for _, found in read):
        raise InputError("mu differs between the cases; give --k as numbers")
    table = faithfulness([case for case, _ in read], sorted(set(read[0][1])), args.plot)
    print(table)
    if args.output:
        with open_atomic(args.output, force=True) as stream:
            stream.write(table + "\n")


if __name__ == "__main__":
    sys.exit(exit_code(main, "faithfulness"))
