"""Files, lists or dicts of records -> rows of ids in the references' order.

A source is a path, a sequence of records (dicts or `ReferenceRecord`/`PredictionRecord` objects) or a mapping from
id to keyphrases. Records are turned into ids a few thousand at a time, so that a file's strings are
never all in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, repeat
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from pusl_eval.files import InputError, Row, check_input, file_digest, kind_of, read_lines, read_rows, type_name
from pusl_eval.laziness import laziness
from pusl_eval.matching import Offsets, Ragged, Vocabulary
from pusl_eval.presence import Texts
from pusl_eval.records import (
    PredictionRecord,
    ReferenceRecord,
    parse_prediction,
    parse_reference,
    read_label_file,
    read_predictions,
    read_references,
    unknown_id,
)

Source: TypeAlias = (
    "str | Path | Mapping[str, Sequence[str]] | Sequence[Row] | Sequence[ReferenceRecord] | Sequence[PredictionRecord]"
)
Floats: TypeAlias = NDArray[np.float64]
CHUNK = 8192
_STRINGS, _LISTS = frozenset((str,)), frozenset((list, tuple))


@dataclass(frozen=True)
class References:
    """The items to score against."""

    ids: list[str]
    sets: Ragged
    groups: list[str | None] | None  # None when no item has a group
    texts: Texts | None  # None when no item has a text
    summary: dict[str, Any]

    @cached_property
    def index(self) -> dict[str, int]:
        """The row of each id."""
        return {name: row for row, name in enumerate(self.ids)}


@dataclass(frozen=True)
class Predictions:
    """One system's keyphrases as ids, one row per reference, in the references' order."""

    rows: Ragged
    missing: NDArray[np.bool_]  # references without a prediction
    exhausted: NDArray[np.bool_]  # the system said that it had no more to give


@dataclass(frozen=True)
class Training:
    """What the training file says about labels."""

    n: int
    mu: float
    counts: NDArray[np.int64]  # items with the label, by phrase id
    summary: dict[str, Any]


@dataclass
class _Chunk:
    """Some records, field by field."""

    ids: list[str]
    phrases: list[Sequence[str]]
    groups: list[str | None] | None = None
    interactions: list[int] | None = None  # None when a record has no counts
    texts: list[str | None] | None = None
    exhausted: list[bool] | None = None


def load_references(source: Source, vocabulary: Vocabulary, progress: bool = False) -> References:
    """All references as sets of ids."""
    ids: list[str] = []
    groups: list[str | None] = []
    interactions: list[int] | None = []
    texts = Texts(vocabulary.how)
    parts = []
    for chunk in _reference_chunks(source, progress, texts=True):
        ids.extend(chunk.ids)
        groups.extend(chunk.groups or ())
        texts.extend(chunk.texts or repeat(None, len(chunk.ids)))
        interactions = _extend(interactions, chunk.interactions)
        parts.append(_encode(vocabulary, chunk).as_sets())
    if not ids:
        raise InputError(f"{name_of(source, 'references')}: no items; expected at least one record")
    sets = stack(parts)
    named = groups if any(group is not None for group in groups) else None
    return References(ids, sets, named, texts if texts else None, laziness(sets.lengths, interactions))


def load_predictions(
    source: Source, references: References, vocabulary: Vocabulary, of: str, progress: bool = False
) -> Predictions:
    """All predictions of a source; an id that no reference has is an InputError."""
    count = len(references.ids)
    missing, exhausted = np.ones(count, np.bool_), np.zeros(count, np.bool_)
    if _is_clean(source) and list(source) == references.ids:  # one by one the same: nothing to look up
        return Predictions(_encode(vocabulary, next(_whole(source))), ~missing, exhausted)
    rows: list[int] = []
    parts, flags = [], []
    for chunk in _prediction_chunks(source, references.index, of, progress):
        rows.extend(map(references.index.__getitem__, chunk.ids))
        parts.append(_encode(vocabulary, chunk))
        flags.append(np.array(chunk.exhausted or [False] * len(chunk.ids), np.bool_))
    if not rows:
        raise InputError(f"{name_of(source, 'predictions')}: no items; expected at least one record")
    places = np.array(rows, np.int64)
    missing[places], exhausted[places] = False, np.concatenate(flags)
    return Predictions(_placed(stack(parts), places, count), missing, exhausted)


def load_training(source: Source, vocabulary: Vocabulary, what: str = "train", progress: bool = False) -> Training:
    """Label counts of an example file, in one streamed pass."""
    counts = np.zeros(1 << 12, np.int64)
    sizes: list[Offsets] = []
    interactions: list[int] | None = []
    for chunk in _reference_chunks(source, progress):
        sets = _encode(vocabulary, chunk).as_sets()
        sizes.append(sets.lengths)
        if vocabulary.size > len(counts):
            counts = np.concatenate([counts, np.zeros(max(len(counts), vocabulary.size), np.int64)])
        np.add.at(counts, sets.ids, 1)
        interactions = _extend(interactions, chunk.interactions)
    if not sizes:
        raise InputError(f"{name_of(source, what)}: no items; expected at least one record")
    lengths = np.concatenate(sizes)
    return Training(len(lengths), float(lengths.mean()), counts, laziness(lengths, interactions))


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
    """Weight by phrase id. A file has the columns `keyphrase` and `weight`, or lines of phrase TAB weight."""
    found = {
        vocabulary[phrase]: _number(weight, f"{where}: the weight of {phrase!r}")
        for where, phrase, weight in _weight_rows(source, "weight")
    }
    if not found:
        raise InputError(f"{name_of(source, 'weights')}: no weights; expected at least one")
    return found


def load_rank_weights(source: str | Path | Mapping[str, Sequence[float]], vocabulary: Vocabulary) -> dict[int, Floats]:
    """Weights of ranks 1, 2, ... by phrase id. A file has the columns `keyphrase` and `weights` (a list); other
    endings: the phrase and its weights, separated by tabs.
    """
    found: dict[int, Floats] = {}
    for where, phrase, weights in _weight_rows(source, "weights"):
        if isinstance(weights, str) or not isinstance(weights, Sequence) or not weights:
            raise InputError(f"{where}: the weights of {phrase!r} are {weights!r}; expected a list of numbers")
        numbers = [_number(weight, f"{where}: a weight of {phrase!r}") for weight in weights]
        found[vocabulary[phrase]] = np.array(numbers)
    if not found:
        raise InputError(f"{name_of(source, 'rank_weights')}: no weights; expected at least one")
    return found


def _number(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{what} is {value!r}; expected a number") from None
    if not np.isfinite(number):
        raise InputError(f"{what} is {number}; expected a finite number")
    return number


def _weight_rows(source: str | Path | Mapping[str, Any], column: str) -> Iterator[tuple[str, str, Any]]:
    """(where, phrase, weight or weights) of a file or a mapping."""
    if not isinstance(source, (str, Path)):
        yield from ((column, phrase, weight) for phrase, weight in source.items())
        return
    kind = _weights_kind(source)
    if kind == "lines":
        for line, text in read_lines(source):
            if text.strip():
                parts = text.rsplit("\t", 1) if column == "weight" else text.split("\t")
                if len(parts) < 2:
                    raise InputError(f"{source}:{line}: expected a phrase, a tab and a {column}")
                yield f"{source}:{line}", parts[0], parts[1] if column == "weight" else parts[1:]
        return
    for line, row in read_rows(source):
        if type(row.get("keyphrase")) is not str or column not in row:
            found = ", ".join(row) or "nothing"
            raise InputError(f"{source}:{line}: expected 'keyphrase' (a string) and '{column}', found: {found}")
        value = row[column]
        if column == "weights" and kind in ("csv", "tsv"):
            value = value.strip(" []").replace("|", ",").split(",")
        yield f"{source}:{line}", row["keyphrase"], value


def _weights_kind(source: str | Path) -> str:
    """The file's kind; `lines` for phrase TAB weight, which a .tsv file without the header `keyphrase` holds too."""
    try:
        kind = kind_of(source)
    except InputError:
        return "lines"
    first = next((text for _, text in read_lines(source)), "") if kind == "tsv" else ""
    return "lines" if kind == "tsv" and "keyphrase" not in first.split("\t") else kind


