"""A fused model folder: what its pusl.json says, and how the folder appears whole or not at all.

DIR/pusl.json      sources, depth, defaults; `paradigm` is "fused"
DIR/ranker.npz     the ranker's trees; told.npz the same for items of which some keyphrases are known
DIR/memory/        labeled items: neighbors, label counts
DIR/sources/NAME/  each generator's and classifier's own folder
DIR/fusion.json    what was measured on the dev items
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pusl_eval.errors import damage_refused
from pusl_eval.files import InputError, check_folder, folder_atomic, read_json

FUSED = "fused"
GENERATOR, PREDICTIONS = "generator", "predictions"
WITHOUT_FOLDER = ("text", "knn", PREDICTIONS)  # kinds of sources that keep nothing in DIR/sources
FORMAT = 1
REPAIR = "copy the folder again or run `pusl fuse` again"


def is_fused(folder: str | os.PathLike[str]) -> bool:
    """Whether the folder was made by `pusl fuse`."""
    try:
        meta = read_json(Path(folder) / "pusl.json")
    except (InputError, OSError):
        return False
    return meta.get("paradigm") == FUSED


def read_fused(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The checked pusl.json of a fused model."""
    path = Path(folder) / "pusl.json"
    if not is_fused(folder):
        raise InputError(_why_not_fused(Path(folder)))
    meta = read_json(path, "run `pusl fuse` again")
    if not isinstance(meta.get("format", 0), int):
        raise InputError(f"{path}: 'format' must be an integer, found {meta['format']!r}; run `pusl fuse` again")
    if meta.get("format", 0) > FORMAT:
        raise InputError(f"{path}: format {meta['format']} is newer than this PUSL knows ({FORMAT}); update PUSL")
    missing = {"sources", "depth", "defaults", "memory"} - set(meta)
    if missing:
        raise InputError(f"{path}: has no {', '.join(sorted(missing))}; run `pusl fuse` again")
    with damage_refused(path, "its content", REPAIR):
        _check_whole(Path(folder), meta)
    return dict(meta)


def _why_not_fused(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder}: no such model folder"
    if not (folder / "pusl.json").is_file():
        return f"{folder}: not a fused model (no pusl.json); name a folder made by `pusl fuse`"
    paradigm = read_json(folder / "pusl.json", REPAIR).get("paradigm")
    return (
        f"{folder}: a trained model ({paradigm}), not a fused one; "
        f"`pusl fuse --sources {folder.absolute().name}={folder} knn text --out NEW` makes one of it"
    )


def _check_whole(folder: Path, meta: dict[str, Any]) -> None:
    """An InputError that names a part of the folder that is missing, or a report that is damaged."""
    own = [source["name"] for source in meta["sources"] if source["kind"] not in WITHOUT_FOLDER]
    for part in ("ranker.npz", meta["memory"], *(f"sources/{name}" for name in own)):
        if not (folder / part).exists():
            raise InputError(f"{folder}: {part} is missing; {REPAIR}")
    if (folder / "fusion.json").exists():
        read_json(folder / "fusion.json", REPAIR)


def generator_folders(folder: str | os.PathLike[str]) -> list[Path]:
    """The folders of the trained models in a model folder: itself, or a fused model's generators."""
    if not is_fused(folder):
        return [Path(folder)]
    sources = read_fused(folder)["sources"]
    return [Path(folder) / "sources" / source["name"] for source in sources if source["kind"] == GENERATOR]


def check_target(folder: str | Path, force: bool) -> None:
    """An InputError unless a fused model may be written there."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; expected a folder to save the model in")
    if folder.is_dir() and any(folder.iterdir()):
        if not is_fused(folder):
            raise InputError(f"{folder}: holds other files; name a new folder")
        if not force:
            raise InputError(f"{folder}: exists already; pass --force to overwrite it")
    check_folder(folder)


@contextlib.contextmanager
def new_folder(folder: str | Path, force: bool) -> Iterator[Path]:
    """A folder beside `folder` to write into, renamed at the end; on any error nothing is left."""
    folder = Path(folder).absolute()
    check_target(folder, force)
    with folder_atomic(folder) as partial:
        yield partial
