"""A target -> a hidden temporary beside it that nobody else writes, and that the next run removes if this one dies.

A temporary is called `.NAME.STAMP.tmp`. Its writer holds a lock on it, which the system releases when the process ends,
however it ends. So a temporary without a lock is what a killed command left: it is removed. One with a lock belongs to
a command that is writing the same target now: the later of the two is told so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from pusl_eval.errors import InputError, shown
from pusl_eval.files.storage import check_output, folder_for, is_url

try:
    import fcntl
except ImportError:  # Windows: no locks; temporaries stay until someone removes them
    fcntl = None  # type: ignore[assignment]

LONGEST_START = 80  # bytes of the target's name in the name of its temporary
_STAMP = re.compile(r"[0-9a-f]{8,40}\.tmp")


def temporary_name(target: str | Path) -> Path:
    """A new hidden name beside `target`; later names sort after earlier ones.

    >>> name = temporary_name("out/a.jsonl")
    >>> name.parent.name, name.name[:9], name.suffix
    ('out', '.a.jsonl.', '.tmp')
    """
    return Path(target).with_name(f"{hidden_start(target)}{time.time_ns():016x}{secrets.token_hex(4)}.tmp")


def hidden_start(target: str | Path) -> str:
    """How the names of hidden files for `target` begin.

    >>> hidden_start("out/a.jsonl")
    '.a.jsonl.'
    """
    name = os.fsencode(Path(target).name)
    if len(name) > LONGEST_START:  # a file name may have at most 255 bytes
        name = name[:LONGEST_START] + b"." + hashlib.sha256(name).hexdigest()[:8].encode()
    return f".{os.fsdecode(name)}."


@contextlib.contextmanager
def temporary(
    target: str | Path, folder: bool = False, wait: bool = False, known_as: str | Path | None = None
) -> Iterator[Path]:
    """A new temporary file or folder for `target`, locked. It is removed at the end unless it was renamed.

    An InputError if another command is writing `target`, which the user knows as `known_as`; with `wait`, it is waited
    for.
    """
    path, handle = _new(target, folder)
    try:
        _look_around(target, path, wait, known_as or target)
        yield path
    finally:
        remove(path)
        os.close(handle)


@contextlib.contextmanager
def claimed(target: str | Path) -> Iterator[None]:
    """Holds `target` for this command while it reads, changes and writes it. A second command is told so."""
    if is_url(target):
        raise InputError(f"{shown(target)}: expected a file on this machine, not a URL")
    check_output(target, force=True)
    with folder_for(target), temporary(Path(target).with_name(Path(target).name + ".lock"), known_as=target):
        yield


@contextlib.contextmanager
def locked_folder(folder: str | Path, message: str) -> Iterator[None]:
    """Holds an existing folder for this command; an InputError with the message if another one does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if _lock(handle) is False:
            raise InputError(message)
        yield
    finally:
        os.close(handle)


def _new(target: str | Path, folder: bool) -> tuple[Path, int]:
    while True:
        path = temporary_name(target)
        if folder:
            path.mkdir()
            handle = os.open(path, os.O_RDONLY)
        else:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            handle = os.open(path, flags, 0o666)  # the umask applies
        _lock(handle, wait=True)
        if os.path.exists(path):  # not taken for a dead command's before it had its lock
            return path, handle
        os.close(handle)


def _look_around(target: str | Path, own: Path, wait: bool, known_as: str | Path) -> None:
    """Removes temporaries of dead commands; refuses, or waits for, a command that began before this one."""
    start = hidden_start(target)
    for name in sorted(os.listdir(own.parent)):
        if name == own.name or not name.startswith(start) or not _STAMP.fullmatch(name[len(start) :]):
            continue
        other = own.with_name(name)
        try:
            handle = os.open(other, os.O_RDONLY)
        except OSError:  # renamed or removed meanwhile
            continue
        try:
            mine = _lock(handle, wait=wait and name < own.name)
            if mine:
                remove(other)
            elif mine is False and name < own.name:
                raise InputError(
                    f"{shown(known_as)}: another command is writing it; wait for it or name another output"
                )
        finally:
            os.close(handle)


def _lock(handle: int, wait: bool = False) -> bool | None:
    """Whether the lock is ours now; None where there are no locks (Windows, some network drives)."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def remove(path: Path) -> None:
    """Removes a file or a folder; what cannot be removed stays."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
