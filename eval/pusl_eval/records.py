"""Reference and prediction files -> checked records, one at a time.

What is wrong with a line is an InputError that names file, line and id. An id is a string or an
integer (which is turned into a string). Fields that PUSL does not know are kept in `extra`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pusl_eval.columns import STANDARD, BadRecord, Columns, ItemFields, ItemFile, columns_of, missing_column
from pusl_eval.concepts import is_vocabulary, read_concepts
from pusl_eval.files import InputError, Row, kind_of, read_lines, read_rows, type_name

_ONLY_STRINGS = frozenset((str,))
_MISSING: Any = object()
_REFERENCE_FIELDS = frozenset(("id", "keyphrases", "text", "counts", "timestamp", "group"))
_PREDICTION_FIELDS = frozenset(("id", "keyphrases", "scores", "exhausted"))
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}


@dataclass(slots=True)
class ReferenceRecord:
    """One item with its observed keyphrases (a training example has the same form)."""

    id: str
    keyphrases: list[str]
    text: str | None = None
    counts: list[int] | None = None  # interactions per keyphrase
    timestamp: Any = None
    group: str | None = None
    extra: Row = field(default_factory=dict)
    line: int = 0


@dataclass(slots=True)
class PredictionRecord:
    """One item's keyphrases in the order in which they were generated."""

    id: str
    keyphrases: list[str]
    scores: list[float] | None = None
    exhausted: bool = False  # the model had fewer than k to give
    extra: Row = field(default_factory=dict)
    line: int = 0


def read_references(path: str | Path, columns: Columns | None = None) -> Iterator[ReferenceRecord]:
    """Streams the checked references of a JSONL, Parquet, CSV or TSV file.

    `columns` names columns that have other names; an `ItemFile` brings its own.
    """
    seen: dict[str, int] = {}
    for line, row in _item_rows(path, columns or columns_of(path)):
        yield parse_reference(row, path, line, seen)


def _item_rows(path: str | Path, columns: Columns) -> Iterator[tuple[int, Row]]:
    """Rows with the standard names, whatever the file calls its columns."""
    if columns == STANDARD:
        yield from read_rows(path)
        return
    kind = kind_of(path)
    fields = ItemFields(columns, table=kind != "jsonl", split_lists=kind in ("csv", "tsv"))
    used = {columns.id_column, columns.keyphrases_column, columns.counts_column, *fields.text_fields}
    for line, row in read_rows(path, raw=True, dialect=columns.dialect):
        found: Row = {name: value for name, value in row.items() if name not in used and value is not None}
        try:
            found["id"] = fields.identifier(row)
            found["keyphrases"], counts = fields.labels(row)
            if any(name in row for name in fields.text_fields):
                found["text"] = fields.text(row)
        except BadRecord as error:
            raise fields.refuse(error, row, path, line, found.get("id")) from None
        more = {
            "counts": counts,
            "group": row.get(columns.group_column),
            "timestamp": row.get(columns.timestamp_column),
        }
        found.update((name, value) for name, value in more.items() if value is not None)
        yield line, found


def read_predictions(path: str | Path, known: Container[str] | None = None, of: str = "") -> Iterator[PredictionRecord]:
    """Streams the checked predictions of a file; with `known`, an id outside it is an error.

    `of` names where the known ids come from, for the error message.
    """
    seen: dict[str, int] = {}
    for line, row in read_rows(path):
        prediction = parse_prediction(row, path, line, seen)
        if known is not None and prediction.id not in known:
            raise unknown_id(prediction, (row.get("id") for _, row in read_rows(path, ["id"])), known, path, of)
        yield prediction


def unknown_id(
    prediction: PredictionRecord, ids: Iterable[Any], known: Container[str], path: str | Path, of: str
) -> InputError:
    """The error for a prediction whose id no reference has. `ids` are those of the whole file, for the advice."""
    total = unknown = 0
    with contextlib.suppress(InputError):  # what is wrong with a later line is not the matter here
        for one in ids:
            total += 1
            unknown += str(one) not in known
    where = f" in {of}" if of else ""
    said = f"{path}:{prediction.line}: id {prediction.id!r} has no reference{where}"
    if unknown == 1 < total or not unknown:  # or the records could be read only once
        return InputError(f"{said}; remove the line")
    share = f"{unknown:,} of {total:,} ids {'is' if unknown == 1 else 'are'} not there"
    if 2 * unknown > total:
        return InputError(f"{said}; {share}. Are these predictions for another file?")
    return InputError(f"{said}; {share}. Remove their lines")


def read_label_file(path: str | Path) -> Iterator[str]:
    """Streams the phrases of a universe or label-space file, blanks left out.

    A file of another ending than .jsonl, .parquet, .csv or .tsv holds one phrase per line; the others
    hold rows with a `keyphrases` list (an example file will do) or one `keyphrase` each. Of a SKOS or
    Annif vocabulary (`pusl_eval.concepts`) the preferred labels are taken.
    """
    if is_vocabulary(path):
        yield from (concept.label for concept in read_concepts(path))
        return
    try:
        kind_of(path)
    except InputError:
        yield from (text for _, text in read_lines(path) if text.strip())
        return
    for line, row in read_rows(path, ("keyphrase", "keyphrases")):
        phrases = row["keyphrases"] if "keyphrases" in row else [row.get("keyphrase")]
        if type(phrases) is not list or not _ONLY_STRINGS.issuperset(map(type, phrases)):
            expected = "'keyphrases' (a list of strings) or 'keyphrase' (a string)"
            raise InputError(f"{path}:{line}: expected {expected}, found: {', '.join(row) or 'nothing'}")
        yield from (phrase for phrase in phrases if phrase.strip())


