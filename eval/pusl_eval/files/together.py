"""Several outputs of one command -> all of them, or an unfinished run that the same command finishes.

One rename puts one file in place; several take several, and a kill may come between two of them. So everything is
written first. Then a journal beside the first output, `.NAME.unfinished`, says what is about to stand where, and only
then are the files renamed. After a kill the same command finds the journal: what it names, and nobody has touched
since, is that command's own work. It may be replaced without --force.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from pusl_eval.errors import InputError, shown
from pusl_eval.files.atomic import replace_folder, staging_folder, write_json
from pusl_eval.files.jsonl import read_json
from pusl_eval.files.storage import check_output
from pusl_eval.files.temporaries import hidden_start, remove


class Journal:
    """What an earlier run has begun to put in place, beside its first output."""

    def __init__(self, first: str | Path) -> None:
        first = Path(os.path.realpath(first))
        self.path = first.parent / f"{hidden_start(first)}unfinished"  # with_name refuses a folder such as /
        self._found: dict[str, Any] = {}
        if os.path.isfile(self.path):
            with contextlib.suppress(InputError):  # a damaged one owns nothing
                self._found = read_json(self.path)

    def owns(self, path: str | Path) -> bool:
        """Whether `path` is as that run left it."""
        known = self._found.get(self._name(path))
        if not isinstance(known, list):  # the usual case, and `path` may be a folder with a million files
            return False
        about = _identity(Path(os.path.realpath(path)))
        return about is not None and about in known

    def owned(self) -> list[Path]:
        """Everything of that run that is in place."""
        paths = [self.path.parent / os.fsdecode(unquote_to_bytes(name)) for name in self._found]
        return [path for path in paths if self.owns(path)]

    def write(self, moves: Mapping[Path, Path]) -> None:
        """Says what is about to stand where (target -> where it is now). What is in place stays known."""
        found = {self._name(path): [_identity(path)] for path in self.owned()}
        for target, place in moves.items():
            found.setdefault(self._name(target), []).append(_identity(place))
        self._found = found
        write_json(self.path, found, force=True)

    def remove(self) -> None:
        """The run is finished."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _name(self, path: str | Path) -> str:
        return quote(os.fsencode(os.path.relpath(os.path.realpath(path), self.path.parent)))  # names need not be UTF-8


def check_outputs(targets: Sequence[str | Path], force: bool = False) -> None:
    """`check_output` for several files; those of an earlier run of this command that was killed may be replaced."""
    journal = Journal(targets[0])
    for target in targets:
        check_output(target, force or journal.owns(target))


@contextlib.contextmanager
def written_together(targets: Sequence[str | Path], force: bool = False) -> Iterator[list[Path]]:
    """A place to write for each target, of the same name. At the end all of them are put in place."""
    real = [Path(os.path.realpath(target)) for target in targets]  # a link stays a link
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(staging_folder(target)) / target.name for target in real]
        yield places
        put_together(dict(zip(real, places, strict=True)), force)


def put_together(moves: Mapping[Path, Path], force: bool = False) -> None:
    """Renames finished files and folders (target -> where it is now).

    The first target stands for the whole: the journal is beside it, and it comes last. What a killed run has put in
    place, and this one does not, is removed: it belongs to nothing.
    """
    journal = Journal(next(iter(moves)))
    for target in moves:
        if os.path.lexists(target) and not force and not journal.owns(target) and not _is_empty_folder(target):
            raise InputError(f"{shown(target)}: exists already; pass --force to overwrite it")
    for path in journal.owned():
        if path not in moves:
            remove(path)
    journal.write(moves)
    for target, place in reversed(list(moves.items())):
        if place.is_dir():
            replace_folder(place, target)
        else:
            os.replace(place, target)
    journal.remove()


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _identity(path: Path) -> Any:
    """What tells a file from any other, and survives a rename; for a folder, that of all that is in it."""
    try:
        if path.is_dir() and not path.is_symlink():
            return {child.name: _identity(child) for child in path.iterdir()}
        about = path.lstat()
    except OSError:
        return None
    return [about.st_ino, about.st_size, about.st_mtime_ns]
