"""Files, lists or dicts of records -> rows of ids in the references' order.

A source is a path, a sequence of records (dicts or `Reference`/`Prediction` objects) or a mapping from
id to keyphrases. Records are turned into ids a few thousand at a time, so that a file's strings are
never all in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from eval.files import InputError, Row, check_input, kind_of, read_lines, read_rows
from eval.laziness import laziness
from eval.matching import Offsets, Ragged, Vocabulary
from eval.records import (
    Prediction,
    Reference,
    parse_prediction,
    parse_reference,
    read_label_file,
    read_predictions,
    read_references,
)

Source: TypeAlias = (
    "str | Path | Mapping[str, Sequence[str]] | Sequence[Row] | Sequence[Reference] | Sequence[Prediction]"
)
CHUNK = 8192


@dataclass(frozen=True)
class References:
    """The items to score against."""

    ids: list[str]
    index: dict[str, int]
    sets: Ragged
    groups: list[str | None] | None  # None when no item has a group
    summary: dict[str, Any]


@dataclass(frozen=True)
class Training:
    """What the training file says about labels."""

    n: int
    mu: float
    counts: NDArray[np.int64]  # items with the label, by phrase id
    summary: dict[str, Any]


def load_references(source: Source, vocabulary: Vocabulary) -> References:
    """All references as sets of ids."""
    ids: list[str] = []
    groups: list[str | None] = []
    interactions: list[int] = []
    counted = True
    parts = []
    for chunk in _chunks(reference_records(source)):
        ids.extend(record.id for record in chunk)
        groups.extend(record.group for record in chunk)
        counted = counted and all(record.counts is not None for record in chunk)
        if counted:
            interactions.extend(sum(record.counts or ()) for record in chunk)
        parts.append(vocabulary.encode([record.keyphrases for record in chunk]).as_sets())
    if not ids:
        raise InputError(f"{name_of(source, 'references')}: no items; expected at least one record")
    sets = stack(parts)
    return References(
        ids,
        {name: row for row, name in enumerate(ids)},
        sets,
        groups if any(group is not None for group in groups) else None,
        laziness(sets.lengths, interactions if counted else None),
    )


def load_predictions(source: Source, references: References, vocabulary: Vocabulary, of: str) -> tuple[Ragged, int]:
    """One row of ids per reference, in the references' order, and how many references have none."""
    rows: list[int] = []
    parts = []
    for chunk in _chunks(prediction_records(source, references.index, of)):
        rows.extend(references.index[record.id] for record in chunk)
        parts.append(vocabulary.encode([record.keyphrases for record in chunk]))
    if not rows:
        raise InputError(f"{name_of(source, 'predictions')}: no items; expected at least one record")
    return _placed(stack(parts), np.array(rows, np.int64), len(references.ids)), len(references.ids) - len(rows)


def load_training(source: Source, vocabulary: Vocabulary, what: str = "train") -> Training:
    """Label counts of an example file, in one streamed pass."""
    counts = np.zeros(1 << 12, np.int64)
    sizes: list[Offsets] = []
    interactions: list[int] = []
    counted = True
    for chunk in _chunks(reference_records(source)):
        sets = vocabulary.encode([record.keyphrases for record in chunk]).as_sets()
        sizes.append(sets.lengths)
        if vocabulary.size > len(counts):
            counts = np.concatenate([counts, np.zeros(max(len(counts), vocabulary.size), np.int64)])
        found, times = np.unique(sets.ids, return_counts=True)
        counts[found] += times
        counted = counted and all(record.counts is not None for record in chunk)
        if counted:
            interactions.extend(sum(record.counts or ()) for record in chunk)
    if not sizes:
        raise InputError(f"{name_of(source, what)}: no items; expected at least one record")
    lengths = np.concatenate(sizes)
    summary = laziness(lengths, interactions if counted else None)
    return Training(len(lengths), float(lengths.mean()), counts, summary)


def load_phrases(source: str | Path | Iterable[str], what: str) -> Iterator[str]:
    """Streams the raw phrases of a universe or label space; nothing in it is an InputError."""
    phrases = read_label_file(source) if isinstance(source, (str, Path)) else iter(source)
    found = False
    for phrase in phrases:
        found = True
        yield phrase
    if not found:
        raise InputError(f"{name_of(source, what)}: no phrases; expected at least one")


