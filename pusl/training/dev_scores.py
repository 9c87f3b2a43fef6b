"""A model in training + a dev file -> F1@O, B@μ, B@2μ and K@2μ.

One generation of 2μ keyphrases per item serves all four: B@μ looks at the first μ of them. F1@O
therefore sees at most 2μ predictions; for items with more references it is a lower bound.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pusl.checkpoint import Checkpoint
from pusl.examples import Columns, Example, read_examples
from pusl_eval.budgets import budgets
from pusl_eval.files import InputError, hash_rank, sample_by_hash
from pusl_eval.normalize import distinct

log = logging.getLogger(__name__)
BATCH = 64
MOST_SHARED = 0.01  # of the dev items, in the training file too; as in `pusl fuse`


class DevSet:
    """Dev items (a fixed sample if there are more than `limit`) and their scores."""

    def __init__(self, path: str | Path, mu: float, limit: int, columns: Columns | None = None) -> None:
        labeled = (example for example in read_examples(path, columns=columns) if distinct(example.keyphrases))
        self.items = _sample(labeled, limit)
        if not self.items:
            raise InputError(f"{path}: no item has a keyphrase, so there is nothing to score; omit --dev")
        self.path, self.mu, (self.k, self.double_k) = path, mu, budgets(mu)
        self._generator: Any = None  # made once; on a GPU its graphs and memory serve every score

    def predict(self, checkpoint: Checkpoint, rank: int = 0, world: int = 1) -> list[list[str]]:
        """2μ keyphrases for this process's share of the items (rank, rank + world, …)."""
        from pusl.decoding.generator import KeyphraseGenerator

        texts = [example.text for example in self.items[rank::world]]
        if not texts:
            return []
        if self._generator is None:
            self._generator = KeyphraseGenerator(checkpoint)
        else:
            self._generator.refresh(checkpoint)
        found = self._generator.generate(texts, self.double_k, batch_size=BATCH)
        return [prediction.keyphrases for prediction in found]

    def scores(self, predictions: list[list[str]]) -> dict[str, float]:
        """Mean scores of predictions for all items, in order."""
        from pusl_eval.metrics import budget_accuracy, f1, unique_count

        gold = [example.keyphrases for example in self.items]
        return {
            "F1@O": float(f1(gold, predictions).mean()),
            "B@mu": float(budget_accuracy(gold, predictions, self.k).mean()),
            "B@2mu": float(budget_accuracy(gold, predictions, self.double_k).mean()),
            "K@2mu": float(unique_count(gold, predictions, self.double_k).mean()),
        }


def _sample(examples: Iterable[Example], limit: int) -> list[Example]:
    """At most `limit` examples in file order, drawn by a hash of the id: the same in every run."""
    return sample_by_hash(examples, limit, lambda example: hash_rank(example.id))


def warn_of_overlap(dev: DevSet, train: str | Path, columns: Columns | None = None) -> None:
    """Says so if more than 1% of the dev items are training items, which a model knows by heart."""
    scored = {(example.id, example.text) for example in dev.items}
    read = ((example.id, example.text) for example in read_examples(train, columns=columns))
    both = sorted(scored.intersection(read))
    if len(both) > len(dev.items) * MOST_SHARED:
        log.warning(
            f"{dev.path}: {len(both)} of {len(dev.items)} dev items are in the training file too "
            f"(e.g. {both[0][0]!r}): their scores are too good and may choose the wrong model"
        )


def metadata(paradigm: str, mu: float, max_source_length: int, max_phrase_tokens: int, **more: Any) -> dict[str, Any]:
    """The content of pusl.json: how to decode this model well."""
    defaults = {
        "k": budgets(mu)[1], "mu": mu, "max_source_length": max_source_length, "max_phrase_tokens": max_phrase_tokens,
    }  # fmt: skip
    return {"paradigm": paradigm, "defaults": defaults, **more}
