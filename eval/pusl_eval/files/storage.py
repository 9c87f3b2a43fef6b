"""A local path or a cloud URL -> checked paths, stored bytes, and folders.

Inputs and outputs may live on any file system that fsspec knows (`s3://`, `gs://`, `hdfs://`,
`memory://`, ...). Everything that reads or writes a user's file goes through this module.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pusl_eval.errors import PATH_ERRORS, InputError, shown

LONGEST_NAME = 255  # bytes, on every common file system
LONGEST_PATH_NAME = 3800  # bytes of a folder's path: the system's limit is 4096 bytes, and names follow
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
        raise InputError(f"{shown(path)}: unknown file ending; expected .jsonl, .jsonl.gz, .parquet, .csv or .tsv")
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


def same_path(one: str | Path, other: str | Path) -> bool:
    """Whether two names lead to the same place. Links that go in circles do not: `Path.resolve` would raise."""
    return os.path.realpath(one) == os.path.realpath(other)


def check_apart(outputs: Iterable[str | Path], inputs: Mapping[str, str | Path | None]) -> None:
    """An InputError if an output is one of the inputs (flag -> path): not even --force may replace what is read."""
    for path in outputs:
        for flag, source in inputs.items():
            if source is not None and same_path(path, source):
                raise InputError(f"{shown(path)}: is the {flag} file; name another output")


def check_outside(folder: str | Path, inputs: Iterable[str | Path | None]) -> None:
    """An InputError if an input stands in a folder that will be replaced as a whole."""
    whole = os.path.realpath(folder)
    for source in inputs:
        if source is not None and os.path.realpath(source).startswith(os.path.join(whole, "")):
            raise InputError(f"{shown(source)}: stands in {shown(folder)}, which would be replaced; move it elsewhere")


def check_input(path: str | Path) -> Path:
    """The path if it is a readable local file, else an InputError that says what it is instead."""
    path = Path(path)
    if os.path.isdir(path):  # os.path, because Path's own tests raise on a name that is too long
        raise InputError(f"{shown(path)}: is a directory; expected a file")
    if not os.path.exists(path):
        raise InputError(f"{shown(path)}: no such file")
    if not os.path.isfile(path):  # a pipe can be read once, and most commands read their files twice
        raise InputError(f"{shown(path)}: is a pipe or a device; save its content to a file and name that")
    if not os.access(path, os.R_OK):
        raise InputError(f"{shown(path)}: no permission to read it")
    return path


def check_output(path: str | Path, force: bool = False) -> Path:
    """The path if it may be written, else an InputError. Makes nothing: its folder comes with the file."""
    path = Path(path)
    if os.path.isdir(path):
        raise InputError(f"{shown(path)}: is a directory; expected a file name to write")
    if os.path.exists(path):
        if not os.path.isfile(path):
            raise InputError(f"{shown(path)}: is not a regular file; expected a file name to write")
        if not force:
            raise InputError(f"{shown(path)}: exists already; pass --force to overwrite it")
    elif os.path.islink(path):
        raise InputError(f"{shown(path)}: is a link to nothing; remove it or name another file")
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise InputError(f"{path.name[:40]}...: the file name is too long")
    check_folder(path.parent)
    return path


def check_folder(folder: str | Path) -> None:
    """An InputError if the folder is not there and cannot be made, or nothing can be written into it."""
    if is_url(folder):
        raise InputError(f"{shown(folder)}: expected a folder on this machine, not a URL")
    first = next((path for path in (Path(folder), *Path(folder).parents) if os.path.lexists(path)), Path())
    if not os.path.isdir(first):
        what = "a link to nothing" if os.path.islink(first) and not os.path.exists(first) else "a file"
        raise InputError(f"{shown(first)}: is {what}; expected a folder")
    names = [len(os.fsencode(part)) for part in Path(folder).parts]
    if sum(names) + len(names) > LONGEST_PATH_NAME or max(names, default=0) > LONGEST_NAME:
        raise InputError(f"{shown(folder)}: the path is too long")
    if not os.access(first, os.W_OK | os.X_OK):
        raise InputError(f"{shown(first)}: no permission to write here")


@contextlib.contextmanager
def folder_for(path: str | Path) -> Iterator[None]:
    """Makes the folder of a file for the block. If the block fails, folders that were made for it go again."""
    folder = Path(path).parent
    missing = [step for step in (folder, *folder.parents) if not os.path.isdir(step)]  # the innermost first
    make_folder(folder)
    try:
        yield
    except BaseException:
        for step in missing:
            with contextlib.suppress(OSError):  # no longer empty: somebody else uses it
                os.rmdir(step)
        raise


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
    check_folder(folder)
    try:
        os.makedirs(folder, exist_ok=True)
    except (NotADirectoryError, FileExistsError):
        raise InputError(f"{shown(folder)}: is a file; expected a folder") from None
    except PermissionError:
        raise InputError(f"{shown(folder)}: no permission to make this folder") from None
    except OSError as error:
        if error.errno not in PATH_ERRORS:
            raise
        raise InputError(f"{shown(folder)}: no folder can be made there ({error.strerror})") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"{shown(folder)}: no permission to write here")


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
