"""A path -> rows with line numbers, and rows -> a file that is never half-written.

One reader and one writer for every table the project touches: JSONL, JSONL.gz, Parquet, CSV and
TSV, chosen by the file's ending. Reading is streamed; writing goes to a file beside the target that
is renamed at the end. Whatever is wrong with a user's file becomes an `InputError` that names the
file, the line and the fix.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

Row = dict[str, Any]
LIST_SEPARATOR = "|"  # inside CSV cells that hold lists; a JSON array in the cell works too
LIST_FIELDS = ("keyphrases", "counts", "scores", "complete")
LONGEST_NAME = 255  # bytes, on every common file system


class InputError(ValueError):
    """The user's input or flags are wrong: one or two lines, exit code 2."""


def kind_of(path: str | Path) -> str:
    """`jsonl`, `parquet`, `csv` or `tsv`, by the ending (a trailing .gz is looked through).

    >>> kind_of("train.jsonl.gz"), kind_of("items.tsv")
    ('jsonl', 'tsv')
    """
    name = Path(path).name.lower().removesuffix(".gz")
    for ending, kind in (
        (".jsonl", "jsonl"),
        (".json", "jsonl"),
        (".ndjson", "jsonl"),
        (".csv", "csv"),
        (".tsv", "tsv"),
    ):
        if name.endswith(ending):
            return kind
    if Path(path).name.lower().endswith(".parquet"):
        return "parquet"
    raise InputError(f"{path}: unknown file ending; expected .jsonl, .jsonl.gz, .parquet, .csv or .tsv")


def check_input(path: str | Path) -> Path:
    """The path if it is a readable file, else an InputError that says what it is instead."""
    path = Path(path)
    if os.path.isdir(path):  # os.path, because Path's own tests raise on a name that is too long
        raise InputError(f"{path}: is a directory; expected a file")
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: no permission to read it")
    return path


def check_output(path: str | Path, force: bool = False) -> Path:
    """The path if it may be written, else an InputError; its folder is made if need be."""
    path = Path(path)
    if os.path.isdir(path):
        raise InputError(f"{path}: is a directory; expected a file name to write")
    if os.path.exists(path):
        if not os.path.isfile(path):
            raise InputError(f"{path}: is not a regular file; expected a file name to write")
        if not force:
            raise InputError(f"{path}: exists already; pass --force to overwrite it")
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise InputError(f"{path.name[:40]}...: the file name is too long")
    make_folder(path.parent)
    return path


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it unless they stand; an InputError if nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (NotADirectoryError, FileExistsError):
        raise InputError(f"{folder}: is a file; expected a folder") from None
    except PermissionError:
        raise InputError(f"{folder}: no permission to make this folder") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder}: no permission to write here")


@contextlib.contextmanager
def reading(path: str | Path) -> Iterator[io.BufferedIOBase]:
    """Opens bytes for reading, gunzipped if the content is gzip; damage becomes an InputError."""
    path = check_input(path)
    try:
        with open(path, "rb") as raw:
            if raw.peek(2)[:2] == b"\x1f\x8b":  # peek, because a pipe cannot go back
                with gzip.open(raw, "rb") as unzipped:
                    yield unzipped
            else:
                yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: the gzip data is damaged or cut short ({error}); make the file again") from None
    except PermissionError:
        raise InputError(f"{path}: no permission to read it") from None


