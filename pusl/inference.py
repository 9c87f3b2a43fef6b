"""Texts + options -> keyphrases with scores and marks, as plain JSON values.

What a model process of the service does; also usable without any service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.normalize import normalize

STRATEGIES = {"unique": "k different keyphrases"}


class Inference:
    """A loaded, warmed-up model and its universe."""

    def __init__(
        self,
        model: str,
        universe: str | None = None,
        precision: str = "fp32",
        threads: int | None = None,
        batch_size: int = 32,
    ) -> None:
        from pusl.checkpoint import load_labels
        from pusl.decoding.generator import KeyphraseGenerator

        self.name = Path(model).resolve().name
        self.generator = KeyphraseGenerator.from_pretrained(model, precision=precision, threads=threads)
        self.labels = {normalize(label) for label in load_labels(model)}
        self.universe = None
        self.batch_size = batch_size
        self.generator.generate(["warm up"], 1)

    def info(self) -> dict[str, Any]:
        """What `GET /v1/model` tells."""
        defaults = {"k": self.generator.checkpoint.defaults.get("k", 10), "strategy": "unique"}
        return {
            "model": self.name,
            "paradigm": self.generator.checkpoint.paradigm,
            "strategies": STRATEGIES,
            "vocabularies": ["open"] if self.universe is None else ["open", "prefer", "closed"],
            "defaults": defaults,
        }

    def answer(self, texts: Sequence[str], options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One dict per text, in order."""
        chosen = {name: value for name, value in options.items() if value is not None and name != "explain"}
        found = self.generator.generate(texts, batch_size=self.batch_size, universe=self.universe, **chosen)
        results = []
        for text, prediction in zip(texts, found, strict=True):
            result = {
                "keyphrases": prediction.keyphrases,
                "scores": prediction.scores,
                "exhausted": prediction.exhausted,
            }
            if options.get("explain"):
                result["marks"] = [
                    {"present": normalize(p) in normalize(text), "new": None, "in_universe": None}
                    for p in prediction.keyphrases
                ]
            results.append(result)
        return results
