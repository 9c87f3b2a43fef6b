"""python scripts/bench/svm.py --train tate/train.jsonl.gz [--labels 200] [--rounds 2]

Rare labels by working sets (pusl/baselines/sampled.py) against scikit-learn's LinearSVC over all rows, dual and
primal, side by side on one machine: milliseconds of processor time per label. For the scores compare
`pusl baseline svm` with `pusl baseline svm --exact-from 0`.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from scipy import sparse
from sklearn.svm import LinearSVC

from pusl.baselines.label_matrix import read_training
from pusl.baselines.sampled import Sampling, solve_labels
from pusl.baselines.tfidf import Tfidf
from pusl_eval.errors import exit_code
from pusl_eval.files import InputError
from pusl_eval.flags import add_seed, integer

RARE = 100  # items; the svm baseline solves more frequent labels by LinearSVC anyway


def by_liblinear(features: sparse.csr_matrix, matrix: sparse.csc_matrix, dual: bool) -> None:
    """Fits one LinearSVC per label."""
    for label in range(matrix.shape[1]):
        target = np.zeros(features.shape[0])
        target[matrix.indices[matrix.indptr[label] : matrix.indptr[label + 1]]] = 1
        LinearSVC(C=1.0, dual=dual, tol=0.1, random_state=0).fit(features, target)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, metavar="FILE", help="labeled examples")
    parser.add_argument("--labels", type=integer(1), default=200, metavar="N", help="random rare labels (default: 200)")
    parser.add_argument("--rounds", type=integer(1), default=2, metavar="N", help="measurements (default: 2)")
    add_seed(parser)
    args = parser.parse_args()
    data = read_training(args.train)
    features, matrix = Tfidf().fit(data.texts).astype(np.float64), data.matrix.tocsc()
    rare = np.flatnonzero(np.diff(matrix.indptr) < RARE)
    if not len(rare):
        raise InputError(f"{args.train}: every label has {RARE} items or more")
    chosen = np.random.default_rng(args.seed).choice(rare, min(args.labels, len(rare)), replace=False)
    part = matrix[:, np.sort(chosen)]
    print(f"{features.shape[0]:,} texts, {matrix.shape[1]:,} labels, {len(rare):,} with fewer than {RARE} items")
    ways = {
        "working sets": lambda: solve_labels(features, part, Sampling(1.0, 0.01)),
        "LinearSVC, dual": lambda: by_liblinear(features, part, dual=True),
        "LinearSVC, primal": lambda: by_liblinear(features, part, dual=False),
    }
    for _ in range(args.rounds):
        cells = []
        for name, solve in ways.items():
            start = time.process_time()
            solve()
            cells.append(f"{name} {1000 * (time.process_time() - start) / len(chosen):.1f} ms per label")
        print("; ".join(cells))


if __name__ == "__main__":
    sys.exit(exit_code(main, "svm"))
