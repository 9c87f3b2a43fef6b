"""What every file kind's reader offers: rows one by one, or batches that can be read again on their own.

A problem with a record is a value, not an exception: `read_rows` stops at it, the catalog lists it
and continues.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
NOT_UTF8 = "not valid UTF-8"


class Record(NamedTuple):
    """One record: its (last) line, its row or what is wrong with it, and its text."""

    line: int
    row: Row | str
    text: str


@dataclass(frozen=True)
class Batch:
    """Consecutive records of a file, not yet parsed."""

    line: int  # of the first record
    start: int  # byte where it starts, or row for Parquet
    records: int
    payload: Sequence[Any]
    done: float = 0.0  # share of the file up to the batch's end


class Reader(ABC):
    """A file of one kind."""

    table = True  # all rows have the same columns, and lists may be cells of text
    seekable = True

    def __init__(self, path: str | Path) -> None:
        self.path = path

    def header(self) -> list[str] | None:
        """The names of the columns, where the file says them before its first row."""
        return None

    def fix(self, problem: str) -> str:
        """What the user can do about a problem, to be added to it."""
        return "; re-encode it as UTF-8" if problem == NOT_UTF8 else ""

    @abstractmethod
    def rows(self) -> Iterator[tuple[int, Row | str]]:
        """(line, row or what is wrong with it) of every record."""

    @abstractmethod
    def batches(self, size: int) -> Iterator[Batch]:
        """All records in order, `size` at a time. Where a batch starts depends on the file and `size` only."""

    @abstractmethod
    def read(self, start: int, records: int) -> Sequence[Any]:
        """The payload of a batch, read again; only if `seekable`."""

    @abstractmethod
    def parse(self, batch: Batch) -> Iterator[Record]:
        """The records of a batch."""


def type_name(value: object) -> str:
    """A JSON value's type as a user knows it: `a string`, `null`, ..."""
    names = {str: "a string", bool: "true/false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
