"""A file of any supported kind -> Example records, validated one by one, and back.

Reading is streamed: a file of ten million lines costs one record plus eight bytes per id. Whatever
is wrong with a line becomes an InputError that names file, line, id and fix.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pusl_eval.columns import STANDARD, BadRecord, Columns, ItemFields, ItemFile
from pusl_eval.files import InputError, Row, kind_of, read_rows, type_name, write_rows
from pusl_eval.files.storage import size_of

__all__ = [
    "STANDARD", "Columns", "Example", "SeenIds", "examples_of", "read_examples", "render_text", "write_examples",
]  # fmt: skip
FIELDS = ("id", "text", "keyphrases", "counts", "timestamp", "group")
DUPLICATES = "; `pusl data convert --duplicates merge` unites such rows, `--duplicates first` keeps the first"


@dataclass(slots=True)
class Example:
    """One item of a catalog: its text and the keyphrases that were observed for it.

    >>> Example("a1", "Zeto X2 drone", ["drone", "zeto drone"], counts=[5, 1]).interactions
    6
    """

    id: str
    text: str
    keyphrases: list[str] = field(default_factory=list)
    counts: list[int] | None = None  # interactions per keyphrase, as long as keyphrases
    timestamp: str | int | float | None = None
    group: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # fields we do not know: kept, not dropped

    @property
    def interactions(self) -> int | None:
        """All interactions of the item, or None where the file has no counts."""
        return None if self.counts is None else sum(self.counts)

    def to_row(self) -> Row:
        """The record as a JSON object; optional fields only where they are set."""
        row: Row = {"id": self.id, "text": self.text, "keyphrases": self.keyphrases}
        for name in ("counts", "timestamp", "group"):
            value = getattr(self, name)
            if value is not None:
                row[name] = value
        row.update((name, value) for name, value in self.extra.items() if name not in row)
        return row


def read_examples(
    path: str | Path,
    template: str | None = None,
    columns: Columns | None = None,
    *,
    labeled: bool = True,
    unique_ids: bool = True,
    numbered: bool = False,
    fix: str = DUPLICATES,
) -> Iterator[Example]:
    """Streams the examples of a JSONL, JSONL.gz, Parquet, CSV or TSV file.

    `template` builds the text from columns ("{title}. {description}"); `columns` names columns that
    have other names. With `labeled=False` the keyphrases may be absent (a catalog to predict
    for); with `numbered=True` the line's number is the id. Blank keyphrases are dropped together with
    their counts. `fix` is added to the error message for a repeated id.
    """
    columns = path.columns if isinstance(path, ItemFile) else columns or STANDARD
    if template is not None:
        columns = replace(columns, text_template=template)
    size_of(path)  # a folder or a missing file is named before its ending
    kind = kind_of(path)
    fields = ItemFields(columns, table=kind != "jsonl", split_lists=kind in ("csv", "tsv"))
    rows = read_rows(path, raw=True, dialect=columns.dialect)
    seen, count = SeenIds(), 0
    for example in examples_of(rows, path, fields, labeled=labeled, numbered=numbered):
        count += 1
        if unique_ids and not numbered and seen.add(example.id):
            _refuse_duplicates(path, columns, seen.suspects(), fix)
        yield example
    if unique_ids and not numbered and seen.finish():
        _refuse_duplicates(path, columns, seen.suspects(), fix)
    if not count:
        raise InputError(f"{path}: is empty; expected at least one item")


def examples_of(
    rows: Iterable[tuple[int, Row]],
    path: str | Path,
    fields: ItemFields,
    *,
    labeled: bool = True,
    numbered: bool = False,
) -> Iterator[Example]:
    """Checked examples from (line number, row) pairs."""
    columns = fields.columns
    used = {
        columns.id_column, columns.text_column, columns.keyphrases_column, columns.counts_column,
        columns.timestamp_column, columns.group_column, *FIELDS,
    }  # fmt: skip
    for number, row in rows:
        item = None
        try:
            item = str(number) if numbered else fields.identifier(row)
            text = fields.text(row)
            phrases, counts = fields.labels(row, labeled)
            time, group = row.get(columns.timestamp_column), row.get(columns.group_column)
            if group is not None and not isinstance(group, str):
                if not isinstance(group, (int, float, bool)):
                    raise BadRecord(f"'group' must be text, found {type_name(group)}")
                group = str(group)
        except BadRecord as error:
            raise fields.refuse(error, row, path, number, None if numbered else item) from None
        extra = {name: _plain(value) for name, value in row.items() if name not in used}
        yield Example(item, text, phrases, counts, _plain(time) if time != "" else None, group or None, extra)


def render_text(row: Row, fields: ItemFields, path: str | Path, number: int) -> str:
    """The text of one row, or an InputError that names it.

    >>> fields = ItemFields(Columns(text_template="{title}. {body}"), table=False)
    >>> render_text({"title": "Zeto X2", "body": None}, fields, "items.jsonl", 1)
    'Zeto X2.'
    """
    try:
        return fields.text(row)
    except BadRecord as error:
        raise fields.refuse(error, row, path, number) from None


def write_examples(path: str | Path, examples: Iterable[Example], force: bool = False) -> int:
    """Streams examples to a file whose kind its ending tells, atomically; returns how many."""
    return write_rows(path, (example.to_row() for example in examples), force)


class SeenIds:
    """A set of ids that only ever says "maybe seen before", in eight bytes per id.

    Hashes gather in a small exact set; full sets become sorted arrays that are merged with their
    equals, so that adding stays cheap and a repeat is noticed at the latest `block` ids later.
    """

    def __init__(self, block: int = 65_536) -> None:
        self.block = block
        self._fresh: set[int] = set()
        self._runs: list[np.ndarray] = []
        self._suspects: set[int] = set()

    def add(self, item: str) -> bool:
        """True if this id, or one of the last `block` before it, may have occurred before."""
        code = hash(item)
        if code in self._fresh:
            self._suspects.add(code)
        self._fresh.add(code)
        if len(self._fresh) >= self.block:
            self.finish()
        return bool(self._suspects)

    def finish(self) -> bool:
        """Compares the newest ids with all older ones; True if some id may be there twice."""
        run = np.sort(np.fromiter(self._fresh, np.int64, len(self._fresh)))
        self._fresh = set()
        for older in self._runs:
            if len(older) and len(run):
                at = np.minimum(np.searchsorted(older, run), len(older) - 1)
                self._suspects.update(run[older[at] == run].tolist())
        while self._runs and len(self._runs[-1]) <= len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs.append(run)
        return bool(self._suspects)

    def suspects(self) -> set[int]:
        """Hashes that occurred twice since the last call."""
        found, self._suspects = self._suspects, set()
        return found


def _refuse_duplicates(path: str | Path, columns: Columns, suspects: set[int], fix: str) -> None:
    """Reads the file again up to the first real repeat; returns if only the hashes were equal."""
    first: dict[str, int] = {}
    column = columns.id_column
    for number, row in read_rows(path, [column], raw=True, dialect=columns.dialect):
        item = str(row.get(column))
        if hash(item) in suspects:
            if item in first:
                raise InputError(f"{path}:{number}: id {item!r} occurs twice (first in line {first[item]}){fix}")
            first[item] = number


def _plain(value: Any) -> Any:
    """A value that JSON can hold: Parquet brings dates, decimals, bytes and NaN."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)
