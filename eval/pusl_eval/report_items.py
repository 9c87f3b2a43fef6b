"""References and predictions item by item -> the report's examples, and what aggregate scores do not hold."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path

from pusl_eval.inputs import load_phrases
from pusl_eval.normalize import normalize
from pusl_eval.records import read_predictions, read_references

Systems = Mapping[str, str | Path]


class ReportItems:
    """References and predictions item by item, for what aggregate scores do not hold."""

    def __init__(
        self,
        references: str | Path,
        predictions: Systems,
        train: str | Path | None,
        universe: str | Path | None,
        complete: str | Path | None,
        how: str,
    ) -> None:
        self.norm: Callable[[str], str] = lambda text: normalize(text, how)
        self.references = {record.id: record for record in read_references(references)}
        self.predictions = {
            name: {record.id: record for record in read_predictions(path)} for name, path in predictions.items()
        }
        self.truth = {key: {self.norm(p) for p in record.keyphrases} - {""} for key, record in self.references.items()}
        self.complete: dict[str, set[str]] = {}
        if complete is not None:
            self.complete = {
                record.id: {self.norm(p) for p in record.keyphrases} for record in read_references(complete)
            }
        self.train_counts: Counter[str] | None = None
        if train is not None:
            self.train_counts = Counter(
                p for record in read_references(train) for p in {self.norm(p) for p in record.keyphrases}
            )
        self.universe = {self.norm(p) for p in load_phrases(universe, "universe")} if universe is not None else None

    def longest_list(self) -> int:
        """How many phrases the longest prediction of any system holds."""
        return max((len(one.keyphrases) for found in self.predictions.values() for one in found.values()), default=0)

    def classes(self, phrase: str, item: str, seen: set[str]) -> str:
        """One chip's class: repeat beats hit beats right but unlabeled beats out-of-universe beats new."""
        key = self.norm(phrase)
        if not key or key in seen:
            return "repeat"
        if key in self.truth[item]:
            return "hit"
        if key in self.complete.get(item, ()):
            return "unlabeled"
        if self.universe is not None and key not in self.universe:
            return "out"
        if self.train_counts is not None and key not in self.train_counts:
            return "new"
        return ""

    def examples_section(self, k: int, count: int, seed: int) -> str:
        """`count` random items with every system's first k phrases as colored chips."""
        ids = [key for key, labels in self.truth.items() if labels]
        chosen = random.Random(seed).sample(ids, min(count, len(ids)))
        if not chosen:
            return ""
        keys = ['<span class="chip hit">right</span>', '<span class="chip repeat">repeat or blank</span>']
        if self.complete:
            keys.insert(1, '<span class="chip unlabeled">right, but not labeled</span>')
        if self.train_counts is not None:
            keys.append('<span class="chip new">not a training label</span>')
        if self.universe is not None:
            keys.append('<span class="chip out">outside the universe</span>')
        keys.append('<span class="chip missed">label no system found</span>')
        cards = "\n".join(self._card(key, k) for key in chosen)
        return (
            f"<h2>Examples</h2><p class=soft>{len(chosen)} items drawn at random, the first {k} phrases each. "
            f"A phrase without color is not among the labels, which does not make it wrong.</p><p>{' '.join(keys)}</p>"
            '<p><input type="search" id="search" placeholder="Search texts and phrases" aria-label="Search examples"> '
            f'<span class="soft" id="found">{len(chosen)} of {len(chosen)} shown</span></p>{cards}'
        )

    def _card(self, key: str, k: int) -> str:
        rows, found = [], set[str]()
        for name, predictions in self.predictions.items():
            seen: set[str] = set()
            chips = []
            for phrase in predictions[key].keyphrases[:k] if key in predictions else []:
                chips.append(_chip(phrase, self.classes(phrase, key, seen)))
                seen.add(self.norm(phrase))
            found |= seen
            rows.append(f"<dt>{escape(name)}</dt><dd>{''.join(chips) or '<span class=soft>nothing</span>'}</dd>")
        labels = "".join(
            _chip(phrase, "" if self.norm(phrase) in found else "missed") for phrase in self.references[key].keyphrases
        )
        text = self.references[key].text or key
        shown = text if len(text) <= 300 else text[:300].rsplit(" ", 1)[0] + " …"
        rows.append(f"<dt>labels</dt><dd>{labels}</dd>")
        return f'<div class="example"><h3>{escape(shown)}</h3><dl>{"".join(rows)}</dl></div>'


def _chip(phrase: str, classes: str) -> str:
    return f'<span class="chip {classes}">{escape(phrase) or "(blank)"}</span>'