def read_rows(path: str | Path, columns: Sequence[str] | None = None, raw: bool = False) -> Iterator[tuple[int, Row]]:
    """Streams (line number, row) from a file of any supported kind. Line numbers start at 1.

    In CSV and TSV the header is line 1, and a row's number is that of its last physical line; list
    fields hold a JSON array or values separated by `|`. `columns` limits what Parquet loads. `raw`
    leaves CSV cells as text and Parquet nulls in place, for callers that know their own columns.
    """
    kind = kind_of(check_input(path))
    if kind == "parquet":
        yield from _parquet_rows(Path(path), columns, raw)
    elif kind == "jsonl":
        yield from _jsonl_rows(Path(path))
    else:
        yield from _csv_rows(Path(path), "\t" if kind == "tsv" else ",", raw)


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Streams (line number, text) from a UTF-8 file: BOM dropped, CRLF accepted, gzip seen through."""
    with reading(path) as stream:
        for number, line in enumerate(stream, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}:{number}: not valid UTF-8 ({error.reason}); re-encode it as UTF-8") from None
            yield number, text.rstrip("\r\n")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_parse = json.JSONDecoder(parse_constant=_no_constant).decode  # made once: json.loads would make one per line


def parse_json_row(line: str, path: str | Path, number: int) -> Row:
    """One JSONL line -> a dict, or an InputError that names file, line and column."""
    try:
        row = _parse(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}:{number}: not a JSON object ({error})") from None
    if "\\ud" in line or "\\uD" in line:
        try:  # half of a surrogate pair parses, but no file can be written with it
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InputError(f"{path}:{number}: holds half of a surrogate pair (\\ud8..-\\udf..)") from None
    if not isinstance(row, dict):
        raise InputError(f"{path}:{number}: expected a JSON object, found {type_name(row)}")
    return row


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Row]]:
    for number, line in read_lines(path):
        if line.strip():
            yield number, parse_json_row(line, path, number)


def _csv_rows(path: Path, delimiter: str, raw: bool) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(1 << 30)
    lines = (text + "\n" for _, text in read_lines(path))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            return
        if len(set(header)) != len(header):
            raise InputError(f"{path}:1: two columns have the same name ({', '.join(header)})")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise InputError(f"{path}:{reader.line_num}: {len(cells)} cells, but the header has {len(header)}")
            row: Row = dict(zip(header, cells, strict=True))
            for field in LIST_FIELDS:
                if field in row and not raw:
                    row[field] = _list_cell(row[field], field, path, reader.line_num)
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: not valid {path.suffix.lstrip('.').upper()} ({error})") from None


def _list_cell(cell: str, field: str, path: Path, number: int) -> list[Any]:
    cell = cell.strip()
    if cell.startswith("["):
        try:
            value = _parse(cell)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: column '{field}' is not a JSON array ({error})") from None
        return list(value)
    parts = [part.strip() for part in cell.split(LIST_SEPARATOR)] if cell else []
    if field in ("counts", "scores"):
        try:
            return [int(part) if field == "counts" else float(part) for part in parts]
        except ValueError:
            raise InputError(f"{path}:{number}: column '{field}' holds a value that is no number: {cell!r}") from None
    return parts


def _parquet_rows(path: Path, columns: Sequence[str] | None, raw: bool) -> Iterator[tuple[int, Row]]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow; pip install pyarrow") from None
    try:
        with parquet.ParquetFile(path) as file:
            names = [name for name in columns if name in file.schema_arrow.names] if columns else None
            number = 0
            for batch in file.iter_batches(batch_size=4096, columns=names):
                for row in batch.to_pylist():
                    number += 1
                    kept = (key for key, value in row.items() if raw or value is not None or key in LIST_FIELDS)
                    yield number, {key: row[key] for key in kept}
    except (pyarrow.ArrowInvalid, pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from None


@contextlib.contextmanager
def open_atomic(path: str | Path, force: bool = False, mode: str = "w") -> Iterator[Any]:
    """Opens a file beside `path` for writing and renames it at the end; on any error nothing is left.

    A `.gz` ending compresses (without a time stamp: the same content gives the same bytes).
    """
    compress = str(path).endswith(".gz")
    path = Path(os.path.realpath(check_output(path, force)))  # a link stays a link
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:80]}.", suffix=".tmp")
    try:
        os.fchmod(handle, 0o666 & ~_umask())
        with contextlib.ExitStack() as stack:
            stream: Any = stack.enter_context(os.fdopen(handle, "wb"))
            if compress:
                stream = stack.enter_context(gzip.GzipFile(filename="", fileobj=stream, mode="wb", mtime=0))
            if "b" not in mode:
                stream = stack.enter_context(io.TextIOWrapper(stream, encoding="utf-8", newline="\n"))
            yield stream
        with open(name, "rb") as written:  # closed above, so that the end of a gzip file is in it too
            os.fsync(written.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def to_json(row: object) -> str:
    """One line of JSON as every file of the project has it (UTF-8, no NaN)."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False)


def write_rows(path: str | Path, rows: Iterable[Mapping[str, Any]], force: bool = False) -> int:
    """Streams rows to a JSONL, Parquet, CSV or TSV file, atomically; returns how many were written."""
    kind = kind_of(path)
    if kind == "parquet":
        return _write_parquet(path, rows, force)
    with open_atomic(path, force) as stream:
        if kind == "jsonl":
            return _write_jsonl(stream, rows)
        return _write_csv(stream, rows, "\t" if kind == "tsv" else ",")


def write_json(path: str | Path, value: object, force: bool = False) -> None:
    """One indented JSON document, atomically."""
    with open_atomic(path, force) as stream:
        json.dump(value, stream, ensure_ascii=False, allow_nan=False, indent=2)
        stream.write("\n")


def _write_jsonl(stream: TextIO, rows: Iterable[Mapping[str, Any]]) -> int:
    count = 0
    for row in rows:
        stream.write(to_json(row) + "\n")
        count += 1
    return count


def _write_csv(stream: TextIO, rows: Iterable[Mapping[str, Any]], delimiter: str) -> int:
    writer: Any = None
    count = 0
    for row in rows:
        cells = {key: to_json(value) if isinstance(value, (list, dict)) else value for key, value in row.items()}
        if writer is None:
            writer = csv.DictWriter(stream, list(cells), delimiter=delimiter, lineterminator="\n", restval="")
            writer.writeheader()
        extra = [key for key in cells if key not in writer.fieldnames]
        if extra:
            raise InputError(
                f"row {count + 1} has the field {extra[0]!r} that the first row lacks; write .jsonl or .parquet instead"
            )
        writer.writerow(cells)
        count += 1
    return count


def _write_parquet(path: str | Path, rows: Iterable[Mapping[str, Any]], force: bool) -> int:
    import pyarrow
    import pyarrow.parquet as parquet

    count, writer = 0, None
    chunk: list[Row] = []
    with open_atomic(path, force, "wb") as stream:

        def flush() -> None:
            nonlocal writer, count, chunk
            try:
                table = pyarrow.Table.from_pylist(chunk, schema=writer.schema if writer else None)
            except pyarrow.ArrowException as error:
                raise InputError(f"rows {count + 1}-{count + len(chunk)} do not fit one table: {error}") from None
            if writer is None:
                writer = parquet.ParquetWriter(stream, table.schema)
            writer.write_table(table)
            count, chunk = count + len(chunk), []

        for row in rows:
            chunk.append(dict(row))
            if len(chunk) == 20_000:
                flush()
        if chunk or writer is None:
            flush()
        assert writer is not None
        writer.close()
    return count


def type_name(value: object) -> str:
    """A JSON value's type as a user knows it: `a string`, `null`, ..."""
    names = {str: "a string", bool: "true/false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
