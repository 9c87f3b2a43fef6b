"""A function that computes rows + what it shows -> a table or figure of a source, run by scripts/studies/paper.py.

    @declare("pusl-table1", source=PUSL, item="Table 1", shows="every system, narrow and diverse items")
    def table1(work: Work) -> list[Row]:
        return [{"system": name, **work.cell(name, lambda: score(name))} for name in SYSTEMS]

`work.data` is the user's folder, or a small simulated shop. `work.cell(name, compute)` stores what `compute`
returns as JSON, so that a study that was stopped goes on where it was. `work.shared` is a folder for models that
several items use. A figure is a declaration with `picture=`, a function that draws the rows on a matplotlib figure.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pusl_eval.files import InputError, write_json

MODULES = ("pusl", "missing_labels", "coverage", "tail_labels", "fastxml")  # one per source
DATA_FILES = ("train", "dev", "test", "complete")
ENDINGS = (".jsonl", ".jsonl.gz", ".parquet", ".csv")
SMOKE_ITEMS = 160  # of the simulated shop

Row = Mapping[str, Any]  # column -> number, text or None
Found = TypeVar("Found")


@dataclass(frozen=True)
class Options:
    """What the user asked for besides the item; None leaves the choice to the item."""

    model: str | None = None  # to start from
    steps: int | None = None  # optimizer steps of every trained system
    seeds: tuple[int, ...] | None = None
    judge: str | None = None  # language model that judges, at $OPENAI_BASE_URL; None: a rule about words


@dataclass
class Work:
    """What an item gets to work with."""

    name: str  # of the item
    root: Path  # --out
    given: Path | None  # --data
    smoke: bool = False
    options: Options = field(default_factory=Options)

    @property
    def out(self) -> Path:
        """The item's own folder."""
        return self.root / self.name

    @property
    def shared(self) -> Path:
        """A folder for models and predictions that several items use."""
        return self.root / "shared"

    @property
    def data(self) -> Path:
        """The folder with train, dev and test files; a small simulated shop if none was given."""
        if self.given is not None:
            return self.given
        folder = self.shared / "shop"
        if not (folder / "simulation.json").exists():
            from pusl.data.simulate import SimulateConfig, simulate

            simulate(folder, SimulateConfig(items=SMOKE_ITEMS, types=6, brands=6, queries_per_item=5))
        return folder

    def file(self, name: str) -> Path:
        """`train` -> the data folder's file of that name; an InputError if there is none."""
        return find_file(self.data, name)

    def optional_file(self, name: str) -> Path | None:
        """The data folder's file of that name, or None."""
        return next(_files(self.data, name), None)

    def seeds(self, usual: Sequence[int]) -> Sequence[int]:
        """The seeds to run: the user's, one in a smoke run, or the item's own."""
        return self.options.seeds or (usual[:1] if self.smoke else usual)

    def cell(self, name: str, compute: Callable[[], Found]) -> Found:
        """What `compute` returns, from the item's folder if it was computed before. It has to be JSON."""
        path = self.out / "cells" / f"{re.sub(r'[^A-Za-z0-9.@_=-]+', '_', name)}.json"
        if path.exists():
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if stored["name"] == name:
                return stored["value"]  # type: ignore[no-any-return]
            raise InputError(f"{path}: holds {stored['name']!r}, not {name!r}; use names that differ in their letters")
        value = compute()
        write_json(path, {"name": name, "value": value})
        # As the next run reads it: tuples become lists now, not then.
        return json.loads(path.read_text(encoding="utf-8"))["value"]  # type: ignore[no-any-return]


def find_file(folder: Path, name: str) -> Path:
    """The folder's file of that name, with any supported suffix."""
    for path in _files(folder, name):
        return path
    raise InputError(f"{folder}: no {name}{ENDINGS[0]}, {', '.join(ENDINGS[1:-1])} or {ENDINGS[-1]}")


def _files(folder: Path, name: str) -> Iterator[Path]:
    return (path for ending in ENDINGS if (path := folder / (name + ending)).is_file())


Compute = Callable[[Work], Sequence[Row]]
Picture = Callable[[Sequence[Row], Any], None]  # rows, a matplotlib figure


@dataclass(frozen=True)
class Item:
    """One table or figure of a source."""

    name: str
    source: str
    item: str
    shows: str
    compute: Compute
    picture: Picture | None = None
    digits: int = 1  # behind the point, in the text table
    note: str = ""  # printed below the table


ITEMS: dict[str, Item] = {}


def declare(
    name: str, *, source: str, item: str, shows: str, picture: Picture | None = None, digits: int = 1, note: str = ""
) -> Callable[[Compute], Compute]:
    """Registers a function as a table or figure; two of one name are an error."""

    def register(compute: Compute) -> Compute:
        if name in ITEMS:
            raise ValueError(f"two items are called {name}")
        ITEMS[name] = Item(name, source, item, shows, compute, picture, digits, note)
        return compute

    return register


def load_items() -> dict[str, Item]:
    """Every declared item, source by source."""
    for module in MODULES:
        if (Path(__file__).parent / f"{module}.py").is_file():
            importlib.import_module(f"tables.{module}")
    return ITEMS


def text_table(rows: Sequence[Row], digits: int = 1) -> str:
    """Rows as a Markdown table with aligned columns.

    >>> print(text_table([{"system": "kNN", "F1@O": 46.72, "items": 3}]))
    | system | F1@O | items |
    |---|---|---|
    | kNN | 46.7 | 3 |
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for row in rows:
        lines.append("| " + " | ".join(_shown(row.get(column), digits) for column in columns) + " |")
    return "\n".join(lines)


def _shown(value: Any, digits: int) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
