"""TF-IDF rows + labels -> a probabilistic label tree (napkinXC), ranked plainly or by inverse propensity.

PS-PLT is the same tree with another order: labels are ranked by probability / propensity. napkinXC 0.7.2
crashes if it is given label weights, so the exact best k are found here: while an unseen label could
still beat the k-th best (its score is at most the largest weight times the smallest probability fetched),
more candidates are fetched.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pusl.baselines.label_matrix import TrainingData
from pusl.baselines.model import Baseline, Ranking
from pusl.baselines.tfidf import Tfidf, TfidfConfig
from pusl.config import option
from pusl_eval.files import InputError
from pusl_eval.propensity import propensities

LEAST_FLOAT = 1e-30  # napkinXC cannot read smaller numbers; its weights are float32


@dataclass
class PltConfig(TfidfConfig):
    propensity: str = option("none", "jpv: PS-PLT, rank by probability / propensity", choices=("none", "jpv"))
    propensity_a: float = option(0.55, "a of the jpv propensity model", minimum=0)
    propensity_b: float = option(1.5, "b of the jpv propensity model", minimum=0)
    coverage_beta: float | None = option(
        None, "COV-PLT: choose labels that earlier items lack, like `pusl rerank` with this --beta; 0 = coverage alone"
    )
    cost: float = option(10.0, "liblinear's C of the node classifiers", minimum=1e-6)
    prune: float = option(0.1, "node weights smaller than this are dropped", minimum=0)
    arity: int = option(2, "children per tree node", minimum=2)
    max_leaves: int = option(100, "labels under a node above the leaves", minimum=2)
    trees: int = option(1, "trees in the ensemble", minimum=1)
    jobs: int = option(0, "threads; 0 = all cores", minimum=0)


class Plt(Baseline):
    """Hierarchical 2-means over the labels, one logistic classifier per tree node; a label's probability is the product
    along its path. Scores are these probabilities. With --propensity jpv the order is by probability / propensity,
    so the scores need not fall along the list.
    """

    Config = PltConfig
    requires = ("napkinxc", "napkinXC")
    propensities: np.ndarray  # (m,)
    coverage: Any = None  # COV-PLT's memory
    _tree: Any = None
    _home = ""

    def _fit(self, data: TrainingData) -> None:
        if self.config.coverage_beta is not None:
            if not 0 <= self.config.coverage_beta < float("inf"):
                raise InputError(f"--coverage-beta is {self.config.coverage_beta}; it must be 0 or more")
            if self.config.propensity != "none":
                raise InputError("--coverage-beta and --propensity jpv are two ways to rank; give one of them")
        self.check_installed()
        self.tfidf = Tfidf(self.config.ngrams, self.config.min_count)
        features = self.tfidf.fit(data.texts)
        self.propensities = np.ones(len(data.labels))
        if self.config.propensity == "jpv":
            parameters = {"a": self.config.propensity_a, "b": self.config.propensity_b}
            self.propensities = propensities(data.frequencies, len(data.texts), "jpv", parameters)
        # napkinXC stores its model in a folder.
        self._home = tempfile.mkdtemp(prefix="pusl-plt-")
        weakref.finalize(self, shutil.rmtree, self._home, ignore_errors=True)
        self._tree = self._open(self._home)
        matrix = data.matrix
        targets = [matrix.indices[a:b].tolist() for a, b in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)]
        self._tree.fit(features, targets)

    def _open(self, folder: str) -> Any:
        from napkinxc.models import PLT

        return PLT(
            folder,
            arity=self.config.arity,
            max_leaves=self.config.max_leaves,
            liblinear_c=self.config.cost,
            weights_threshold=self.config.prune if self.config.prune > LEAST_FLOAT else 0.0,
            ensemble=self.config.trees,
            seed=self.config.seed,
            threads=min(self.config.jobs, os.cpu_count() or 1),  # more cannot be started, or only wait
        )

    def rank(self, texts: Sequence[str], k: int) -> Ranking:
        features = self.tfidf.transform(texts)
        if self.config.coverage_beta is not None:
            return self._cover(features, k)
        ids = np.full((len(texts), k), -1, np.int64)
        scores = np.zeros((len(texts), k))
        weights = 1 / self.propensities
        largest = float(weights.max())
        open_rows = np.arange(len(texts))
        fetched = k if self.config.propensity == "none" else max(10 * k, 50)
        while len(open_rows):
            fetched = min(fetched, len(self.labels))
            found = self._tree.predict_proba(features[open_rows], top_k=fetched)
            unsure = []
            for row, pairs in zip(open_rows, found, strict=True):
                numbers = np.array([number for number, _ in pairs], np.int64)
                chances = np.array([chance for _, chance in pairs])
                gains = chances * weights[numbers]
                best = np.lexsort((numbers, -gains))[:k]
                ids[row, : len(best)] = numbers[best]
                scores[row, : len(best)] = np.minimum(chances[best], 1.0)
                reachable = largest * float(chances.min(initial=1.0))
                if fetched < len(self.labels) and len(pairs) == fetched and gains[best[-1]] < reachable:
                    unsure.append(row)
            if self.config.propensity == "none":
                break  # napkinXC's order by probability is the answer
            open_rows, fetched = np.array(unsure, np.int64), 4 * fetched
        return ids, scores

    def _cover(self, features: Any, k: int) -> Ranking:
        """COV-PLT over the rows in order; further calls go on from the labels given before."""
        from pusl.baselines.tree_coverage import FIRST, TreeCoverage

        if self.coverage is None:
            self.coverage = TreeCoverage(len(self.labels), self.config.coverage_beta)
        first = min(len(self.labels), FIRST * k)
        known = self._tree.predict_proba(features, top_k=first)

        def fetch(row: int, count: int) -> list[tuple[int, float]]:
            if count <= first:
                return known[row]
            return self._tree.predict_proba(features[[row]], top_k=count)[0]

        ids = np.full((features.shape[0], k), -1, np.int64)
        scores = np.zeros((features.shape[0], k))
        for row in range(features.shape[0]):
            numbers, chances = self.coverage.choose(fetch, row, k)
            ids[row, : len(numbers)], scores[row, : len(numbers)] = numbers, chances
        return ids, scores

    def _save(self, folder: Path) -> None:
        self.tfidf.save(folder)
        np.save(folder / "propensities.npy", self.propensities)
        shutil.copytree(self._home, folder / "napkinxc")

    def _load(self, folder: Path) -> None:
        self.check_installed()
        self.tfidf = Tfidf.load(folder)
        self.propensities = np.load(folder / "propensities.npy")
        if not (folder / "napkinxc").is_dir():
            raise ValueError("the folder napkinxc is missing")
        self._home = str(folder / "napkinxc")
        self._tree = self._open(self._home)
        self._tree.load()
