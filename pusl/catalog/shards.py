"""A catalog file -> chunks of records, each readable again on its own, and their items and rejects.

A chunk is a fixed number of consecutive records (lines, CSV records, Parquet rows). Where the next
one starts depends on the file and the chunk size only, never on who reads it, so one process, many
processes and a cluster see the same chunks. A record that cannot be used becomes a `Reject`; it
never stops the others.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import itertools
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, NamedTuple

from pusl.catalog import storage
from pusl.examples import Columns, known_keyphrases, template_fields
from pusl_eval.files import InputError, Row, kind_of, parse_json_row, type_name

MAX_LINE = 1 << 24  # a line of 16 MiB is a broken file, not an item
SHOWN_CHARS = 2_000  # of a rejected record, kept in the .rejects file


class Item(NamedTuple):
    """One usable record: its line in the input, its id, its text, the keyphrases it has already."""

    line: int
    id: str
    text: str
    known: tuple[str, ...] = ()


class Reject(NamedTuple):
    """One unusable record and why."""

    line: int
    reason: str
    record: str


@dataclass(frozen=True)
class Chunk:
    """Consecutive records of the input. Without its payload it is a note where to read them."""

    index: int
    line: int  # of the first record
    start: int  # byte where it starts, or row for Parquet
    records: int
    digest: str
    done: float = 0.0  # share of the file up to this chunk's end, for the progress bar
    payload: Sequence[Any] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"shard {self.index} ({self.records} records from line {self.line} on)"

    def note(self) -> Chunk:
        """The same chunk without the data."""
        return replace(self, payload=())


def open_source(path: str, columns: Columns, complete: bool = False) -> Source:
    """The reader for a catalog file's kind, its columns checked as far as a header tells.

    With `complete` the keyphrases that items have already are read too.
    """
    kind = kind_of(path)
    storage.size_of(path)
    if kind == "parquet":
        return ParquetSource(path, columns, complete)
    if kind == "jsonl":
        return LineSource(path, columns, complete)
    return CsvSource(path, columns, complete, "\t" if kind == "tsv" else ",")


class Source(ABC):
    """A catalog file, read chunk by chunk."""

    seekable = True
    table = True  # lists may be text, as in CSV

    def __init__(self, path: str, columns: Columns, complete: bool = False) -> None:
        self.path, self.columns, self.complete = path, columns, complete
        self.size = storage.size_of(path)
        self._template = columns.text_template
        self._fields = template_fields(self._template) if self._template else [columns.text_column]

    @abstractmethod
    def chunks(self, size: int) -> Iterator[Chunk]:
        """Every chunk of `size` records in order, with its data."""

    @abstractmethod
    def read(self, note: Chunk) -> Chunk:
        """A chunk's data again, from its note."""

    @abstractmethod
    def rows(self, chunk: Chunk) -> Iterator[tuple[int, Row | str, str]]:
        """(line, row or the reason why it is none, the record as text) for each record of a chunk."""

    def estimate(self, size: int) -> float:
        """About how many chunks there are, judged by the first."""
        first = next(self.chunks(size), None)
        return 1 / max(first.done, 1e-9) if first else 0

    def parse(self, chunk: Chunk) -> tuple[list[Item], list[Reject]]:
        """A chunk's usable items and its rejects, both in input order."""
        items: list[Item] = []
        rejects: list[Reject] = []
        for line, row, shown in self.rows(chunk):
            found = row if isinstance(row, str) else self._item(line, row)
            if isinstance(found, str):
                clean = shown[:SHOWN_CHARS].encode("utf-8", "backslashreplace").decode()
                rejects.append(Reject(line, found, clean))
            else:
                items.append(found)
        return items, rejects

    def _item(self, line: int, row: Row) -> Item | str:
        name = self.columns.id_column
        value = row.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if value is None and name not in row:
            return f"no field '{name}' (found: {', '.join(map(str, row)) or 'none'})"
        if not isinstance(value, str):
            return f"'{name}' must be a string, found {type_name(value)}"
        if not value:
            return f"'{name}' is blank"
        text = self._text(row)
        if text is None:
            return f"no field '{self._fields[0]}' (found: {', '.join(map(str, row)) or 'none'})"
        if not isinstance(text, str):
            return f"'{self.columns.text_column}' must be a string, found {type_name(text)}"
        for what, content in ((name, value), ("the text", text)):
            if not encodable(content):
                return f"{what} holds half of a surrogate pair, which is no character"
        if not self.complete:
            return Item(line, value, text)
        try:
            known = known_keyphrases(row, self.columns, line, table=self.table)
        except InputError as error:
            return str(error).removeprefix(f":{line}: ")
        if not all(map(encodable, known)):
            return f"'{self.columns.keyphrases_column}' holds half of a surrogate pair, which is no character"
        return Item(line, value, text, tuple(known))

    def _text(self, row: Row) -> Any:
        if self._template is None:
            column = self.columns.text_column
            if column not in row:
                return None
            return "" if row[column] is None else row[column]  # a table's null is an item without text
        if not any(name in row for name in self._fields):
            return None
        values = {name: "" if row.get(name) is None else str(row[name]).strip() for name in self._fields}
        return self._template.format_map(values).strip()

    def check_known(self) -> None:
        """Refuses a file in which no record has the column of keyphrases; one that has it ends the search."""
        column, names = self.columns.keyphrases_column, ""
        for chunk in self.chunks(1024):
            for _, row, _ in self.rows(chunk):
                if isinstance(row, dict):
                    if column in row:
                        return
                    names = names or ", ".join(map(str, row))
        raise InputError(
            f"{self.path}: no item has '{column}' (found: {names or 'none'}). Name it with --keyphrases-column"
        )

    def _check_header(self, names: Sequence[str]) -> None:
        flags = {self.columns.id_column: "--id-column"}
        flags.update({name: "--text-template" if self._template else "--text-column" for name in self._fields})
        if self.complete:
            flags[self.columns.keyphrases_column] = "--keyphrases-column"
        for name, flag in flags.items():
            if name not in names:
                more = "" if self._template or flag != "--text-column" else ", or build it with --text-template"
                found = ", ".join(names) or "none"
                raise InputError(f"{self.path} has no column '{name}' (found: {found}). Name it with {flag}{more}")


