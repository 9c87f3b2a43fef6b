"""Finished shards + a manifest in a work folder -> one predictions file, at whatever moment a run dies.

`OUTPUT.parts/` holds `manifest.json` (what the run was started with) and one `part-NNNNNNNN` per
finished shard: a header line of JSON (which input records it answers, checksums, the rejects), then
the prediction lines. A part appears by a rename, so it is there whole or not at all. When all are
there, they are streamed into the output in order and the folder goes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import filelock
import numpy as np

from pusl.catalog.shards import CatalogItem, Chunk, Reject
from pusl_eval.files import (
    PREDICTION_FIELDS,
    InputError,
    Row,
    kind_of,
    open_atomic,
    storage,
    to_json,
    write_bytes,
    write_stream,
)

FORMAT = 1
MANIFEST = "manifest.json"
_OURS = re.compile(r"(part-|try-|input-|lock$|manifest\.json$|rejects$|\..*\.tmp$)")  # files that a run makes
LOCK = "lock"
PREFIX = "part-"
FIELDS = ("id", "keyphrases", "scores", "exhausted", "truncated", "reason")
BUCKET = 1 << 17  # id hashes looked at together when searching repeats: 1 MiB
MOST_PASSES = 64  # over all hashes; beyond 8 million items buckets grow instead, to 125 MB for a billion


def pack_part(
    chunk: Chunk, items: Sequence[CatalogItem], rows: Sequence[Row], rejects: Sequence[Reject], counts: Row
) -> bytes:
    """One shard's predictions as the bytes of a part file."""
    body = "".join(to_json(row) + "\n" for row in rows).encode("utf-8")
    header = {
        "format": FORMAT, "shard": chunk.index, "line": chunk.line, "records": chunk.records, "input": chunk.digest,
        "body": _checksum(body), "counts": counts, "lines": [item.line for item in items],
        "ids": [id_hash(item.id) for item in items], "rejects": [list(reject) for reject in rejects],
    }  # fmt: skip
    return to_json({**header, "head": _header_checksum(header)}).encode("utf-8") + b"\n" + body


def unpack_part(content: bytes) -> tuple[Row, bytes] | None:
    """(header, prediction lines) of a part file, or None if it is damaged."""
    head, _, body = content.partition(b"\n")
    try:
        header = json.loads(head)
        sound = header["format"] == FORMAT and header["body"] == _checksum(body)
        sound = sound and header.pop("head") == _header_checksum(header)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return (header, body) if sound else None


def id_hash(item: str) -> int:
    """Eight bytes that tell ids apart nearly always, the same in every process."""
    return int.from_bytes(hashlib.blake2b(item.encode("utf-8"), digest_size=8).digest(), "little")


def _header_checksum(header: Row) -> str:
    return _checksum(to_json(header).encode("utf-8"))


