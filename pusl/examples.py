"""A file of any supported kind -> Example records, validated one by one, and back.

Reading is streamed: a file of ten million lines costs one record plus eight bytes per id. Whatever
is wrong with a line becomes an InputError that names file, line, id and fix.
"""

from __future__ import annotations

import datetime
import json
import math
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pusl.config import option
from pusl_eval.files import InputError, Row, check_input, kind_of, read_rows, type_name, write_rows

MAX_KEYPHRASE_CHARS = 10_000  # a "keyphrase" longer than this is a parsing accident, not a label
MAX_COUNT = 2**53  # counts are added up in float64 and int64 arrays
FIELDS = ("id", "text", "keyphrases", "counts", "timestamp", "group")


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


@dataclass(frozen=True)
class Columns:
    """Which column of a user's table holds what."""

    id_column: str = option("id", "column that holds the item's id")
    text_column: str = option("text", "column that holds the item's text")
    text_template: str | None = option(
        None, 'build the text from columns instead, e.g. --text-template "{title}. {description}"'
    )
    keyphrases_column: str = option("keyphrases", "column that holds the list of keyphrases")
    counts_column: str = option("counts", "column that holds the interactions per keyphrase, if there is one")
    timestamp_column: str = option("timestamp", "column that holds the item's time, if there is one")
    group_column: str = option("group", "column that holds the item's group, if there is one")
    separator: str | None = option(
        None, "separator of the values in a list column of text (default: a JSON array or '|' in CSV and TSV)"
    )


STANDARD = Columns()


def read_examples(
    path: str | Path,
    template: str | None = None,
    columns: Columns | None = None,
    *,
    labeled: bool = True,
    unique_ids: bool = True,
    numbered: bool = False,
) -> Iterator[Example]:
    """Streams the examples of a JSONL, JSONL.gz, Parquet, CSV or TSV file.

    `template` builds the text from columns ("{title}. {description}"); `columns` names columns that
    are called otherwise. With `labeled=False` the keyphrases may be absent (a catalog to predict
    for); with `numbered=True` the line's number is the id. Blank keyphrases are dropped together with
    their counts.
    """
    columns = columns or STANDARD
    if template is not None:
        columns = replace(columns, text_template=template)
    kind = kind_of(check_input(path))
    split_lists = kind in ("csv", "tsv") or columns.separator is not None
    rows = read_rows(path, raw=True)
    seen, count = SeenIds(), 0
    for example in examples_of(
        rows, path, columns, table=kind != "jsonl", split_lists=split_lists, labeled=labeled, numbered=numbered
    ):
        count += 1
        if unique_ids and not numbered and seen.add(example.id):
            _refuse_duplicates(path, columns.id_column, seen.suspects())
        yield example
    if unique_ids and not numbered and seen.finish():
        _refuse_duplicates(path, columns.id_column, seen.suspects())
    if not count:
        raise InputError(f"{path}: is empty; expected at least one item")


def examples_of(
    rows: Iterable[tuple[int, Row]],
    path: str | Path,
    columns: Columns,
    *,
    table: bool,
    split_lists: bool = False,
    labeled: bool = True,
    numbered: bool = False,
) -> Iterator[Example]:
    """Checked examples from (line number, row) pairs; `table` says that all rows have the same columns."""
    render = _text_renderer(columns.text_template, columns.text_column)
    split_lists = split_lists or columns.separator is not None
    used = {
        columns.id_column, columns.text_column, columns.keyphrases_column, columns.counts_column,
        columns.timestamp_column, columns.group_column, *FIELDS,
    }  # fmt: skip
    for number, row in rows:
        where = _Place(path, number, table)
        item = str(number) if numbered else where.identifier(row, columns.id_column)
        text = render(row, where)
        phrases, counts = where.labels(row, columns, split_lists, labeled)
        time, group = row.get(columns.timestamp_column), row.get(columns.group_column)
        if group is not None and not isinstance(group, str):
            group = str(group) if isinstance(group, (int, float, bool)) else where.fail("group", "text", group)
        extra = {name: _plain(value) for name, value in row.items() if name not in used}
        yield Example(item, text, phrases, counts, _plain(time) if time != "" else None, group or None, extra)


def known_keyphrases(row: Row, columns: Columns, line: int, *, table: bool) -> list[str]:
    """The keyphrases that an item has already; none where the column is absent or empty.

    >>> known_keyphrases({"id": "a", "keyphrases": '["red shoe", "boot"]'}, STANDARD, 1, table=True)
    ['red shoe', 'boot']
    """
    if row.get(columns.keyphrases_column) is None:
        return []
    if table and row[columns.keyphrases_column] == "":
        return []
    split = table or columns.separator is not None
    phrases = _Place("", line, table).phrases(row, columns, split)
    return [phrase for phrase in phrases if phrase.strip()]


def render_text(row: Row, template: str, path: str | Path, number: int) -> str:
    """The text a template gives for one row.

    >>> render_text({"title": "Zeto X2", "body": None}, "{title}. {body}", "items.jsonl", 1)
    'Zeto X2.'
    """
    return _text_renderer(template, "")(row, _Place(path, number, table=False))


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


def _refuse_duplicates(path: str | Path, column: str, suspects: set[int]) -> None:
    """Reads the file again up to the first real repeat; returns if only the hashes were equal."""
    first: dict[str, int] = {}
    for number, row in read_rows(path, [column], raw=True):
        item = str(row.get(column))
        if hash(item) in suspects:
            if item in first:
                raise InputError(f"{path}:{number}: id {item!r} occurs twice (first in line {first[item]})")
            first[item] = number