def parse_reference(row: Row, path: str | Path, line: int, seen: dict[str, int] | None = None) -> ReferenceRecord:
    """One row -> a ReferenceRecord. `seen` (id -> line) finds repeated ids."""
    flags = isinstance(path, ItemFile)  # named on a command line, where flags say which column is which
    name = _id_of(row, path, line, seen, ". Name it with --id-column" if flags else "")
    phrases = _phrases_of(row, path, line, name, ". Name it with --keyphrases-column" if flags else "")
    counts, text, group = row.get("counts"), row.get("text"), row.get("group")
    if counts is not None:
        _check_numbers(counts, "counts", len(phrases), path, line, name)
    if text is not None and type(text) is not str:
        raise InputError(f"{path}:{line}: id {name!r}: 'text' is {type_name(text)}; expected a string")
    if group is not None and type(group) is not str:
        if type(group) is not int:
            raise InputError(f"{path}:{line}: id {name!r}: 'group' is {type_name(group)}; expected a string")
        group = str(group)
    extra = {key: value for key, value in row.items() if key not in _REFERENCE_FIELDS}
    return ReferenceRecord(name, phrases, text, counts, row.get("timestamp"), group or None, extra, line)


def parse_prediction(row: Row, path: str | Path, line: int, seen: dict[str, int] | None = None) -> PredictionRecord:
    """One row -> a PredictionRecord. `seen` (id -> line) finds repeated ids."""
    name = _id_of(row, path, line, seen, ". In predictions this field must have this name")
    phrases = _phrases_of(row, path, line, name, ". In predictions this field must have this name")
    scores, exhausted = row.get("scores"), row.get("exhausted", False)
    if scores is not None:
        _check_numbers(scores, "scores", len(phrases), path, line, name)
    if type(exhausted) is not bool:
        flag = _FLAGS.get(exhausted.lower()) if type(exhausted) is str else None  # CSV has only strings
        if flag is None:
            raise InputError(f"{path}:{line}: id {name!r}: 'exhausted' is {exhausted!r}; expected true or false")
        exhausted = flag
    extra = {key: value for key, value in row.items() if key not in _PREDICTION_FIELDS}
    return PredictionRecord(name, phrases, scores, exhausted, extra, line)


def _id_of(row: Row, path: str | Path, line: int, seen: dict[str, int] | None, fix: str) -> str:
    name = row.get("id", _MISSING)
    if type(name) is int:
        name = str(name)
    if type(name) is not str:
        if name is _MISSING:
            if isinstance(path, ItemFile) and kind_of(path) != "jsonl":
                raise missing_column(path, "id", list(row), "--id-column")
            raise InputError(f"{path}:{line}: no field 'id' (found: {', '.join(row) or 'nothing'}){fix}")
        raise InputError(f"{path}:{line}: 'id' is {type_name(name)}; expected a string or an integer")
    if not name:
        raise InputError(f"{path}:{line}: 'id' is empty")
    if seen is not None:
        first = seen.setdefault(name, line)
        if first != line:
            raise InputError(f"{path}:{line}: id {name!r} is already in line {first}; ids must be unique")
    return name


def _phrases_of(row: Row, path: str | Path, line: int, name: str, fix: str) -> list[str]:
    phrases: list[str] = row.get("keyphrases", _MISSING)
    if type(phrases) is list and _ONLY_STRINGS.issuperset(map(type, phrases)):
        return phrases
    where = f"{path}:{line}: id {name!r}:"
    if phrases is _MISSING:
        raise InputError(f"{where} no field 'keyphrases' (found: {', '.join(row)}){fix}")
    if type(phrases) is not list:
        hint = "; write [] for none" if phrases is None else ""
        raise InputError(f"{where} 'keyphrases' is {type_name(phrases)}; expected a list of strings{hint}")
    position, found = next((i, phrase) for i, phrase in enumerate(phrases, 1) if type(phrase) is not str)
    shown = f" ({found})" if isinstance(found, (int, float)) else ""
    raise InputError(f"{where} keyphrase {position} is {type_name(found)}{shown}; expected a string")


def _check_numbers(values: Any, field: str, expected: int, path: str | Path, line: int, name: str) -> None:
    where = f"{path}:{line}: id {name!r}:"
    if type(values) is not list:
        raise InputError(f"{where} '{field}' is {type_name(values)}; expected a list of numbers")
    if len(values) != expected:
        raise InputError(f"{where} {len(values)} {field} for {expected} keyphrases; expected as many")
    whole = field == "counts"
    for value in values:
        if type(value) is not int and (whole or type(value) is not float or not math.isfinite(value)):
            kind = "an integer" if whole else "a finite number"
            raise InputError(f"{where} '{field}' holds {value!r}; expected {kind}")
        if whole and value < 0:
            raise InputError(f"{where} '{field}' holds {value}; expected 0 or more")
