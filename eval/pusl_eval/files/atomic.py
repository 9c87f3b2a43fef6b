"""Content -> a file or folder that is there completely or not at all.

Everything is written under a temporary name beside its target (see `temporaries`), then renamed. On an object store the
upload is committed at the end.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pusl_eval.errors import InputError, shown
from pusl_eval.files.storage import check_output, check_target, folder_for, is_url, remote
from pusl_eval.files.temporaries import temporary, temporary_name


@contextlib.contextmanager
def open_atomic(path: str | Path, force: bool = False, mode: str = "w") -> Iterator[Any]:
    """Opens a new file that replaces `path` when the block ends well. After an error nothing is left.

    A `.gz` ending compresses (without a time stamp: the same content gives the same bytes).
    """
    if is_url(path):
        with _open_remote(path, force) as raw, _layers(raw, str(path), mode) as stream:
            yield stream
        return
    target = Path(os.path.realpath(check_output(path, force)))  # a link stays a link
    with folder_for(target), temporary(target) as name:
        with open(name, "wb") as raw:
            with _layers(raw, str(path), mode) as stream:
                yield stream
            raw.flush()
            os.fsync(raw.fileno())
        _put(name, target, force)


def _put(name: Path, target: Path, force: bool) -> None:
    """Renames a finished file. Without `force` it does not replace what came to be there in the meantime."""
    if not force and os.path.lexists(target):
        raise InputError(f"{shown(target)}: exists already; pass --force to overwrite it")
    os.replace(name, target)


@contextlib.contextmanager
def _open_remote(path: str | Path, force: bool) -> Iterator[Any]:
    check_target(path, force)
    fs, inner = remote(path)
    raw = fs.open(inner, "wb", autocommit=False)
    try:
        yield raw
        raw.close()
    except BaseException:
        raw.discard()
        raise
    raw.commit()


@contextlib.contextmanager
def _layers(raw: Any, name: str, mode: str) -> Iterator[Any]:
    """Compression by the ending and text by the mode; both are flushed, `raw` stays open."""
    with contextlib.ExitStack() as stack:
        stream = raw
        if name.endswith(".gz"):
            stream = stack.enter_context(gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0))
        if "b" not in mode:
            stream = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
            stack.callback(stream.detach)  # flushes; closing would close what is below
        yield stream


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes a whole file at once, atomically; an existing one is replaced."""
    with open_atomic(path, force=True, mode="wb") as stream:
        stream.write(content)


def to_json(row: object) -> str:
    """One line of JSON as every file of the project has it (UTF-8, no NaN)."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False)


def write_json(path: str | Path, value: object, force: bool = False) -> None:
    """One indented JSON document, atomically. Names of files that are not UTF-8 become escapes, which JSON has too."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
    with open_atomic(path, force, "wb") as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def staging_folder(target: str | Path, wait: bool = False) -> Iterator[Path]:
    """A new folder beside `target` to write into. It is removed at the end unless it was renamed."""
    with folder_for(target), temporary(target, folder=True, wait=wait) as folder:
        yield folder


@contextlib.contextmanager
def folder_atomic(target: str | Path, wait: bool = False) -> Iterator[Path]:
    """A new folder that replaces `target` when the block ends well. After an error nothing is left.

    Another command that writes `target` is an InputError; with `wait`, it is waited for.
    """
    with staging_folder(target, wait) as folder:
        yield folder
        replace_folder(folder, target)


def even_permissions(folder: str | Path) -> None:
    """Gives the new files in a new folder the permissions that the umask gives: safetensors makes private ones."""
    mode = os.stat(folder).st_mode & 0o666
    for path in Path(folder).rglob("*"):
        about = path.lstat()
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 1:  # a hard link is another folder's file, too
            os.chmod(path, mode)


def replace_folder(folder: str | Path, target: str | Path) -> None:
    """Renames a finished folder; one that is there already makes way."""
    even_permissions(folder)
    if not os.path.isdir(target):
        os.replace(folder, target)
        return
    old = temporary_name(target)
    os.replace(target, old)
    os.replace(folder, target)
    shutil.rmtree(old, ignore_errors=True)
