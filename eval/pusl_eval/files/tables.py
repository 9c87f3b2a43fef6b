"""CSV and TSV -> rows of text, and rows -> CSV and TSV."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from pusl_eval.errors import InputError
from pusl_eval.files.atomic import to_json
from pusl_eval.files.jsonl import decode_json
from pusl_eval.files.lines import (
    MAX_LINE,
    PLAIN,
    TOO_LONG,
    Dialect,
    is_gzip,
    raw_lines,
    reading,
    skip_line,
)
from pusl_eval.files.reader import NOT_UTF8, Batch, Reader, Record, Row
from pusl_eval.files.storage import kind_of, open_stored, size_of

LINE_COST = 64  # bytes of memory per line beside its content: a cell of many short lines counts too
SAMPLE = 4096  # bytes at the beginning of a file that show whether it is text
CONTROL = bytes({*range(1, 32)} - {*b"\t\n\v\f\r\x1b"})  # characters that text does not have
BARE_RETURN = "a carriage return without a line feed; save the file with line ends of Unix or Windows"
LIST_SEPARATOR = "|"  # inside a cell that holds a list; a JSON array works too


class _Feed:
    """Lines for csv.reader, which remembers the lines of the record that is being read."""

    def __init__(self, lines: Iterator[bytes], first: int, stream: BinaryIO | None = None) -> None:
        self.lines, self.line, self.stream = lines, first - 1, stream
        self.taken: list[bytes] = []  # since the last `drain`
        self.skipped = 0
        self.size = 0  # of this record
        self.problem: str | None = None  # of this record

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        content = next(self.lines)
        self.line += 1
        self.taken.append(content)
        self.size += len(content) + LINE_COST
        if self.size >= MAX_LINE:
            if self.stream is not None and len(content) >= MAX_LINE:
                self.skipped += skip_line(self.stream, content)
            raise csv.Error(TOO_LONG)  # the record ends here, even inside quotes
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text, self.problem = content.decode("utf-8", "surrogateescape"), NOT_UTF8
        if self.line == 1:
            text = text.removeprefix("\ufeff")
        return text[:-2] + "\n" if text.endswith("\r\n") else text

    def drain(self) -> tuple[list[bytes], int]:
        """The lines since the last call, and how many bytes of the file they are."""
        taken, length = self.taken, sum(map(len, self.taken)) + self.skipped
        self.taken, self.skipped = [], 0
        return taken, length


def looks_binary(start: bytes) -> bool:
    r"""Whether a file that starts like this is no text. UTF-16 is text, although it has many zeros.

    >>> looks_binary(b"PK\x03\x04\x14\x00\x06\x00\x08\x00\x00\x00"), looks_binary("id,größe\r\n".encode("utf-16"))
    (True, False)
    >>> looks_binary("id,текст\n1,привет\n".encode("utf-16-le"))
    False
    """
    zeros, control = start.count(0), len(start) - len(start.translate(None, CONTROL))
    return zeros > 0 and control > 0 and 50 * (zeros + control) > len(start) and not _is_wide(start)


def _is_wide(start: bytes) -> bool:
    """Whether this may be UTF-16: it says so, or many bytes are 0, all in every second place and beside letters."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    high, low = sorted((start[::2], start[1::2]), key=lambda half: -half.count(0))
    beside = bytes(letter for zero, letter in zip(high, low, strict=False) if not zero)
    return 20 * len(beside) > len(start) and not low.count(0) and len(beside.translate(None, CONTROL)) == len(beside)


