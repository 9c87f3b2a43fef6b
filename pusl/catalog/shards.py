"""A catalog file -> chunks of records, each readable again on its own, and their items and rejects.

A chunk is a fixed number of consecutive records (lines, CSV records, Parquet rows). Where the next
one starts depends on the file and the chunk size only, never on who reads it, so one process, many
processes and a cluster see the same chunks. A record that cannot be used becomes a `Reject`; it
never stops the others. The records themselves are read by `pusl_eval.files`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pusl_eval.columns import BadRecord, Columns, ItemFields, missing_column
from pusl_eval.files import Batch, InputError, Row, open_reader
from pusl_eval.files.storage import size_of

SHARD_SIZE, SMALL_SHARD_SIZE = 512, 128
SMALL_FILE = 4 << 20  # bytes; a bar moves and a run is saved more often where there are few items
FIRST = 1_000  # items that tell whether another file belongs to this one
SHOWN_CHARS = 2_000  # of a rejected record, kept in the .rejects file


class CatalogItem(NamedTuple):
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
    """Consecutive records of the input. Without its payload it is a note that says where to read them."""

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


class CatalogFile:
    """A catalog, read chunk by chunk. Its columns are checked as far as a header tells.

    With `complete` the keyphrases that items have already are read too.
    """

    def __init__(self, path: str, columns: Columns, complete: bool = False) -> None:
        self.path, self.complete = path, complete
        self.size = size_of(path)
        fields = ItemFields(columns, table=True)
        known = [columns.keyphrases_column] if complete else []
        names = list(dict.fromkeys([columns.id_column, *fields.text_fields, *known]))
        self._reader = open_reader(path, columns.dialect, names)
        self.columns, self.fields = columns, ItemFields(columns, self._reader.table)
        if self._reader.table:
            self._check_header(self._reader.header())

    @property
    def seekable(self) -> bool:
        """Whether a chunk can be read again without reading all before it."""
        return self._reader.seekable

    @property
    def usual_shard_size(self) -> int:
        """Items per shard, if the user does not say."""
        return SMALL_SHARD_SIZE if self.size <= SMALL_FILE else SHARD_SIZE

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Every chunk of `size` records in order, with its data."""
        for index, batch in enumerate(self._reader.batches(size)):
            digest = _digest(batch.payload)
            yield Chunk(index, batch.line, batch.start, batch.records, digest, batch.done, batch.payload)

    def read(self, note: Chunk) -> Chunk:
        """A chunk's data again, from its note."""
        if not self.seekable:
            raise InputError(f"{self.path}: a packed file cannot be read from the middle")
        payload = self._reader.read(note.start, note.records)
        return replace(note, payload=payload, digest=_digest(payload))

    def estimate(self, size: int) -> float:
        """About how many chunks there are, judged by the first."""
        first = next(self.chunks(size), None)
        return 1 / max(first.done, 1e-9) if first else 0

    def parse(self, chunk: Chunk) -> tuple[list[CatalogItem], list[Reject]]:
        """A chunk's usable items and its rejects, both in input order."""
        items: list[CatalogItem] = []
        rejects: list[Reject] = []
        for line, row, shown in self._reader.parse(Batch(chunk.line, chunk.start, chunk.records, chunk.payload)):
            try:
                if isinstance(row, str):
                    raise BadRecord(row)
                items.append(self._item(line, row))
            except BadRecord as error:
                clean = shown[:SHOWN_CHARS].encode("utf-8", "backslashreplace").decode()
                rejects.append(Reject(line, str(error), clean))
        return items, rejects

    def _item(self, line: int, row: Row) -> CatalogItem:
        column = self.columns.text_column
        if self.columns.text_template is None and column in row and row[column] is None:
            row = {**row, column: ""}  # null is an item without text
        name, text = self.fields.identifier(row), self.fields.text(row)
        return CatalogItem(line, name, text, self.fields.known(row) if self.complete else ())

    def first_ids(self, count: int = FIRST) -> set[str]:
        """Ids of the first usable items."""
        chunk = next(self.chunks(count), None)
        return {item.id for item in self.parse(chunk)[0]} if chunk else set()

    def check_known(self) -> None:
        """Refuses a file in which no record has the column of keyphrases; one that has it ends the search."""
        column, names = self.columns.keyphrases_column, ""
        for _, row in self._reader.rows():
            if isinstance(row, dict):
                if column in row:
                    return
                names = names or ", ".join(map(str, row))
        raise InputError(
            f"{self.path}: no item has '{column}' (found: {names or 'none'}). Name it with --keyphrases-column"
        )

    def _check_header(self, names: Sequence[str] | None) -> None:
        if names is None:
            raise InputError(f"{self.path}: is empty; expected a header and at least one item")
        text = "--text-template" if self.columns.text_template else "--text-column, or build it with --text-template"
        flags = {self.columns.id_column: "--id-column", **dict.fromkeys(self.fields.text_fields, text)}
        if self.complete:
            flags[self.columns.keyphrases_column] = "--keyphrases-column"
        for name, flag in flags.items():
            if name not in names:
                raise missing_column(self.path, name, names, flag)


def _digest(payload: Sequence[Any]) -> str:
    code = hashlib.blake2b(digest_size=16)
    for record in payload:
        code.update(record if isinstance(record, bytes) else repr(record).encode("utf-8", "surrogatepass"))
    return code.hexdigest()