def _reference_chunks(source: Source, progress: bool, texts: bool = False) -> Iterator[_Chunk]:
    """Checked references from any kind of source, a few thousand at a time."""
    if _is_clean(source):
        yield from _whole(source)
        return
    for records in _chunks(_watched(_reference_records(source), source, progress)):
        counted = all(record.counts is not None for record in records)
        yield _Chunk(
            [record.id for record in records],
            [record.keyphrases for record in records],
            [record.group for record in records],
            [sum(record.counts or ()) for record in records] if counted else None,
            [record.text for record in records] if texts and any(record.text for record in records) else None,
        )


def _prediction_chunks(source: Source, known: Mapping[str, int], of: str, progress: bool) -> Iterator[_Chunk]:
    """Checked predictions from any kind of source, a few thousand at a time."""
    if _is_clean(source) and known.keys() >= source.keys():
        yield from _whole(source)
        return
    for records in _chunks(_watched(_prediction_records(source, known, of), source, progress)):
        yield _Chunk(
            [record.id for record in records],
            [record.keyphrases for record in records],
            exhausted=[record.exhausted for record in records],
        )


def _is_clean(source: Source) -> TypeGuard[Mapping[str, Sequence[str]]]:
    """Whether it is a mapping from ids to lists: it is encoded as a whole, and `_encode` finds what is not a string."""
    return (
        isinstance(source, Mapping)
        and all(source)
        and _STRINGS.issuperset(map(type, source))
        and _LISTS.issuperset(map(type, source.values()))
    )