def load_weights(source: str | Path | Mapping[str, float], vocabulary: Vocabulary) -> dict[int, float]:
    """Weight by phrase id. A file has the columns `keyphrase` and `weight`; other endings: phrase TAB weight."""
    found: dict[int, float] = {}
    for where, phrase, weight in _weight_rows(source):
        try:
            value = float(weight)
        except (TypeError, ValueError):
            raise InputError(f"{where}: the weight of {phrase!r} is {weight!r}; expected a number") from None
        if not np.isfinite(value):
            raise InputError(f"{where}: the weight of {phrase!r} is {value}; expected a finite number")
        found[vocabulary[phrase]] = value
    if not found:
        raise InputError(f"{name_of(source, 'weights')}: no weights; expected at least one")
    return found


def _weight_rows(source: str | Path | Mapping[str, float]) -> Iterator[tuple[str, str, Any]]:
    if not isinstance(source, (str, Path)):
        yield from (("weights", phrase, weight) for phrase, weight in source.items())
        return
    try:
        kind_of(source)
    except InputError:
        for line, text in read_lines(source):
            if text.strip():
                phrase, tab, weight = text.rpartition("\t")
                if not tab:
                    raise InputError(f"{source}:{line}: expected a phrase, a tab and a weight") from None
                yield f"{source}:{line}", phrase, weight
        return
    for line, row in read_rows(source):
        if type(row.get("keyphrase")) is not str or "weight" not in row:
            found = ", ".join(row) or "nothing"
            raise InputError(f"{source}:{line}: expected 'keyphrase' (a string) and 'weight', found: {found}")
        yield f"{source}:{line}", row["keyphrase"], row["weight"]


def reference_records(source: Source) -> Iterator[Reference]:
    """Checked references from any kind of source."""
    if isinstance(source, (str, Path)):
        yield from read_references(source)
        return
    seen: dict[str, int] = {}
    for line, record in enumerate(_records(source), 1):
        row = _fields(record) if isinstance(record, (Reference, Prediction)) else record
        yield parse_reference(row, "references", line, seen)


def prediction_records(source: Source, known: Container[str] | None, of: str) -> Iterator[Prediction]:
    """Checked predictions from any kind of source."""
    if isinstance(source, (str, Path)):
        yield from read_predictions(source, known, of)
        return
    seen: dict[str, int] = {}
    for line, record in enumerate(_records(source), 1):
        row = _fields(record) if isinstance(record, (Reference, Prediction)) else record
        prediction = parse_prediction(row, "predictions", line, seen)
        if known is not None and prediction.id not in known:
            raise InputError(f"predictions:{line}: id {prediction.id!r} has no reference in {of}; remove it")
        yield prediction


def _records(source: Any) -> Iterator[Any]:
    if isinstance(source, Mapping):
        return ({"id": name, "keyphrases": phrases} for name, phrases in source.items())
    return iter(source)


def _fields(record: Reference | Prediction) -> Row:
    known = {"id": record.id, "keyphrases": record.keyphrases}
    return known | {"group": record.group, "counts": record.counts} if isinstance(record, Reference) else known


def _chunks(records: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(islice(records, CHUNK)):
        yield chunk


def stack(parts: Sequence[Ragged]) -> Ragged:
    """Rows of several parts one below the other."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged(np.concatenate([part.ids for part in parts]), np.concatenate(([0], np.cumsum(lengths))))


def _placed(found: Ragged, rows: Offsets, count: int) -> Ragged:
    """Row j of `found` becomes row rows[j] of `count` rows; the others are empty."""
    if len(rows) == count and bool((rows[1:] > rows[:-1]).all()):
        return found
    lengths = np.zeros(count, np.int64)
    lengths[rows] = found.lengths
    starts = np.concatenate(([0], np.cumsum(lengths)))
    source = np.zeros(count, np.int64)
    source[rows] = found.starts[:-1]
    take = np.repeat(source - starts[:-1], lengths) + np.arange(starts[-1])
    return Ragged(found.ids[take], starts)


def name_of(source: object, otherwise: str) -> str:
    """How an error message calls a source."""
    return str(source) if isinstance(source, (str, Path)) else otherwise


def fingerprint(source: object) -> dict[str, Any]:
    """Name, size and SHA-256 of a source file, so that a number can be traced to its bytes."""
    if not isinstance(source, (str, Path)):
        return {"file": None}
    path = check_input(source)
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return {"file": str(source), "bytes": path.stat().st_size, "sha256": digest.hexdigest()}
