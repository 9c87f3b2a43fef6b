"""JSON lines -> rows, and rows -> JSON lines."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pusl_eval.errors import InputError
from pusl_eval.files.atomic import to_json
from pusl_eval.files.lines import MAX_LINE, decode_line, is_encodable, is_gzip, raw_lines, reading, skip_line
from pusl_eval.files.reader import Batch, Reader, Record, Row, type_name
from pusl_eval.files.storage import check_input, open_stored, size_of


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Made once, because json.loads would make one per line. Refuses NaN and Infinity; deep nesting is a RecursionError.
decode_json = json.JSONDecoder(parse_constant=_refuse_constant).decode


def read_json(path: str | Path, fix: str = "make it again") -> Row:
    """A file that holds one JSON object; an InputError with the fix if it is missing, damaged or something else."""
    try:
        loaded = json.loads(check_input(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not valid JSON ({error}); {fix}") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{path}: expected a JSON object, found {type_name(loaded)}; {fix}")
    return loaded


def parse_row(text: str) -> Row | str:
    """One line of JSON -> a row, or what is wrong with it."""
    try:
        row = decode_json(text)
    except (ValueError, RecursionError) as error:
        return f"not a JSON object ({error})"
    if not isinstance(row, dict):
        return f"expected a JSON object, found {type_name(row)}"
    if ("\\ud" in text or "\\uD" in text) and not is_encodable(json.dumps(row, ensure_ascii=False)):
        return "contains half of a surrogate pair (\\ud800-\\udfff), which is not a character"
    return row


class JsonLinesReader(Reader):
    """JSON lines, plain or gzipped: a record is a line."""

    table = False

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._packed: bool | None = None

    @property
    def seekable(self) -> bool:  # type: ignore[override]
        if self._packed is None:
            self._packed = is_gzip(self.path)
        return not self._packed

    def rows(self) -> Iterator[tuple[int, Row | str]]:
        with reading(self.path) as file:
            for number, content in enumerate(raw_lines(file.content), 1):
                try:
                    row = decode_json(content.decode())
                except (ValueError, RecursionError):
                    row = None
                if type(row) is dict and b"\\u" not in content and len(content) < MAX_LINE:
                    yield number, row  # nearly all lines
                    continue
                text, problem = decode_line(content, number)
                if problem or text.strip():
                    yield number, problem or parse_row(text)
                if len(content) >= MAX_LINE:
                    skip_line(file.content, content)

    def batches(self, size: int) -> Iterator[Batch]:
        total = size_of(self.path)
        with reading(self.path) as file:
            line, start = 1, 0
            while True:
                payload, length = self._take(file.content, size)
                if not payload:
                    return
                yield Batch(line, start, len(payload), payload, min(1.0, file.stored.tell() / max(1, total)))
                line, start = line + len(payload), start + length

    def read(self, start: int, records: int) -> list[bytes]:
        with open_stored(self.path) as stream:
            stream.seek(start)
            return self._take(stream, records)[0]

    def parse(self, batch: Batch) -> Iterator[Record]:
        for number, content in enumerate(batch.payload, batch.line):
            text, problem = decode_line(content, number)
            if problem:
                yield Record(number, problem, text)
            elif text.strip():
                yield Record(number, parse_row(text), text)

    def _take(self, stream: BinaryIO, size: int) -> tuple[list[bytes], int]:
        """The next `size` lines and how many bytes they are."""
        lines: list[bytes] = []
        length = 0
        for content in raw_lines(stream):
            lines.append(content)
            length += len(content)
            if len(content) >= MAX_LINE:
                length += skip_line(stream, content)
            if len(lines) == size:
                break
        return lines, length


def write_json_lines(stream: BinaryIO, rows: Iterable[Mapping[str, Any]]) -> int:
    """One line of JSON per row; returns how many."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
    count = 0
    for row in rows:
        text.write(to_json(row) + "\n")
        count += 1
    text.detach()  # flushes
    return count
