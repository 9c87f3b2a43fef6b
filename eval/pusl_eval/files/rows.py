"""A path -> rows with line numbers, and rows -> a file: the file's ending chooses its kind.

`read_rows` and `write_rows` are for files that must be right: the first problem stops with an
InputError that names the file and the line. `open_reader` gives problems as values instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from pusl_eval.errors import InputError
from pusl_eval.files.atomic import open_atomic
from pusl_eval.files.jsonl import JsonLinesReader, write_json_lines
from pusl_eval.files.lines import PLAIN, Dialect
from pusl_eval.files.parquet import ParquetReader, write_parquet
from pusl_eval.files.reader import Reader, Row
from pusl_eval.files.storage import kind_of, size_of
from pusl_eval.files.tables import TableReader, split_list, write_table

LIST_FIELDS = ("keyphrases", "counts", "scores", "complete")
NUMBERS = {"counts": int, "scores": float}
# A predictions file, whatever its rows happen to have; see `write_parquet` for the types.
PREDICTION_FIELDS = {
    "id": "text", "keyphrases": "texts", "scores": "numbers", "exhausted": "flag", "truncated": "flag",
    "reason": "text", "probabilities": "numbers",
}  # fmt: skip


def open_reader(
    path: str | Path, dialect: Dialect = PLAIN, names: Sequence[str] | None = None, kind: str | None = None
) -> Reader:
    """The reader for a file's kind. `names` limits what Parquet loads."""
    size_of(path)  # a folder or a missing file is named before its ending
    kind = kind or kind_of(path)
    if kind == "parquet":
        return ParquetReader(path, names)
    return JsonLinesReader(path) if kind == "jsonl" else TableReader(path, dialect)


def read_rows(
    path: str | Path,
    columns: Sequence[str] | None = None,
    raw: bool = False,
    *,
    dialect: Dialect = PLAIN,
    kind: str | None = None,
) -> Iterator[tuple[int, Row]]:
    """Streams (line number, row) from a file of any supported kind. Line numbers start at 1.

    In CSV and TSV the header is line 1, and a row's number is that of its last physical line; list
    fields hold a JSON array or values separated by `|`. `columns` limits what Parquet loads. `raw`
    leaves CSV cells as text and Parquet nulls in place, for callers that know their own columns.
    """
    reader = open_reader(path, dialect, columns, kind)
    split = isinstance(reader, TableReader) and not raw
    lists: list[str] | None = None if split else []
    nulls = not isinstance(reader, ParquetReader) or raw
    for number, row in reader.rows():
        if isinstance(row, str):
            raise InputError(f"{path}:{number}: {row}{reader.fix(row)}")
        if lists is None:
            lists = [name for name in LIST_FIELDS if name in row]
        if lists:
            _split_lists(row, lists, path, number)
        yield number, row if nulls else {key: row[key] for key in row if row[key] is not None or key in LIST_FIELDS}


def _split_lists(row: Row, fields: Sequence[str], path: str | Path, number: int) -> None:
    """Turns the cells of list fields into lists, in place."""
    for field in fields:
        cell = row[field]
        try:
            values = split_list(cell)
        except ValueError as error:
            raise InputError(f"{path}:{number}: column '{field}' is {error}") from None
        if field in NUMBERS and not cell.lstrip().startswith("["):
            try:
                values = [NUMBERS[field](value) for value in values]
            except ValueError:
                raise InputError(
                    f"{path}:{number}: column '{field}' has a value that is not a number: {cell!r}"
                ) from None
        row[field] = values


def write_rows(
    path: str | Path, rows: Iterable[Mapping[str, Any]], force: bool = False, fields: Mapping[str, str] | None = None
) -> int:
    """Streams rows to a JSONL, Parquet, CSV or TSV file, atomically; returns how many were written.

    `fields` (name -> type, as PREDICTION_FIELDS) fixes the columns of a table; without it the first rows do.
    """
    kind = kind_of(path)
    with open_atomic(path, force, "wb") as stream:
        return write_stream(stream, rows, kind, fields)


def write_stream(
    stream: BinaryIO, rows: Iterable[Mapping[str, Any]], kind: str, fields: Mapping[str, str] | None = None
) -> int:
    """Rows -> the bytes of a file of this kind; returns how many."""
    if kind == "parquet":
        return write_parquet(stream, rows, fields)
    if kind == "jsonl":
        return write_json_lines(stream, rows)
    return write_table(stream, rows, kind, list(fields or ()))