class _Place:
    """A line of the user's file, for checks whose errors name it."""

    __slots__ = ("at", "number", "path", "table")

    def __init__(self, path: str | Path, number: int, table: bool) -> None:
        self.path, self.number, self.table = path, number, table
        self.at = f"{path}:{number}:"  # how errors begin; the id is added once it is known

    def identifier(self, row: Row, column: str) -> str:
        value = self.need(row, column, "--id-column")
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            self.fail(column, "a string or a whole number", value)
        if not value:
            raise InputError(f"{self.at} '{column}' is blank; every item needs an id")
        self.at = f"{self.at} id {value!r}:"
        return str(value)

    def need(self, row: Row, column: str, flag: str) -> Any:
        if column not in row:
            found = ", ".join(row) or "none"
            if self.table:
                raise InputError(f"{self.path} has no column '{column}' (found: {found}). Name it with {flag}")
            raise InputError(f"{self.at} no field '{column}' (found: {found}). Name it with {flag}")
        return row[column]

    def fail(self, column: str, expected: str, value: object) -> Any:
        raise InputError(f"{self.at} '{column}' must be {expected}, found {type_name(value)}")

    def labels(
        self, row: Row, columns: Columns, split_lists: bool, labeled: bool
    ) -> tuple[list[str], list[int] | None]:
        """Keyphrases and counts of a row, blanks dropped."""
        column = columns.keyphrases_column
        if not labeled and (column not in row or (self.table and row[column] in (None, ""))):
            return [], None
        phrases = self.phrases(row, columns, split_lists)
        counts = row.get(columns.counts_column)
        if split_lists and isinstance(counts, str):
            counts = self.split(counts, columns.counts_column, columns.separator) if counts.strip() else None
        if counts is not None:
            counts = self.whole_numbers(counts, columns.counts_column, len(phrases))
        if not all(map(str.strip, phrases)):
            kept = [index for index, phrase in enumerate(phrases) if phrase.strip()]
            phrases = [phrases[index] for index in kept]
            counts = None if counts is None else [counts[index] for index in kept]
        return phrases, counts

    def phrases(self, row: Row, columns: Columns, split_lists: bool) -> list[str]:
        """Keyphrases of a row, blanks included."""
        column = columns.keyphrases_column
        phrases = self.need(row, column, "--keyphrases-column")
        if split_lists and isinstance(phrases, str):
            phrases = self.split(phrases, column, columns.separator)
        if not isinstance(phrases, list):
            self.fail(column, "a list of strings", phrases)
        for phrase in phrases:
            if not isinstance(phrase, str):
                raise InputError(f"{self.at} '{column}' must be a list of strings, found {type_name(phrase)} in it")
            if len(phrase) > MAX_KEYPHRASE_CHARS:
                raise InputError(
                    f"{self.at} a keyphrase of {len(phrase):,} characters in '{column}' "
                    f"(at most {MAX_KEYPHRASE_CHARS:,}); it starts with {phrase[:40]!r}"
                )
        return list(phrases)

    def whole_numbers(self, values: object, column: str, length: int) -> list[int]:
        if not isinstance(values, list):
            self.fail(column, "a list of whole numbers", values)
            raise AssertionError
        if len(values) != length:
            raise InputError(f"{self.at} '{column}' has {len(values)} values, but there are {length} keyphrases")
        numbers = []
        for value in values:
            try:
                number = -1 if isinstance(value, bool) else int(value)
            except (ValueError, TypeError, OverflowError):
                number = -1
            if not 0 <= number <= MAX_COUNT or (isinstance(value, float) and value != number):
                raise InputError(f"{self.at} '{column}' must be whole numbers >= 0, found {value!r}")
            numbers.append(number)
        return numbers

    def split(self, cell: str, column: str, separator: str | None) -> list[Any]:
        """A cell of text -> its values: a JSON array, or parts between separators."""
        cell = cell.strip()
        if cell.startswith("[") and cell.endswith("]"):
            try:
                value = json.loads(cell)
            except (ValueError, RecursionError) as error:
                if separator is None:
                    raise InputError(f"{self.at} '{column}' is not a JSON array ({error})") from None
            else:
                return list(value)
        return [part.strip() for part in cell.split(separator or "|")] if cell else []


def _text_renderer(template: str | None, column: str) -> Callable[[Row, _Place], str]:
    """How a row becomes text: its text column, or a template over several columns."""
    if template is None:

        def plain(row: Row, where: _Place) -> str:
            text = where.need(row, column, "--text-column, or build it with --text-template")
            if not isinstance(text, str):
                where.fail(column, "a string", text)
            return str(text)

        return plain
    names = template_fields(template)

    def filled(row: Row, where: _Place) -> str:
        for name in names:
            # An absent value is a blank, but a table that has no such column at all is a typo.
            if name not in row and where.table:
                where.need(row, name, "--text-template")
        if not any(name in row for name in names):
            where.need(row, names[0], "--text-template")
        values = {name: "" if row.get(name) is None else str(row[name]).strip() for name in names}
        return template.format_map(values).strip()

    return filled


def template_fields(template: str) -> list[str]:
    """The columns a text template names.

    >>> template_fields("{title}. {description}")
    ['title', 'description']
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"--text-template {template!r}: {error}") from None
    names = [name for _, name, _, _ in parts if name is not None]
    if not names or any(not name or set(name) & set(".[") for name in names) or any(s or c for _, _, s, c in parts):
        raise InputError(f'--text-template {template!r}: expected column names in braces, as in "{{title}}. {{body}}"')
    return list(dict.fromkeys(names))


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
