"""Parquet -> rows, and rows -> Parquet."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from pusl_eval.errors import InputError
from pusl_eval.files.lines import MAX_LINE, TOO_LONG
from pusl_eval.files.reader import Batch, Reader, Record, Row
from pusl_eval.files.storage import check_input, is_url, open_stored

GROUP = 20_000  # rows per row group, whatever the caller's batches are


class ParquetReader(Reader):
    """Parquet: a record is a row, its number counts as its line. `names` limits the columns that are read."""

    def __init__(self, path: str | Path, names: Sequence[str] | None = None) -> None:
        super().__init__(path)
        self.names = names
        self._cached: tuple[int, Any] = (-1, None)

    def header(self) -> list[str]:
        with self._open() as file:
            return list(file.schema_arrow.names)

    def rows(self) -> Iterator[tuple[int, Row | str]]:
        with self._open() as file:
            yield from enumerate(self._stream(file), 1)

    def batches(self, size: int) -> Iterator[Batch]:
        with self._open() as file:
            total, start = file.metadata.num_rows, 0
            rows = self._stream(file)
            while payload := list(itertools.islice(rows, size)):
                end = start + len(payload)
                yield Batch(start + 1, start, len(payload), payload, end / max(1, total))
                start = end

    def read(self, start: int, records: int) -> list[Row | str]:
        rows: list[Row | str] = []
        begin = 0
        with self._open() as file:
            for group in range(file.metadata.num_row_groups):
                end = begin + file.metadata.row_group(group).num_rows
                low, high = max(start, begin), min(start + records, end)
                if low < high:
                    if self._cached[0] != group:  # neighbors share a row group; unpack it once
                        self._cached = (group, file.read_row_group(group, columns=self._present(file)))
                    rows += _to_rows(self._cached[1].slice(low - begin, high - low))
                begin = end
        return rows

    def parse(self, batch: Batch) -> Iterator[Record]:
        for number, row in enumerate(batch.payload, batch.line):
            yield Record(number, row, json.dumps(row, ensure_ascii=False, default=str))

    def _check_sizes(self, about: Any) -> None:
        """An InputError if the file says that its values are too long for a record: only reading them is too much."""
        for group in range(about.num_row_groups):
            for number in range(about.num_columns):
                column = about.row_group(group).column(number)
                if self.names is not None and column.path_in_schema.partition(".")[0] not in self.names:
                    continue
                if column.total_uncompressed_size > MAX_LINE * max(1, column.num_values):
                    raise InputError(f"{self.path}: column {column.path_in_schema!r}: {TOO_LONG}")

    def _present(self, file: Any) -> list[str] | None:
        return None if self.names is None else [name for name in self.names if name in file.schema_arrow.names]

    def _stream(self, file: Any) -> Iterator[Row | str]:
        for batch in file.iter_batches(batch_size=2048, columns=self._present(file)):
            yield from _to_rows(batch)

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            import pyarrow
            import pyarrow.parquet as parquet
        except ImportError:
            raise InputError(f"{self.path}: reading Parquet needs pyarrow; pip install pyarrow") from None
        try:
            source = open_stored(self.path) if is_url(self.path) else check_input(self.path)
            # Buffering ahead would hold a whole row group's bytes; a catalog's can be gigabytes.
            with parquet.ParquetFile(source, pre_buffer=False) as file:
                self._check_sizes(file.metadata)
                yield file
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(f"{self.path}: not a readable Parquet file ({str(error).splitlines()[0]})") from None


def _to_rows(table: Any) -> list[Row | str]:
    """The rows of an Arrow batch or table. One that Python cannot hold becomes what is wrong with it."""
    if table.nbytes > MAX_LINE:
        half = table.num_rows // 2
        return [*_to_rows(table.slice(0, half)), *_to_rows(table.slice(half))] if half else [TOO_LONG]
    try:
        rows: list[Row | str] = table.to_pylist()
        return rows
    except (UnicodeDecodeError, ValueError, OverflowError, TypeError) as error:
        if table.num_rows == 1:
            reason = "not valid UTF-8" if isinstance(error, UnicodeDecodeError) else str(error).splitlines()[0]
            return [f"a value cannot be read ({reason})"]
        return [row for number in range(table.num_rows) for row in _to_rows(table.slice(number, 1))]


def write_parquet(stream: BinaryIO, rows: Iterable[Mapping[str, Any]], fields: Mapping[str, str] | None = None) -> int:
    """One table; returns how many rows. `fields` maps names to types; without it the first rows decide.

    A type is `text`, `texts`, `numbers` or `flag`; fields that are not named are left out.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    kinds = {
        "text": pyarrow.string(), "texts": pyarrow.list_(pyarrow.string()), "numbers": pyarrow.list_(pyarrow.float64()),
        "flag": pyarrow.bool_(),
    }  # fmt: skip
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in fields.items()]) if fields else None
    count, writer = 0, None
    iterator = iter(rows)
    while True:
        chunk = [dict(row) for row in itertools.islice(iterator, GROUP)]
        if not chunk and writer is not None:
            break
        try:
            table = pyarrow.Table.from_pylist(chunk, schema=schema)
        except pyarrow.ArrowException as error:
            raise InputError(f"rows {count + 1}-{count + len(chunk)} do not fit one table: {error}") from None
        if writer is None:
            schema = table.schema
            writer = parquet.ParquetWriter(stream, schema)
        if chunk or not fields:
            writer.write_table(table)
        count += len(chunk)
        if not chunk:
            break
    writer.close()
    return count