def encodable(text: str) -> bool:
    """False for text with lone surrogates, which no UTF-8 file can hold."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class LineSource(Source):
    """JSON lines, plain or gzipped: a record is a line."""

    table = False

    def __init__(self, path: str, columns: Columns, complete: bool = False) -> None:
        super().__init__(path, columns, complete)
        with storage.open_binary(path) as stream:
            self.seekable = stream.read(2) != b"\x1f\x8b"

    def chunks(self, size: int) -> Iterator[Chunk]:
        with storage.open_binary(self.path) as raw, self._unpacked(raw) as stream:
            start, line, done = self._preamble(stream)
            for index in itertools.count():
                try:
                    payload, records, length = self._take(stream, size, done)
                except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                    reason = f"the gzip data is damaged or cut short ({error}); make the file again"
                    raise InputError(f"{self.path}: {reason}") from None
                if not payload:
                    return
                share = min(1.0, raw.tell() / max(1, self.size)) if not self.seekable else (start + length) / self.size
                yield Chunk(index, line, start, records, _digest(payload), share, payload)
                start, line = start + length, line + len(payload)

    def read(self, note: Chunk) -> Chunk:
        if not self.seekable:
            raise InputError(f"{self.path}: gzip cannot be read from the middle")
        with storage.open_binary(self.path) as stream:
            stream.seek(note.start)
            payload, _, _ = self._take(stream, note.records, None)
        return replace(note, payload=payload, digest=_digest(payload))

    def rows(self, chunk: Chunk) -> Iterator[tuple[int, Row | str, str]]:
        for line, content in enumerate(chunk.payload, chunk.line):
            text, whole = _decode(content, line)
            if len(content) >= MAX_LINE:
                yield line, f"the line is longer than {MAX_LINE:,} bytes", text
            elif not whole:
                yield line, "not valid UTF-8", text
            elif text.strip():
                row: Row | str
                try:
                    row = parse_json_row(text, "", line)
                except InputError as error:
                    row = str(error).removeprefix(f":{line}: ")
                yield line, row, text.rstrip("\r\n")

    def _unpacked(self, raw: BinaryIO) -> BinaryIO:
        return raw if self.seekable else gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[return-value]

    def _preamble(self, stream: BinaryIO) -> tuple[int, int, Any]:
        """(byte, line) of the first record, and what `_take` needs to know."""
        return 0, 1, None

    def _take(self, stream: BinaryIO, size: int, state: Any) -> tuple[list[bytes], int, int]:
        """The lines of the next `size` records, how many records they are, and their bytes."""
        lines = []
        length = 0
        for line, count in itertools.islice(_lines(stream), size):
            lines.append(line)
            length += count
        return lines, len(lines), length


class CsvSource(LineSource):
    """CSV or TSV with a header: a record may go over several lines."""

    table = True

    def __init__(self, path: str, columns: Columns, complete: bool, delimiter: str) -> None:
        self.delimiter = delimiter
        super().__init__(path, columns, complete)
        with storage.open_binary(path) as raw, self._unpacked(raw) as stream:
            self._start, self._line, _ = self._preamble(stream)

    def _preamble(self, stream: BinaryIO) -> tuple[int, int, Any]:
        payload, _, length = self._take(stream, 1, None)
        if payload and not _decode(payload[0], 1)[1]:
            raise InputError(f"{self.path}:1: the header is not valid UTF-8; re-encode the file as UTF-8")
        header = next(self._records(payload, 1), None)
        if header is None:
            raise InputError(f"{self.path}: is empty; expected a header and at least one item")
        if isinstance(header[1], str):
            raise InputError(f"{self.path}:{header[0]}: {header[1]}")
        self.header = header[1]
        if len(set(self.header)) != len(self.header):
            raise InputError(f"{self.path}:1: two columns have the same name ({', '.join(self.header)})")
        self._check_header(self.header)
        return length, len(payload) + 1, None

    def rows(self, chunk: Chunk) -> Iterator[tuple[int, Row | str, str]]:
        for line, cells, shown in self._records(chunk.payload, chunk.line):
            if isinstance(cells, str):
                yield line, cells, shown
            elif not cells:
                continue
            elif not encodable(shown):
                yield line, "not valid UTF-8", shown
            elif len(cells) != len(self.header):
                yield line, f"{len(cells)} cells, but the header has {len(self.header)}", shown
            else:
                yield line, dict(zip(self.header, cells, strict=True)), shown

    def _records(self, lines: Sequence[bytes], first: int) -> Iterator[tuple[int, list[str] | str, str]]:
        """(last line, cells or what is wrong, the record as text); a broken record ends with its line."""
        csv.field_size_limit(MAX_LINE)
        texts = [_decode(content, number)[0] for number, content in enumerate(lines, first)]
        reader = csv.reader(texts, delimiter=self.delimiter, strict=True)
        while True:
            before = reader.line_num
            try:
                cells: list[str] | str = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                cells = f"not valid {'TSV' if self.delimiter != ',' else 'CSV'} ({error})"
            yield first + reader.line_num - 1, cells, "".join(texts[before : reader.line_num]).rstrip("\r\n")

    def _take(self, stream: BinaryIO, size: int, state: Any) -> tuple[list[bytes], int, int]:
        csv.field_size_limit(MAX_LINE)
        taken: list[bytes] = []
        length = records = 0

        def feed() -> Iterator[str]:
            nonlocal length
            for line, count in _lines(stream):
                taken.append(line)
                length += count
                yield line.decode("utf-8", "surrogateescape")

        reader = csv.reader(feed(), delimiter=self.delimiter, strict=True)
        while records < size:
            try:
                next(reader)
            except StopIteration:
                break
            except csv.Error:
                pass  # `_records` meets the same error and reports it
            records += 1
        return taken, records, length


class ParquetSource(Source):
    """Parquet: a record is a row; only the needed columns are read."""

    def __init__(self, path: str, columns: Columns, complete: bool = False) -> None:
        super().__init__(path, columns, complete)
        with self._open() as file:
            self._check_header(file.schema_arrow.names)
            self.total = file.metadata.num_rows
            groups = [file.metadata.row_group(index).num_rows for index in range(file.metadata.num_row_groups)]
        self._ends = list(itertools.accumulate(groups))
        self._cached: tuple[int, Any] = (-1, None)

    def chunks(self, size: int) -> Iterator[Chunk]:
        start = 0
        for index, rows in enumerate(_grouped(self._stream(), size)):
            end = start + len(rows)
            yield Chunk(index, start + 1, start, len(rows), _digest(rows), end / max(1, self.total), rows)
            start = end

    def read(self, note: Chunk) -> Chunk:
        rows: list[Row] = []
        begin = 0
        with self._open() as file:
            for group, end in enumerate(self._ends):
                low, high = max(note.start, begin), min(note.start + note.records, end)
                if low < high:
                    if self._cached[0] != group:  # neighbors share a row group; unpack it once
                        self._cached = (group, file.read_row_group(group, columns=self._names()))
                    rows += self._cached[1].slice(low - begin, high - low).to_pylist()
                begin = end
        return replace(note, payload=rows, digest=_digest(rows))

    def rows(self, chunk: Chunk) -> Iterator[tuple[int, Row | str, str]]:
        for line, row in enumerate(chunk.payload, chunk.line):
            yield line, row, json.dumps(row, ensure_ascii=False, default=str)

    def _names(self) -> list[str]:
        known = [self.columns.keyphrases_column] if self.complete else []
        return list(dict.fromkeys([self.columns.id_column, *self._fields, *known]))

    def _stream(self) -> Iterator[Row]:
        import pyarrow

        with self._open() as file:
            try:
                for batch in file.iter_batches(batch_size=2048, columns=self._names()):
                    yield from batch.to_pylist()
            except (pyarrow.ArrowException, OSError) as error:
                raise InputError(f"{self.path}: damaged Parquet data ({str(error).splitlines()[0]})") from None

    def _open(self) -> Any:
        return _parquet_file(self.path)


def _parquet_file(path: str) -> Any:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        # Buffering ahead would hold a whole row group's bytes; a catalog's can be gigabytes.
        source = storage.open_binary(path) if storage.is_url(path) else path
        return parquet.ParquetFile(source, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from None


def _grouped(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while group := list(itertools.islice(rows, size)):
        yield group


def _lines(stream: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """(line, its bytes in the file); a monster line is cut at MAX_LINE and the rest skipped."""
    while line := stream.readline(MAX_LINE):
        count = len(line)
        if count == MAX_LINE and not line.endswith(b"\n"):
            while rest := stream.readline(MAX_LINE):
                count += len(rest)
                if rest.endswith(b"\n"):
                    break
        yield line, count


def _decode(content: bytes, line: int) -> tuple[str, bool]:
    """A line as text, and whether all of it was UTF-8; a byte order mark is dropped."""
    if line == 1:
        content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        return content.decode("utf-8"), True
    except UnicodeDecodeError:
        return content.decode("utf-8", "surrogateescape"), False


def _digest(payload: Sequence[Any]) -> str:
    code = hashlib.blake2b(digest_size=16)
    for record in payload:
        code.update(record if isinstance(record, bytes) else repr(record).encode("utf-8", "surrogatepass"))
    return code.hexdigest()
