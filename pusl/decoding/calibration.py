"""Scores of keyphrases and whether they were labeled -> the probability of being labeled, for any score.

found = generator.generate(dev_texts, k=10)
calibration = Calibration.fit(*hits(found, dev_keyphrases))
generator.generate(texts, k=10, calibration=calibration, min_score=0.5)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pusl_eval.errors import damage_refused
from pusl_eval.files import InputError, read_json, write_json
from pusl_eval.normalize import normalize


@dataclass(frozen=True)
class Calibration:
    """An isotonic curve: steps of rising probability over scores, joined by straight lines.

    >>> curve = Calibration.fit([-5, -4, -3, -2, -1], [0, 0, 1, 0, 1])
    >>> [round(curve(score), 2) for score in (-9, -4, -2.5, 0)]
    [0.0, 0.0, 0.5, 1.0]
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __call__(self, score: float) -> float:
        return float(np.interp(score, self.scores, self.probabilities))

    @classmethod
    def fit(cls, scores: Sequence[float], right: Sequence[int] | Sequence[bool]) -> Calibration:
        """Least squares under the condition that a better score is never less probable (pool adjacent violators)."""
        if not len(scores) or len(scores) != len(right):
            raise InputError("calibration needs predictions for a file with references; found none")
        order = np.argsort(scores, kind="stable")
        blocks: list[list[float]] = []  # lowest score, highest score, sum of right, count
        for score, hit in zip(np.asarray(scores, float)[order], np.asarray(right, float)[order], strict=True):
            blocks.append([score, score, hit, 1.0])
            while len(blocks) > 1 and (
                blocks[-2][2] * blocks[-1][3] >= blocks[-1][2] * blocks[-2][3] or blocks[-2][1] == blocks[-1][0]
            ):
                _, high, hits, count = blocks.pop()
                blocks[-1][1] = high
                blocks[-1][2] += hits
                blocks[-1][3] += count
        points = [(edge, block[2] / block[3]) for block in blocks for edge in sorted({block[0], block[1]})]
        return cls(tuple(float(x) for x, _ in points), tuple(float(y) for _, y in points))

    def save(self, path: str | Path) -> None:
        """Writes the curve as JSON."""
        write_json(path, {"scores": list(self.scores), "probabilities": list(self.probabilities)}, force=True)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Reads a curve written by `save`."""
        with damage_refused(path, "the calibration curve", "delete it, and it is learned again"):
            curve = read_json(path)
            return cls(tuple(map(float, curve["scores"])), tuple(map(float, curve["probabilities"])))


def hits(predictions: Iterable[Any], references: Iterable[Sequence[str]]) -> tuple[list[float], list[bool]]:
    """Scores of all predicted keyphrases, and whether each is among its item's references."""
    scores: list[float] = []
    right: list[bool] = []
    for prediction, keyphrases in zip(predictions, references, strict=True):
        known = {normalize(keyphrase) for keyphrase in keyphrases}
        scores += prediction.scores
        right += [normalize(phrase) in known for phrase in prediction.keyphrases]
    return scores, right
