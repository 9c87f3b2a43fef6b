"""Texts + options -> keyphrases with scores and marks, as plain JSON values.

What a model process of the service computes. It works without the service too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pusl.decoding.deadline import Clock, check_time, time_limit

STRATEGY_HELP = {
    "beam": "One search ranks whole phrases by probability. Fast.",
    "sequence": "One phrase after the other: each is the best one not given yet.",
}


WARM_TEXT = "warm up " * 128
USUAL_TIMES = 3  # a text may always take this many times what a text with the defaults takes, however slow the model is


class Inference:
    """A loaded and warmed-up model with its universe."""

    def __init__(
        self,
        model: str,
        universe: str | None = None,
        precision: str | None = None,
        device: str = "auto",
        batch_size: int = 32,
        seconds: float = math.inf,
    ) -> None:
        from pusl.decoding.generator import KeyphraseGenerator
        from pusl.hub import shown_name

        self.name = shown_name(model)
        self.generator = KeyphraseGenerator.from_pretrained(
            model, device=device, precision=precision, universe=universe
        )
        self.batch_size, self.seconds = batch_size, seconds  # seconds: the longest that one answer may take
        self.usual_seconds = 0.0  # what a long text takes with the model's defaults
        self._clock: Clock = time.thread_time if self.device == "cpu" else time.monotonic
        self._warm_up()

    def _warm_up(self) -> None:
        """Loads what the first request would wait for; on a GPU, also captures the steps of all batch sizes."""
        from pusl.decoding.engines import warm_up
        from pusl.decoding.generator import KeyphraseGenerator

        if isinstance(self.generator, KeyphraseGenerator):
            warm_up(self.generator, int(self.generator.checkpoint.defaults.get("k") or 10), self.batch_size)
        else:
            self.generator.generate(["warm up"], 1)
        self.generator.explain("warm up", [])  # reads the labels: a million of them take seconds
        begun = self._clock()
        self.generator.generate([WARM_TEXT], int(self.info()["defaults"]["k"]))
        self.usual_seconds = self._clock() - begun
        self.seconds = max(self.seconds, USUAL_TIMES * self.usual_seconds)

    @property
    def device(self) -> str:
        """Where the model computes; a fused model computes where its generator does."""
        engine = self._engine()
        return str(engine.device) if engine is not None else "cpu"

    @property
    def precision(self) -> str:
        """The precision it computes in."""
        engine = self._engine()
        return str(engine.precision) if engine is not None else "fp32"

    def _engine(self) -> Any:
        """The engine of the model, or of the first generator among a fused model's sources; None if it has none."""
        sources = [getattr(source, "generator", None) for source in getattr(self.generator, "sources", ())]
        found = [getattr(one, "engine", None) for one in (self.generator, *sources)]
        return next((engine for engine in found if engine is not None), None)

    def info(self) -> dict[str, Any]:
        """The answer of `GET /v1/model`."""
        from pusl.decoding.generator import VOCABULARIES
        from pusl.fusion.fused import FusedGenerator
        from pusl.paradigms import STRATEGIES

        computing = {"device": self.device, "precision": self.precision}
        if isinstance(self.generator, FusedGenerator):
            return {"model": self.name, **self.generator.info(), **computing}
        paradigm = self.generator.paradigm
        return {
            "model": self.name,
            "paradigm": paradigm.name,
            "strategies": {name: STRATEGY_HELP.get(name, "") for name in STRATEGIES if name in paradigm.strategies},
            "vocabularies": list(VOCABULARIES) if self.generator.universe is not None else ["open"],
            "scores": "log-probability",
            **computing,
            "defaults": {
                "k": int(self.generator.checkpoint.defaults.get("k") or 10),
                "strategy": paradigm.choose_strategy(None),
            },
        }

    def answer(
        self, texts: Sequence[str], options: Mapping[str, Any], known: Sequence[Sequence[str]] | None = None
    ) -> list[dict[str, Any]]:
        """One dict per text, in order. `known`: the keyphrases that each text already has."""
        chosen = {name: value for name, value in options.items() if value is not None and name != "explain"}
        from pusl.catalog.run import why_unusable

        results = []
        with time_limit(self.seconds, self._clock):
            found = self.generator.generate(texts, known=known, batch_size=self.batch_size, **chosen)
            for text, one in zip(texts, found, strict=True):
                result: dict[str, Any] = {
                    "keyphrases": one.keyphrases, "scores": [round(score, 6) for score in one.scores],
                    "exhausted": one.exhausted, "truncated": one.truncated,
                }  # fmt: skip
                if not one.keyphrases and (reason := why_unusable(text)):
                    result["reason"] = reason
                if options.get("explain"):
                    check_time()
                    result["marks"] = [_mark(seen) for seen in self.generator.explain(text, one.keyphrases)]
                results.append(result)
        return results


def _mark(explanation: Mapping[str, Any]) -> dict[str, Any]:
    seen = explanation["seen"]
    mark = {
        "present": explanation["present"],
        "offsets": explanation["offsets"],
        "new": None if seen is None else not seen,
        "in_universe": explanation["in_universe"],
    }
    return {**mark, "sources": explanation["sources"]} if "sources" in explanation else mark