class TableReader(Reader):
    """CSV or TSV with a header: a record may go over several lines."""

    def __init__(self, path: str | Path, dialect: Dialect = PLAIN) -> None:
        super().__init__(path)
        self.dialect = dialect
        self.kind = kind_of(path)
        self.delimiter = dialect.delimiter or ("\t" if self.kind == "tsv" else ",")
        self._names: list[str] | None = None
        self._packed: bool | None = None

    @property
    def seekable(self) -> bool:  # type: ignore[override]
        if self._packed is None:
            self._packed = is_gzip(self.path) or not self.dialect.is_utf8
        return not self._packed

    def header(self) -> list[str] | None:
        """The column names; None if the file is empty."""
        if self._names is None:
            with reading(self.path, self.dialect) as file:
                self._start(_Feed(raw_lines(file.content), 1), file.content)
        return self._names

    def rows(self) -> Iterator[tuple[int, Row | str]]:
        with reading(self.path, self.dialect) as file:
            feed = _Feed(raw_lines(file.content), 1, file.content)
            records = self._start(feed, file.content)
            names = self._names
            if names is None:
                return
            width = len(names)
            for cells in records:
                if type(cells) is list and len(cells) == width:
                    yield feed.line, dict(zip(names, cells, strict=False))
                elif cells:
                    yield feed.line, self._problem(cells)
                feed.taken.clear()

    def batches(self, size: int) -> Iterator[Batch]:
        total = size_of(self.path)
        with reading(self.path, self.dialect) as file:
            feed = _Feed(raw_lines(file.content), 1, file.content)
            records = self._start(feed, file.content)
            lines, start = feed.drain()
            line = len(lines) + 1
            while True:
                count = 0
                for _ in records:
                    count += 1
                    if count == size:
                        break
                payload, length = feed.drain()
                if not payload:
                    return
                yield Batch(line, start, count, payload, min(1.0, file.stored.tell() / max(1, total)))
                line, start = line + len(payload), start + length

    def read(self, start: int, records: int) -> list[bytes]:
        with open_stored(self.path) as stream:
            stream.seek(start)
            feed = _Feed(raw_lines(stream), 2, stream)
            for _, _ in zip(range(records), self._records(feed), strict=False):
                pass
            return feed.drain()[0]

    def parse(self, batch: Batch) -> Iterator[Record]:
        names = self.header() or []
        feed = _Feed(iter(batch.payload), batch.line)
        for cells in self._records(feed):
            if not cells:
                feed.drain()
                continue
            sound = isinstance(cells, list) and len(cells) == len(names)
            row = dict(zip(names, cells, strict=True)) if sound else self._problem(cells)
            text = b"".join(feed.drain()[0]).decode("utf-8", "surrogateescape")
            yield Record(feed.line, row, text.removeprefix("\ufeff").rstrip("\r\n"))

    def _records(self, feed: _Feed) -> Iterator[list[str] | str]:
        """The cells of each record, or what is wrong with it."""
        csv.field_size_limit(MAX_LINE)
        reader = csv.reader(feed, delimiter=self.delimiter, strict=True)
        while True:
            try:
                for cells in reader:
                    yield feed.problem or cells
                    feed.size, feed.problem = 0, None
                return
            except csv.Error as error:
                problem = TOO_LONG if str(error) == TOO_LONG else feed.problem or self._csv_problem(str(error))
            yield problem  # after an error csv.reader starts a new record
            feed.size, feed.problem = 0, None

    def _csv_problem(self, message: str) -> str:
        return f"not valid {self.kind.upper()} ({BARE_RETURN if 'new-line' in message else message})"

    def _start(self, feed: _Feed, content: Any) -> Iterator[list[str] | str]:
        """Reads the header; what follows it is left in the iterator."""
        if looks_binary(content.peek(SAMPLE)[:SAMPLE]):
            raise InputError(f"{self.path}: looks like a binary file, not {self.kind.upper()}; export it as text")
        records = self._records(feed)
        names = next(records, None)
        if isinstance(names, str):
            raise InputError(f"{self.path}:{feed.line}: {names}{self.fix(names)}")
        if names is not None and len(set(names)) != len(names):
            raise InputError(f"{self.path}:1: two columns have the same name ({', '.join(names)})")
        self._names = names
        return records

    def _problem(self, cells: list[str] | str) -> str:
        return cells if isinstance(cells, str) else f"{len(cells)} cells, {self._width()}"

    def _width(self) -> str:
        return f"but the header has {len(self._names or ())}"

    def fix(self, problem: str) -> str:
        """What the user can do about a problem, to be added to it."""
        if problem.endswith(self._width()):
            return f"; quote cells that hold the delimiter ({self.delimiter!r}) or a line break"
        if problem != NOT_UTF8:
            return ""
        if self.dialect.is_utf8:
            return "; name its encoding, for example --encoding latin-1"
        return f" after decoding it as {self.dialect.encoding}; name its encoding with --encoding"


def split_list(cell: str, separator: str | None = None) -> list[Any]:
    """The values in a cell of text: a JSON array, or parts between separators. A ValueError if it is neither.

    >>> split_list('["a", "b|c"]'), split_list("a | b"), split_list("a;b", ";")
    (['a', 'b|c'], ['a', 'b'], ['a', 'b'])
    """
    cell = cell.strip()
    if cell.startswith("[") and (separator is None or cell.endswith("]")):
        try:
            return list(decode_json(cell))
        except (TypeError, ValueError, RecursionError) as error:
            if separator is None:
                raise ValueError(f"not a JSON array ({error})") from None
    return [part.strip() for part in cell.split(separator or LIST_SEPARATOR)] if cell else []


def write_table(stream: BinaryIO, rows: Iterable[Mapping[str, Any]], kind: str, fields: Sequence[str] = ()) -> int:
    """A header (`fields`, or those of the first row) and one record per row; returns how many.

    Lists, objects and true/false are written as JSON.
    """
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
    writer: Any = None
    count = 0
    for row in rows:
        if writer is None:
            writer = _start_table(text, kind, fields or list(row))
        extra = [] if fields else [key for key in row if key not in writer.fieldnames]
        if extra:
            raise InputError(
                f"row {count + 1} has the field {extra[0]!r}, which the first row lacks; write .jsonl or .parquet"
            )
        writer.writerow({key: _cell(value) for key, value in row.items()})
        count += 1
    if writer is None and fields:
        _start_table(text, kind, fields)
    text.detach()  # flushes
    return count


def _start_table(text: io.TextIOWrapper, kind: str, fields: Sequence[str]) -> Any:
    delimiter = "\t" if kind == "tsv" else ","
    writer = csv.DictWriter(
        text, fields, delimiter=delimiter, lineterminator="\n", restval="", extrasaction="ignore"
    )  # fmt: skip
    writer.writeheader()
    return writer


def _cell(value: Any) -> Any:
    return to_json(value) if isinstance(value, (list, dict, bool)) else value
