"""Several files -> one folder that is there completely or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pusl_eval.files import (
    InputError,
    Journal,
    check_apart,
    check_folder,
    put_together,
    same_path,
    staging_folder,
    write_json,
)


@contextlib.contextmanager
def writing_folder(
    out: str | Path, manifest: str, force: bool = False, inputs: Iterable[str | Path] = ()
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields (a folder to write into, a dict for the manifest); at the end the files stand in `out`.

    The manifest is a JSON file that says how the folder was made and lists its `files`. A new folder
    appears at once, by a rename. Where `out` holds files already, the new ones are moved in one by one: that needs
    `force` if one of them, or the manifest, would be overwritten and is not what a killed run left there. Files
    of the earlier manifest are removed (a test file of an earlier split would hold texts that are in the
    training file now). Other files are left alone, and none of the `inputs` is replaced or removed.
    """
    out = Path(out)
    _check_folder(out, manifest, force)
    stale = _listed(out / manifest) if force else set()
    _check_inputs(out, stale, inputs)
    about: dict[str, Any] = {}
    fixed = out.is_symlink() or same_path(out, ".")  # a rename would replace the link, or fail
    shared = out.exists() and (fixed or any(out.iterdir()))
    with staging_folder(out / "new" if shared else out) as work:
        yield work, about
        about["files"] = sorted(path.name for path in work.iterdir())
        write_json(work / manifest, about)
        if shared:
            names = {path.name for path in work.iterdir()}
            _check_inputs(out, names, inputs)
            _move_files(work, out, manifest, force, stale - names)
        else:
            os.replace(work, out)  # in one step; an empty folder may be there


def _check_folder(out: Path, manifest: str, force: bool) -> None:
    check_folder(out)
    if (out / manifest).exists() and not force and not Journal(out / manifest).owns(out / manifest):
        raise InputError(f"{out}: holds results already ({manifest}); pass --force to overwrite them")


def _listed(manifest: Path) -> set[str]:
    """The files of an earlier run."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return {Path(name).name for name in json.loads(manifest.read_text())["files"]}
    return set()


def _check_inputs(out: Path, names: Iterable[str], inputs: Iterable[str | Path]) -> None:
    targets = [out / name for name in names]
    for source in inputs:
        check_apart(targets, {"input": source})


def _move_files(work: Path, out: Path, manifest: str, force: bool, stale: Iterable[str]) -> None:
    names = [path.name for path in work.iterdir()]
    for name in stale:
        with contextlib.suppress(OSError):
            (out / name).unlink()
    # The manifest says "complete", so it comes first here and is moved last.
    put_together({out / name: work / name for name in sorted(names, key=lambda name: name != manifest)}, force)
