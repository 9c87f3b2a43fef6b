"""A local path or a cloud URL -> streams to read, and files that appear whole or not at all.

Catalogs and their work folders may live on any file system that fsspec knows (`s3://`, `gs://`,
`hdfs://`, `memory://`, ...). On a local disk a file is written beside its target, synced and
renamed; on an object store its upload is committed at the end.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pusl_eval.files import InputError, check_input, check_output, open_atomic


def is_url(path: str | Path) -> bool:
    """True for `s3://bucket/items.jsonl`, False for a plain path.

    >>> is_url("s3://shop/items.jsonl"), is_url("data/items.jsonl")
    (True, False)
    """
    return "://" in str(path)


def _remote(path: str | Path) -> tuple[Any, str]:
    try:
        import fsspec

        fs, inner = fsspec.core.url_to_fs(str(path))
        return fs, str(inner)
    except (ImportError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None


def plain_path(path: str | os.PathLike[str]) -> str:
    """The path without `file://`, absolute if it is local, so that another process finds it."""
    text = str(path)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return text if is_url(text) else os.path.abspath(text)


def exists(path: str | Path) -> bool:
    """Whether a file or folder is there."""
    if is_url(path):
        fs, inner = _remote(path)
        return bool(fs.exists(inner))
    return os.path.exists(path)


def size_of(path: str | Path) -> int:
    """The file's size in bytes; an InputError if it is no readable file."""
    if is_url(path):
        fs, inner = _remote(path)
        if not fs.isfile(inner):
            raise InputError(f"{path}: no such file")
        return int(fs.size(inner))
    return check_input(path).stat().st_size


def open_binary(path: str | Path) -> BinaryIO:
    """Opens bytes as they are stored (gzip is not unpacked), seekable."""
    if is_url(path):
        fs, inner = _remote(path)
        return fs.open(inner, "rb")
    return open(check_input(path), "rb", buffering=1 << 18)


def read_start(path: str | Path, count: int) -> bytes:
    """The first bytes of a file."""
    with open_binary(path) as stream:
        return stream.read(count)


def read_bytes(path: str | Path) -> bytes:
    """A small file's content."""
    with open_binary(path) as stream:
        return stream.read()


def check_target(path: str | Path, force: bool) -> None:
    """An InputError if the file may not be written; a local folder is made if need be."""
    if not is_url(path):
        check_output(path, force)
    elif exists(path) and not force:
        raise InputError(f"{path}: exists already; pass --force to overwrite it")


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a file for bytes that replaces `path` only if the block ends well; `.gz` compresses."""
    if not is_url(path):
        with open_atomic(path, force=True, mode="wb") as stream:
            yield stream
        return
    fs, inner = _remote(path)
    raw = fs.open(inner, "wb", autocommit=False)
    try:
        if inner.endswith(".gz"):
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield raw
        raw.close()
    except BaseException:
        raw.discard()
        raise
    raw.commit()


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes a whole file at once, atomically."""
    with writing(path) as stream:
        stream.write(content)


def make_folder(path: str | Path) -> None:
    """Makes a folder and its parents; nothing happens if it is there."""
    if is_url(path):
        fs, inner = _remote(path)
        fs.makedirs(inner, exist_ok=True)
    else:
        os.makedirs(path, exist_ok=True)


def file_names(folder: str | Path) -> list[str]:
    """Names of the files in a folder; nothing if it is not there."""
    if is_url(folder):
        fs, inner = _remote(folder)
        if not fs.exists(inner):
            return []
        return [name.rstrip("/").rsplit("/", 1)[-1] for name in fs.ls(inner, detail=False)]
    return os.listdir(folder) if os.path.isdir(folder) else []


def move(path: str | Path, target: str | Path) -> None:
    """Renames a file, replacing what is there."""
    if is_url(path):
        fs, inner = _remote(path)
        fs.mv(inner, _remote(target)[1])
    else:
        os.replace(path, target)


def remove(path: str | Path) -> None:
    """Removes a file or a folder with all in it, if it is there."""
    if is_url(path):
        fs, inner = _remote(path)
        if fs.exists(inner):
            fs.rm(inner, recursive=True)
    elif os.path.isdir(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
