"""Example files -> what a person should know about their labels before training on them.

One pass per file; memory holds the different labels, and a few bytes per item.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pusl.examples import Columns, Example, read_examples
from pusl_eval.files import InputError
from pusl_eval.laziness import DIVERSE, HOT, laziness
from pusl_eval.normalize import distinct_forms, normalize
from pusl_eval.presence import spaced_words

BINS = ((1, 9), (10, 99), (100, 999), (1000, None))  # label frequency; 0 (unseen) where a first file is compared to
QUADRANTS = ("rare_narrow", "rare_diverse", "hot_narrow", "hot_diverse")


@dataclass
class FileTally:
    """What one pass over a file collects."""

    name: str
    per_item: array[int] = field(default_factory=lambda: array("q"))  # different keyphrases
    interactions: array[int] = field(default_factory=lambda: array("q"))  # -1 without counts
    text_hashes: array[int] = field(default_factory=lambda: array("q"))
    labels: dict[str, int] = field(default_factory=dict)  # normalized label -> items that have it
    text_words: int = 0
    label_words: int = 0
    present: int = 0  # label occurrences whose words stand in the item's text

    def add(self, example: Example) -> None:
        """Counts one example."""
        labels = distinct_forms(example.keyphrases)
        text = normalize(example.text)
        words = spaced_words(text, "none")  # normalized already
        for label in labels:
            self.labels[label] = self.labels.get(label, 0) + 1
            self.label_words += label.count(" ") + 1
            wanted = spaced_words(label, "none")
            self.present += bool(wanted) and wanted in words
        self.per_item.append(len(labels))
        self.interactions.append(-1 if example.counts is None else sum(example.counts))
        self.text_hashes.append(hash(text))
        self.text_words += text.count(" ") + 1 if text else 0


def tally(name: str, examples: Iterable[Example]) -> FileTally:
    """One pass over examples."""
    result = FileTally(name)
    for example in examples:
        result.add(example)
    return result


def describe(one: FileTally, first: FileTally | None = None) -> dict[str, Any]:
    """The numbers of one file; with `first` also its overlap with that file."""
    per_item = np.frombuffer(one.per_item, dtype=np.int64)
    frequencies = np.fromiter(one.labels.values(), np.int64, len(one.labels))
    occurrences = int(per_item.sum())
    skew: dict[str, Any] = dict(laziness(per_item))
    base = skew["mu"] if first is None else float(np.frombuffer(first.per_item, dtype=np.int64).mean())
    result: dict[str, Any] = {
        "items": len(per_item),
        "items_without_keyphrases": int((per_item == 0).sum()),
        "unique_labels": len(frequencies),
        "label_occurrences": occurrences,
        **{name: skew[name] for name in ("mu", "sigma", "cv")},
        "median": float(np.median(per_item)),
        "max": int(per_item.max()),
        "share_above_2mu": float((per_item > 2 * base).mean()),  # μ of the first file where there is one
        "words_per_text": one.text_words / len(per_item),
        "words_per_label": one.label_words / occurrences if occurrences else None,
        "present_in_text": one.present / occurrences if occurrences else None,
        "labels_seen_once": float((frequencies == 1).mean()) if len(frequencies) else None,
        **imbalance(frequencies, len(per_item)),
        "label_frequency_bins": _bins(frequencies, frequencies),
        "quadrants": _quadrants(one, per_item),
    }
    if first is not None:
        result["compared_with"] = first.name
        result["overlap"] = _overlap(one, first)
    return result


def imbalance(frequencies: np.ndarray, items: int) -> dict[str, float | None]:
    """How uneven labels are, n_j being the items that have label j, n all items.

    min_ir = min_j n_j / (n - n_j): positives per negative of the rarest label. ilir = max_j n_j / min_j n_j: between
    the most frequent and the rarest label. pos_80: the smallest share of the labels, the most frequent first, that
    together have 80% of all occurrences.

    >>> imbalance(np.array([8, 1, 1]), 10)
    {'min_ir': 0.1111111111111111, 'ilir': 8.0, 'pos_80': 0.3333333333333333}
    """
    if not len(frequencies):
        return {"min_ir": None, "ilir": None, "pos_80": None}
    rarest, most = int(frequencies.min()), int(frequencies.max())
    reached = np.cumsum(np.sort(frequencies)[::-1])
    needed = int(np.searchsorted(reached, 0.8 * reached[-1] - 1e-9)) + 1
    return {
        "min_ir": rarest / (items - rarest) if items > rarest else None,
        "ilir": most / rarest,
        "pos_80": needed / len(frequencies),
    }


def stats(paths: Sequence[str | Path], columns: Columns | None = None) -> tuple[dict[str, Any], list[FileTally]]:
    """Describes files; each is compared with the first, which is taken as the training file."""
    from tqdm import tqdm

    names = _short_names(paths)
    tallies = []
    for path, name in zip(paths, names, strict=True):
        rows = tqdm(read_examples(path, columns=columns), desc=name, unit=" items", disable=None)
        tallies.append(tally(name, rows))
    described = {one.name: describe(one, tallies[0] if number else None) for number, one in enumerate(tallies)}
    return described, tallies


def _short_names(paths: Sequence[str | Path]) -> list[str]:
    """File names, with as many folders before them as tell them apart."""
    parts = [Path(path).parts for path in paths]
    if len(set(map(str, paths))) != len(paths):
        raise InputError("a file is given twice")
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _bins(frequencies: np.ndarray, weights: np.ndarray) -> dict[str, dict[str, float]]:
    """Labels by frequency: how many, and which share of all occurrences they make up."""
    total = max(int(weights.sum()), 1)
    result = {}
    for low, high in BINS:
        inside = (frequencies >= low) & (frequencies <= high if high else True)
        name = f"{low}-{high}" if high else f">={low}"
        result[name] = {"labels": int(inside.sum()), "share_of_occurrences": float(weights[inside].sum() / total)}
    return result


def _quadrants(one: FileTally, per_item: np.ndarray) -> dict[str, dict[str, float]] | None:
    """Hot/rare × diverse/narrow among the items that have counts; None where no item has."""
    interactions = np.frombuffer(one.interactions, dtype=np.int64)
    counted = (interactions >= 0) & (per_item > 0)
    if not counted.any():
        return None
    sizes: Any = laziness(per_item[counted], interactions[counted])["quadrants"]
    return {name: {"items": sizes[name], "share": sizes[name] / int(counted.sum())} for name in QUADRANTS}


def _overlap(one: FileTally, first: FileTally) -> dict[str, Any]:
    texts = np.frombuffer(one.text_hashes, dtype=np.int64)
    shared = np.isin(texts, np.frombuffer(first.text_hashes, dtype=np.int64))
    known = np.fromiter((first.labels.get(label, 0) for label in one.labels), np.int64, len(one.labels))
    here = np.fromiter(one.labels.values(), np.int64, len(one.labels))
    total = max(int(here.sum()), 1)
    return {
        "texts_shared": int(shared.sum()),
        "texts_shared_share": float(shared.mean()),
        "labels_shared": int((known > 0).sum()),
        "labels_shared_share": float((known > 0).mean()) if len(known) else None,
        "occurrences_of_shared_labels": float(here[known > 0].sum() / total),
        "labels_by_frequency_there": {
            "0": {"labels": int((known == 0).sum()), "share_of_occurrences": float(here[known == 0].sum() / total)},
            **_bins(known, here),
        },
    }


def table(described: dict[str, Any]) -> str:
    """The numbers as an aligned table, one column per file."""
    files = list(described.values())
    whole, plain, percent = "{:,}".format, "{:.2f}".format, "{:.1%}".format
    rounded = "{:,.0f}".format
    lines: list[tuple[str, list[str]]] = []

    def add(label: str, values: list[Any], show: Any) -> None:
        lines.append((label, ["–" if value is None else show(value) for value in values]))

    rows: list[tuple[str, str, Any]] = [
        ("items", "items", whole), ("  without keyphrases", "items_without_keyphrases", whole),
        ("different labels", "unique_labels", whole), ("  seen once", "labels_seen_once", percent),
        ("  min IR, positives per negative", "min_ir", "{:.2g}".format),
        ("  ILIR, most frequent to rarest", "ilir", rounded),
        ("  Pos-80%, labels with 80% of all", "pos_80", percent),
        ("label occurrences", "label_occurrences", whole), ("keyphrases per item, mean μ", "mu", plain),
        ("  standard deviation σ", "sigma", plain), ("  CV = σ/μ", "cv", plain), ("  median", "median", "{:g}".format),
        ("  largest", "max", whole), ("items with more than 2μ", "share_above_2mu", percent),
        ("words per text", "words_per_text", plain), ("words per label", "words_per_label", plain),
        ("labels present in the text", "present_in_text", percent),
    ]  # fmt: skip
    for label, key, show in rows:
        add(label, [file[key] for file in files], show)
    lines.append(("labels (occurrences) by frequency", [""] * len(files)))
    for name in files[0]["label_frequency_bins"]:
        add(f"  {name}", [file["label_frequency_bins"][name] for file in files], _bin_cell)
    if any(file["quadrants"] for file in files):
        lines.append((f"items, hot = {HOT}+ interactions, diverse = {DIVERSE}+ labels", [""] * len(files)))
        for name in QUADRANTS:
            add(
                f"  {name.replace('_', '-')}",
                [(file["quadrants"] or {}).get(name, {}).get("share") for file in files],
                percent,
            )
    if len(files) > 1:
        overlaps = [file.get("overlap") or {} for file in files]
        lines.append((f"overlap with {next(iter(described))}", [""] * len(files)))
        rows = [
            ("  texts in both", "texts_shared", whole), ("  labels in both", "labels_shared_share", percent),
            ("  occurrences of these", "occurrences_of_shared_labels", percent),
        ]  # fmt: skip
        for label, key, show in rows:
            add(label, [overlap.get(key) for overlap in overlaps], show)
        lines.append(("labels (occurrences) by frequency there", [""] * len(files)))
        for name in overlaps[1]["labels_by_frequency_there"]:
            there = [overlap.get("labels_by_frequency_there", {}).get(name) for overlap in overlaps]
            add(f"  {name}", there, _bin_cell)
    width = max(len(label) for label, values in lines if any(values)) + 2
    widths = [max(len(name), *(len(values[column]) for _, values in lines)) for column, name in enumerate(described)]
    shown = [" " * width + "  ".join(name.rjust(wide) for name, wide in zip(described, widths, strict=True))]
    for label, values in lines:
        cells = "  ".join(value.rjust(wide) for value, wide in zip(values, widths, strict=True))
        shown.append(f"{label.ljust(width)}{cells}".rstrip())
    return "\n".join(shown)


def _bin_cell(cell: dict[str, float]) -> str:
    return f"{cell['labels']:,} ({cell['share_of_occurrences']:.1%})"
