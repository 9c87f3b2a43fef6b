"""A trained model + its training file -> rich items and self-completed items -> the model trained again.

PUSL+PT. (1) raw: training items with more keyphrases than the mean μ. (2) synthetic: for items with
few keyphrases the model generates more; they are added to the originals, repeats are dropped, and the
item is KEPT only if it now has more than μ (rejection sampling). Then the model trains on both with
half the learning rate. Every step leaves a finished file or nothing, so a killed run goes on.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.files import InputError, write_json
from pusl.config import option
from pusl.examples import Example, read_examples, write_examples
from pusl.targets import distinct

SOURCES = ("raw", "synthetic")


@dataclass
class Selection:
    """How the items of post-training are chosen. Values marked (paper) are the publication's."""

    sources: str = option(
        "raw,synthetic", "where items come from: raw, synthetic or raw,synthetic (the ablation of Table 6)"
    )
    samples: int = option(
        50_000, "at most this many items, half from each source if both are used (paper: 50,000)", minimum=1
    )
    k: int | None = option(None, "phrases to ask the model for per sparse item (default: 2μ)", minimum=1)
    min_score: float | None = option(None, "drop generated phrases with a score below this before the rejection rule")
    strategy: str | None = option(None, "decoding strategy for the synthetic part (default: the model's own default)")
    allow_repeats: bool = option(False, "decode as in the paper, with repeats; they are dropped, so fewer items pass")
    selection_seed: int = option(0, "which items are drawn when there are more than --samples")


def mean_keyphrases(path: str | Path) -> float:
    """μ: different keyphrases per item of a training file.

    Items without any keyphrase count, as they do in `eval`.
    """
    total = items = 0
    for example in read_examples(path):
        total += len(distinct(example.keyphrases))
        items += 1
    return total / items


def parse_sources(text: str) -> list[str]:
    """`"raw,synthetic"` -> `["raw", "synthetic"]`; an unknown or missing source is an InputError."""
    chosen = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [part for part in chosen if part not in SOURCES]
    if unknown or not chosen:
        raise InputError(f"--sources is {text!r}; expected raw, synthetic or raw,synthetic")
    return [source for source in SOURCES if source in chosen]


def draw(examples: Iterable[Example], count: int, seed: int) -> list[Example]:
    """`count` examples in file order, drawn by a hash of seed and id: one pass, `count` items of memory."""

    def rank(pair: tuple[int, Example]) -> bytes:
        return hashlib.blake2b(f"{seed}\0{pair[1].id}".encode(), digest_size=16).digest()

    drawn = heapq.nsmallest(count, enumerate(examples), key=rank)
    return [example for _, example in sorted(drawn, key=lambda pair: pair[0])]


def complete_example(example: Example, generated: Iterable[str], mu: float) -> Example | None:
    """The example with the generated phrases added, or None if it still has at most μ (rejected).

    >>> complete_example(Example("a", "t", ["drone"]), ["Drone", "toy"], 1.5).keyphrases
    ['drone', 'toy']
    >>> complete_example(Example("a", "t", ["drone"]), ["Drone"], 1.5) is None
    True
    """
    merged = distinct([*example.keyphrases, *generated])
    if len(merged) <= mu:
        return None
    return Example(example.id, example.text, merged, extra={"source": "synthetic", "observed": example.keyphrases})


def select(
    model: str | Path, train: str | Path, out: str | Path, options: Selection, workers: int = 1
) -> dict[str, Any]:
    """Writes `out/selected.jsonl` (what to train on) and returns the kept/rejected report.

    A finished selection with the same settings is used again; an unfinished generation goes on.
    """
    out = Path(out)
    selected, report_file = out / "selected.jsonl", out / "selection.json"
    sources = parse_sources(options.sources)
    settings = {"model": str(model), "train": str(train), **vars(options)}
    if report_file.exists() and selected.exists():
        report: dict[str, Any] = json.loads(report_file.read_text(encoding="utf-8"))
        if report["settings"] == settings:
            return report
    mu = mean_keyphrases(train)
    quota = -(-options.samples // len(sources))
    report = {"mu": mu, "settings": settings}
    parts: list[Example] = []
    if "raw" in sources:
        rich = (
            [e for e in _split(train, mu, rich=True)]
            if options.samples >= 10**9
            else draw(_split(train, mu, rich=True), quota, options.selection_seed)
        )
        parts += [Example(e.id, e.text, distinct(e.keyphrases), extra={"source": "raw"}) for e in rich]
        report["raw"] = {"kept": len(rich)}
    if "synthetic" in sources:
        sparse = draw(_split(train, mu, rich=False), quota, options.selection_seed)
        kept, report["synthetic"] = _synthesize(model, sparse, mu, out, options, workers)
        parts += kept
    if not parts:
        raise InputError(f"{train}: no item qualifies for post-training (μ = {mu:.2f}); try --sources raw,synthetic")
    out.mkdir(parents=True, exist_ok=True)
    write_examples(selected, parts, force=True)
    write_json(report_file, report, force=True)
    return report


def _split(train: str | Path, mu: float, rich: bool) -> Iterator[Example]:
    for example in read_examples(train):
        size = len(distinct(example.keyphrases))
        if (size > mu) == rich and size:
            yield example


def _synthesize(
    model: str | Path, sparse: list[Example], mu: float, out: Path, options: Selection, workers: int
) -> tuple[list[Example], dict[str, int]]:
    """Generates for the sparse items through the catalog path, so that a kill loses one shard at most."""
    from eval.records import read_predictions
    from pusl.catalog import generate_catalog

    source, predictions = out / "sparse.jsonl", out / "generated.jsonl"
    k = options.k or max(1, int(2 * mu + 0.5))
    if not source.exists():
        write_examples(source, sparse)
    if not predictions.exists():
        generate_catalog(
            model, source, predictions, k=k, strategy=options.strategy, allow_repeats=options.allow_repeats,
            min_score=options.min_score, workers=workers,
        )  # fmt: skip
    by_id = {prediction.id: prediction.keyphrases for prediction in read_predictions(predictions)}
    completed = [complete_example(example, by_id.get(example.id, []), mu) for example in sparse]
    kept = [example for example in completed if example is not None]
    added = sum(len(example.keyphrases) - len(distinct(example.extra["observed"])) for example in kept)
    return kept, {
        "candidates": len(sparse),
        "kept": len(kept),
        "rejected": len(sparse) - len(kept),
        "phrases_added": added,
    }
