"""A local path or a cloud URL -> checked paths, stored bytes, and folders.

Inputs and outputs may live on any file system that fsspec knows (`s3://`, `gs://`, `hdfs://`,
`memory://`, ...). Everything that reads or writes a user's file goes through this module.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from pathlib import Path
from typing import Any

from pusl_eval.errors import InputError

LONGEST_NAME = 255  # bytes, on every common file system
BUFFER = 1 << 18
_ENDINGS = {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv"}


def kind_of(path: str | Path) -> str:
    """`jsonl`, `parquet`, `csv` or `tsv`, by the ending; a final .gz is ignored.

    >>> kind_of("train.jsonl.gz"), kind_of("items.tsv")
    ('jsonl', 'tsv')
    """
    name = Path(path).name.lower()
    if name.endswith(".parquet"):
        return "parquet"
    kind = _ENDINGS.get(Path(name.removesuffix(".gz")).suffix)
    if kind is None:
        raise InputError(f"{path}: unknown file ending; expected .jsonl, .jsonl.gz, .parquet, .csv or .tsv")
    return kind


def is_url(path: str | Path) -> bool:
    """True for `s3://bucket/items.jsonl`, False for a plain path.

    >>> is_url("s3://shop/items.jsonl"), is_url("data/items.jsonl")
    (True, False)
    """
    return "://" in str(path)


def remote(path: str | Path) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path inside it."""
    try:
        import fsspec

        fs, inner = fsspec.core.url_to_fs(str(path))
        return fs, str(inner)
    except (ImportError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None


def plain_path(path: str | os.PathLike[str]) -> str:
    """The path without `file://`, absolute if it is local, so that another process finds it."""
    text = str(path).removeprefix("file://")
    return text if is_url(text) else os.path.abspath(text)


def check_input(path: str | Path) -> Path:
    """The path if it is a readable local file, else an InputError that says what it is instead."""
    path = Path(path)
    if os.path.isdir(path):  # os.path, because Path's own tests raise on a name that is too long
        raise InputError(f"{path}: is a directory; expected a file")
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: no permission to read it")
    return path


def check_output(path: str | Path, force: bool = False) -> Path:
    """The path if it may be written, else an InputError. Makes its folder if needed."""
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


def check_target(path: str | Path, force: bool) -> None:
    """`check_output` for a local path or a URL."""
    if not is_url(path):
        check_output(path, force)
    elif exists(path) and not force:
        raise InputError(f"{path}: exists already; pass --force to overwrite it")


def make_folder(folder: str | Path) -> None:
    """Makes a folder and its parents if needed. An InputError if nothing can be written into it."""
    if is_url(folder):
        fs, inner = remote(folder)
        fs.makedirs(inner, exist_ok=True)
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except (NotADirectoryError, FileExistsError):
        raise InputError(f"{folder}: is a file; expected a folder") from None
    except PermissionError:
        raise InputError(f"{folder}: no permission to make this folder") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder}: no permission to write here")


def exists(path: str | Path) -> bool:
    """Whether the file or folder exists."""
    if is_url(path):
        fs, inner = remote(path)
        return bool(fs.exists(inner))
    return os.path.exists(path)


def size_of(path: str | Path) -> int:
    """The file's size in bytes. An InputError if it is not a readable file."""
    if is_url(path):
        fs, inner = remote(path)
        if not fs.isfile(inner):
            raise InputError(f"{path}: no such file")
        return int(fs.size(inner))
    return check_input(path).stat().st_size


def open_stored(path: str | Path) -> io.BufferedReader:
    """Opens the stored bytes: gzip stays packed."""
    if is_url(path):
        size_of(path)
        fs, inner = remote(path)
        return io.BufferedReader(fs.open(inner, "rb"), BUFFER)
    try:
        return io.BufferedReader(io.FileIO(check_input(path)), BUFFER)
    except PermissionError:
        raise InputError(f"{path}: no permission to read it") from None


def read_bytes(path: str | Path) -> bytes:
    """The content of a small file."""
    with open_stored(path) as stream:
        return stream.read()


def file_names(folder: str | Path) -> list[str]:
    """Names of the files in a folder; none if the folder does not exist."""
    if is_url(folder):
        fs, inner = remote(folder)
        if not fs.exists(inner):
            return []
        return [name.rstrip("/").rsplit("/", 1)[-1] for name in fs.ls(inner, detail=False)]
    return os.listdir(folder) if os.path.isdir(folder) else []


def move(path: str | Path, target: str | Path) -> None:
    """Renames a file and replaces an existing target."""
    if is_url(path):
        fs, inner = remote(path)
        fs.mv(inner, remote(target)[1])
    else:
        os.replace(path, target)


def remove(path: str | Path) -> None:
    """Removes a file, or a folder with its content, if it exists."""
    if is_url(path):
        fs, inner = remote(path)
        if fs.exists(inner):
            fs.rm(inner, recursive=True)
    elif os.path.isdir(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