def _checksum(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def _replacing(path: str) -> Any:
    """A new file of bytes that replaces `path` at the end."""
    return open_atomic(path, force=True, mode="wb")


class InputChanged(InputError):
    """The input is not the one the unfinished run has read."""


class WorkFolder:
    """The state of a run on disk."""

    def __init__(self, output: str) -> None:
        self.output = output
        self.path = output + ".parts"

    def part_path(self, index: int) -> str:
        """The path of a shard's part."""
        return f"{self.path}/{PREFIX}{index:08d}"

    def manifest(self) -> Row | None:
        """What the unfinished run was started with; None if there is none."""
        path = f"{self.path}/{MANIFEST}"
        if not storage.exists(path):
            return None
        try:
            found = json.loads(storage.read_bytes(path))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise InputError(f"{path}: not a manifest this version can read; --force starts over")
        return found

    def begin(self, fingerprint: Row, force: bool) -> bool:
        """Takes the folder for this run; True if it resumes an unfinished one.

        The same fingerprint resumes. Another one is refused; with `force`, or if no shard was done, it is wiped.
        """
        try:
            old = self.manifest()
        except InputError:
            if not force:
                raise
            old = None
        if old is not None and old.get("fingerprint") != fingerprint:
            changes = "; ".join(_differences(old.get("fingerprint") or {}, fingerprint))
            if not force and self.finished():
                raise InputError(
                    f"{self.path} holds an unfinished run with other settings ({changes}).\n"
                    "Repeat the first command to resume it, or pass --force to start over"
                )
            old = None
        if old is None:
            storage.check_target(self.output, force)
            storage.check_target(self.output + ".rejects", force)
            # What another run left here cannot be trusted.
            for name in storage.file_names(self.path):
                if name != LOCK:
                    storage.remove(f"{self.path}/{name}")
            manifest = {"format": FORMAT, "fingerprint": fingerprint}
            write_bytes(f"{self.path}/{MANIFEST}", (json.dumps(manifest, indent=2) + "\n").encode())
        return old is not None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder against a second run on the same machine; an empty folder goes at the end."""
        self._refuse_other_files()
        storage.make_folder(self.path)
        with contextlib.ExitStack() as stack:
            if not storage.is_url(self.path):
                try:
                    stack.enter_context(filelock.FileLock(f"{self.path}/{LOCK}", timeout=0))
                except filelock.Timeout:
                    raise InputError(f"{self.path}: another run is writing this output; wait for it") from None
            try:
                yield
            finally:
                if not storage.exists(f"{self.path}/{MANIFEST}"):
                    with contextlib.suppress(PermissionError):  # Windows: the lock is still open
                        storage.remove(self.path)

    def _refuse_other_files(self) -> None:
        """A folder of this name that no run of ours made is never emptied."""
        if storage.exists(self.path) and not storage.exists(f"{self.path}/{MANIFEST}"):
            other = [name for name in storage.file_names(self.path) if not _OURS.match(name)]
            if other:
                raise InputError(
                    f"{self.path}: holds other files ({sorted(other)[0]}), and this run needs a folder of that name; "
                    "move it, or name another --output"
                )

    def _part_names(self) -> list[str]:
        return [name for name in storage.file_names(self.path) if name.startswith(PREFIX)]

    def finished(self) -> set[int]:
        """Numbers of the shards whose parts are there (not yet looked into)."""
        return {int(name.removeprefix(PREFIX)) for name in self._part_names() if name.removeprefix(PREFIX).isdigit()}

    def check_part(self, chunk: Chunk) -> Row | None:
        """The header of the chunk's part; None if it has to be made again."""
        found = unpack_part(storage.read_bytes(self.part_path(chunk.index)))
        if found is None:
            return None
        header = found[0]
        if header["input"] != chunk.digest or header["line"] != chunk.line:
            raise InputChanged(
                f"{self.path} holds an unfinished run on another input (it differs from line {chunk.line} on).\n"
                "Put the old file back to resume it, or pass --force to start over"
            )
        return header

    def write_part(self, index: int, content: bytes) -> Row:
        """Writes a finished shard, atomically, and returns its header."""
        found = unpack_part(content)
        assert found is not None
        write_bytes(self.part_path(index), content)
        return found[0]

    def parts(self, count: int) -> Iterator[tuple[Row, bytes]]:
        """(header, prediction lines) of the shards 0 to count - 1."""
        for index in range(count):
            found = unpack_part(storage.read_bytes(self.part_path(index)))
            if found is None:
                raise OSError(f"{self.part_path(index)} was damaged during the run; delete it and run again")
            yield found

    def assemble(self, count: int, more: Sequence[str] = ()) -> tuple[int, int]:
        """Writes the output and its .rejects file from all parts; returns how many lines each has.

        The second and later items with the same id are rejected here, because only here all
        ids are known, whatever the shard size was.
        """
        unscored = items = rejects = 0

        def hashes() -> Iterator[np.ndarray]:
            nonlocal unscored
            for header, _ in self.parts(count):
                unscored += header["counts"]["unscored"]
                yield np.asarray(header["ids"], dtype=np.uint64)

        suspects = repeated(hashes())
        fields = [name for name in FIELDS if name != "scores" or not unscored] + list(more)
        first: dict[str, int] = {}

        def kept() -> Iterator[bytes]:
            nonlocal items, rejects
            for header, body in self.parts(count):
                spoiled = [Reject(*reject) for reject in header["rejects"]]
                for line, code, content in zip(
                    header["lines"], header["ids"], body.splitlines(keepends=True), strict=True
                ):
                    if code in suspects:
                        name = json.loads(content)["id"]
                        if first.setdefault(name, line) != line:
                            reason = f"id {name!r} is already in line {first[name]}"
                            spoiled.append(Reject(line, reason, name))
                            continue
                    items += 1
                    yield content
                for reject in sorted(spoiled):
                    log.write(to_json(reject._asdict()).encode("utf-8") + b"\n")
                rejects += len(spoiled)

        # The rejects wait in the work folder: the output itself says that a run is complete.
        with _replacing(self.output) as stream, _replacing(f"{self.path}/rejects") as log:
            write_predictions(stream, kept(), kind_of(self.output), fields)
        if rejects:
            storage.move(f"{self.path}/rejects", self.output + ".rejects")
        else:
            storage.remove(self.output + ".rejects")  # of an older output that --force replaced
        return items, rejects

    def wipe(self) -> None:
        """Removes the folder. The manifest goes first: what a kill leaves here is not an unfinished run."""
        storage.remove(f"{self.path}/{MANIFEST}")
        storage.remove(self.path)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    changes = []
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            keys = [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]
            if name in ("input", "model", "universe"):
                changes.append(f"another {name}: {keys[0]} was {before.get(keys[0])}, is {after.get(keys[0])}")
            else:
                changes += [f"{key} was {before.get(key)}, is {after.get(key)}" for key in keys]
        else:
            changes.append(f"{name} was {before}, is {after}")
    return changes


def repeated(groups: Iterable[np.ndarray]) -> set[int]:
    """The values that occur more than once in a stream of uint64 arrays, in bounded memory.

    >>> repeated([np.array([1, 5], dtype=np.uint64), np.array([5, 9], dtype=np.uint64)])
    {5}
    """
    with tempfile.TemporaryFile() as spill:
        total = 0
        for group in groups:
            spill.write(group.astype(np.uint64).tobytes())
            total += len(group)
        buckets = np.uint64(min(MOST_PASSES, -(-total // BUCKET)))
        found: set[int] = set()
        for bucket in range(int(buckets)):
            spill.seek(0)
            pieces = [piece[piece % buckets == bucket] for piece in _pieces(spill)]
            chosen = np.sort(np.concatenate(pieces))
            found.update(np.unique(chosen[1:][chosen[1:] == chosen[:-1]]).tolist())
        return found


def _pieces(spill: Any) -> Iterator[np.ndarray]:
    while content := spill.read(8 * BUCKET):  # not memory-mapped: mapped pages would count as ours
        yield np.frombuffer(content, dtype=np.uint64)


def write_predictions(stream: BinaryIO, lines: Iterable[bytes], kind: str, fields: Sequence[str] = FIELDS) -> None:
    """Prediction lines of JSON -> a JSONL, Parquet, CSV or TSV stream."""
    if kind == "jsonl":
        for line in lines:
            stream.write(line)
        return
    # Other fields are text. `explain` too, as JSON: which marks it has depends on the universe and the labels.
    types = {name: PREDICTION_FIELDS.get(name, "text") for name in fields}
    write_stream(stream, _table_rows(lines, kind), kind, types)


def _table_rows(lines: Iterable[bytes], kind: str) -> Iterator[Row]:
    for line in lines:
        row = json.loads(line)
        if kind == "parquet":
            row.setdefault("exhausted", False)
            row.setdefault("truncated", False)
            if "explain" in row:
                row["explain"] = to_json(row["explain"])
        yield row
