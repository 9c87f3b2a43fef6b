"""A stored file -> its lines: unpacked, in UTF-8, none longer than the limit.

The limit bounds memory: a gzip file of 1 MB can hold one line of 1 GB.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pusl_eval.errors import InputError
from pusl_eval.files.reader import NOT_UTF8
from pusl_eval.files.storage import BUFFER, open_stored

MAX_LINE = 1 << 24  # bytes; a line of 16 MiB is a broken file, not an item
TOO_LONG = f"the record is longer than {MAX_LINE >> 20} MiB"
GZIP = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Dialect:
    """How a CSV or TSV file is written."""

    delimiter: str | None = None  # None: by the ending, a comma or a tab
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise InputError(f"--delimiter {self.delimiter!r}: expected one character, as in --delimiter ';'")
        try:
            "".encode(self.encoding)
        except (LookupError, UnicodeError):
            raise InputError(
                f"--encoding {self.encoding}: unknown encoding; for example utf-8, latin-1, cp1252 or utf-16"
            ) from None

    @property
    def is_utf8(self) -> bool:
        """Whether the bytes can be read as they are."""
        return codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig", "ascii")


PLAIN = Dialect()


@contextlib.contextmanager
def damage_named(path: str | Path) -> Iterator[None]:
    """Turns what damaged gzip data raises into an InputError."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: the gzip data is damaged or cut short ({error}); make the file again") from None


@dataclass(frozen=True)
class Opened:
    """An open file: its stored bytes, and what they unpack to."""

    stored: io.BufferedReader
    content: BinaryIO


@contextlib.contextmanager
def reading(path: str | Path, dialect: Dialect = PLAIN) -> Iterator[Opened]:
    """Opens a file. Its content is unpacked if it is gzip, and turned into UTF-8 if the dialect says otherwise."""
    with damage_named(path), contextlib.ExitStack() as stack:
        raw = stack.enter_context(open_stored(path))
        stream: Any = raw
        if raw.peek(2)[:2] == GZIP:  # peek, because a pipe cannot go back
            stream = stack.enter_context(gzip.GzipFile(fileobj=raw, mode="rb"))
        if not dialect.is_utf8:
            stream = io.BufferedReader(_Transcoder(stream, dialect.encoding, path), BUFFER)
        yield Opened(raw, stream)


def is_gzip(path: str | Path) -> bool:
    """Whether the content (not the name) is gzip."""
    with open_stored(path) as raw:
        return raw.peek(2)[:2] == GZIP


class _Transcoder(io.RawIOBase):
    """Bytes of another encoding, read as UTF-8. Bytes that cannot be decoded stay, and are invalid UTF-8 there."""

    def __init__(self, stream: BinaryIO, encoding: str, path: str | Path) -> None:
        self._stream, self._encoding, self._path = stream, encoding, path
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
        self._pending = memoryview(b"")
        self._finished = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not len(self._pending) and not self._finished:
            block = self._stream.read(BUFFER)
            self._finished = not block
            try:
                text = self._decoder.decode(block, final=self._finished)
                self._pending = memoryview(text.encode("utf-8", "surrogateescape"))
            except UnicodeError as error:
                raise InputError(f"{self._path}: not valid {self._encoding} ({error}); see --encoding") from None
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count


def raw_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines with their ends. One that is cut at the limit has MAX_LINE bytes; see `skip_line`."""
    return iter(partial(stream.readline, MAX_LINE), b"")


def skip_line(stream: BinaryIO, line: bytes) -> int:
    """Skips the rest of a line that was cut; returns how many bytes that were."""
    skipped = 0
    while line and not line.endswith(b"\n"):
        line = stream.readline(MAX_LINE)
        skipped += len(line)
    return skipped


def decode_line(content: bytes, number: int) -> tuple[str, str | None]:
    """A line as text, and what is wrong with it. A byte order mark and the line's end are dropped."""
    problem = TOO_LONG if len(content) >= MAX_LINE else None
    if number == 1:
        content = content.removeprefix(BOM)
    try:
        return content.decode("utf-8").rstrip("\r\n"), problem
    except UnicodeDecodeError:
        return content.decode("utf-8", "surrogateescape").rstrip("\r\n"), problem or NOT_UTF8


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Streams (line number, text) of a UTF-8 file. Drops a byte order mark, accepts CRLF, unpacks gzip."""
    with reading(path) as file:
        for number, line in enumerate(raw_lines(file.content), 1):
            text, problem = decode_line(line, number)
            if problem:
                fix = "; re-encode it as UTF-8" if problem == NOT_UTF8 else ""
                raise InputError(f"{path}:{number}: {problem}{fix}")
            yield number, text


def is_encodable(text: str) -> bool:
    """False for text with half of a surrogate pair, which no UTF-8 file can hold.

    >>> is_encodable("größe"), is_encodable("\\ud800")
    (True, False)
    """
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