def _whole(source: Mapping[str, Sequence[str]]) -> Iterator[_Chunk]:
    if source:
        yield _Chunk(list(source), list(source.values()))


def _encode(vocabulary: Vocabulary, chunk: _Chunk) -> Ragged:
    try:
        return vocabulary.encode(chunk.phrases)
    except (AttributeError, TypeError):  # not a string: find it, to name its item
        for line, (name, phrases) in enumerate(zip(chunk.ids, chunk.phrases, strict=True), 1):
            parse_prediction({"id": name, "keyphrases": list(phrases)}, "records", line)
        raise


def _reference_records(source: Source) -> Iterator[ReferenceRecord]:
    if isinstance(source, (str, Path)):
        yield from read_references(source)
        return
    seen: dict[str, int] = {}
    for line, row in enumerate(_rows(source), 1):
        yield parse_reference(row, "references", line, seen)


def _prediction_records(source: Source, known: Mapping[str, int], of: str) -> Iterator[PredictionRecord]:
    if isinstance(source, (str, Path)):
        yield from read_predictions(source, known, of)
        return
    seen: dict[str, int] = {}
    for line, row in enumerate(_rows(source), 1):
        prediction = parse_prediction(row, "predictions", line, seen)
        if prediction.id not in known:
            again = () if isinstance(source, Iterator) else _rows(source)
            raise unknown_id(prediction, (row.get("id") for row in again), known, "predictions", of)
        yield prediction


def _rows(source: Any) -> Iterator[Row]:
    """Records in memory as rows of a file."""
    if isinstance(source, Mapping):
        yield from ({"id": name, "keyphrases": phrases} for name, phrases in source.items())
        return
    for record in source:
        if isinstance(record, ReferenceRecord):
            names = ("id", "text", "keyphrases", "group", "counts")
            fields = {name: getattr(record, name) for name in names}
            yield {name: value for name, value in fields.items() if value is not None}
        elif isinstance(record, PredictionRecord):
            yield {"id": record.id, "keyphrases": record.keyphrases, "exhausted": record.exhausted}
        elif isinstance(record, dict):
            yield record
        else:
            raise InputError(f"a record is {type_name(record)}; expected an object with 'id' and 'keyphrases'")


def _watched(records: Iterator[Any], source: Source, progress: bool) -> Iterator[Any]:
    """With a bar on stderr for a file that takes longer than a second, if tqdm is installed."""
    if progress and isinstance(source, (str, Path)):
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            return iter(tqdm(records, desc=Path(source).name, unit=" records", delay=1, leave=False))
    return records


def _extend(known: list[int] | None, more: list[int] | None) -> list[int] | None:
    if known is None or more is None:
        return None
    known.extend(more)
    return known


def _chunks(records: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(islice(records, CHUNK)):
        yield chunk


def stack(parts: Sequence[Ragged]) -> Ragged:
    """The rows of several parts, one part after the other."""
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
    """The name of a source in an error message."""
    return str(source) if isinstance(source, (str, Path)) else otherwise


def fingerprint(source: object) -> dict[str, Any]:
    """Name, size and SHA-256 of a source file, so that a number can be traced to its bytes."""
    if not isinstance(source, (str, Path)):
        return {"file": None}
    path = check_input(source)
    return {"file": str(source), "bytes": path.stat().st_size, "sha256": file_digest(path)}
