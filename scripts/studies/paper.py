"""python scripts/studies/paper.py TABLE --data DIR --out DIR [--smoke]

Computes a table or figure of one of the sources on your data: `--list` names them all. DIR holds train, dev and
test files (and complete.jsonl, all labels of the test items, where they are known). OUT gets TABLE.md, TABLE.json
and, where the source has a picture, TABLE.svg. A study that was stopped continues with the same command: finished
rows are stored in OUT/TABLE/cells, models that several tables use in OUT/shared.

`--smoke` runs the same steps in seconds, with tiny models and few items, on a simulated shop if --data is not
given. Its numbers mean nothing. `all` or the name of a source (pusl, missing, ...) runs several tables.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures import load_pyplot
from tables.registry import DATA_FILES, Item, Options, Row, Work, load_items, text_table

from pusl_eval.errors import exit_code
from pusl_eval.files import InputError, open_atomic, write_json
from pusl_eval.flags import integer

SETTINGS = "paper.json"  # in OUT: what its results were computed with


def main(words: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="what to compute: a name of --list, a source or all")
    parser.add_argument("--list", action="store_true", help="print every table and figure")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with train, dev and test files")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results, and for models on the way")
    parser.add_argument("--smoke", action="store_true", help="tiny models and few items: seconds, numbers mean nothing")
    parser.add_argument("--model", help="model to start from (default: the table's own)")
    parser.add_argument("--steps", type=integer(2), help="optimizer steps of every trained system")
    parser.add_argument("--seeds", type=integer(0), nargs="+", help="one run per seed")
    parser.add_argument(
        "--judge", metavar="MODEL", help="language model for tables of verdicts, at $OPENAI_BASE_URL "
        "(default: a rule: every word of the phrase is in the text)",
    )  # fmt: skip
    args = parser.parse_args(words)
    items = load_items()
    if args.list:
        print(listing(list(items.values())))
        return 0
    if not args.tables:
        raise InputError("no TABLE; --list prints every name")
    chosen = choose(args.tables, items)
    if args.out is None:
        raise InputError("--out DIR is missing: where results are written")
    if args.data is None and not args.smoke:
        raise InputError("--data DIR is missing: a folder with train, dev and test files (or --smoke)")
    if args.data is not None and not args.data.is_dir():
        raise InputError(f"--data {args.data}: no such folder")
    options = Options(args.model, args.steps, tuple(args.seeds) if args.seeds else None, args.judge)
    check_settings(args.out, args.data, args.smoke, options)
    for item in chosen:
        began = time.perf_counter()
        work = Work(item.name, args.out, args.data, args.smoke, options)
        print(run_item(item, work))
        print(f"\n{args.out / item.name}.md ({time.perf_counter() - began:.1f} s)\n")
    return 0


def choose(names: Sequence[str], items: dict[str, Item]) -> list[Item]:
    """Names, sources (`pusl` for every pusl-...) or `all` -> items, each once."""
    found: dict[str, Item] = {}
    for name in names:
        matching = {key: item for key, item in items.items() if name in ("all", key, key.split("-")[0])}
        if not matching:
            raise InputError(f"{name}: no such table; --list prints every name")
        found |= matching
    return list(found.values())


def check_settings(out: Path, data: Path | None, smoke: bool, options: Options) -> None:
    """Stores what the results in `out` are computed with; other settings need another folder."""
    import json

    sizes: dict[str, int] = {}
    if data is not None:
        sizes = {p.name: p.stat().st_size for p in sorted(data.iterdir()) if p.name.split(".")[0] in DATA_FILES}
    settings: dict[str, Any] = {"data": sizes, "smoke": smoke, **dataclasses.asdict(options)}
    settings["seeds"] = list(options.seeds) if options.seeds else None
    path = out / SETTINGS
    if not path.exists():
        write_json(path, settings)
        return
    stored = json.loads(path.read_text(encoding="utf-8"))
    for name, value in settings.items():
        if stored.get(name) != value:
            raise InputError(f"{out}: holds results of another --{name}; use another --out, or the same settings")


def run_item(item: Item, work: Work) -> str:
    """Computes an item, writes its files and returns the text."""
    if item.picture is not None:
        load_pyplot()  # what is missing is said before hours of work
    rows = list(item.compute(work))
    if not rows:
        raise InputError(f"{item.name}: the data gave no rows")
    lines = [f"## {item.source}, {item.item}: {item.shows}", "", text_table(rows, item.digits)]
    lines += ["", item.note] if item.note else []
    if item.picture is not None:
        draw(item, rows, work.root / f"{item.name}.svg")
        lines += ["", f"![{item.item}]({item.name}.svg)"]
    if work.smoke:
        lines += ["", "A smoke run: the numbers mean nothing."]
    text = "\n".join(lines)
    with open_atomic(work.root / f"{item.name}.md", force=True) as stream:
        stream.write(text + "\n")
    about = {"name": item.name, "source": item.source, "item": item.item, "shows": item.shows, "smoke": work.smoke}
    write_json(work.root / f"{item.name}.json", {**about, "rows": [dict(row) for row in rows]}, force=True)
    return text


def draw(item: Item, rows: Sequence[Row], path: Path) -> None:
    """The item's picture as SVG; the same rows give the same bytes."""
    assert item.picture is not None
    pyplot = load_pyplot()
    style: Any = {
        "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": "#e4e4e4", "axes.axisbelow": True, "legend.frameon": False, "svg.hashsalt": "pusl",
    }  # fmt: skip
    with pyplot.rc_context(style):
        figure = pyplot.figure(figsize=(7, 4.2), layout="constrained")
        item.picture(rows, figure)
        with open_atomic(path, force=True, mode="wb") as stream:
            figure.savefig(stream, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def listing(items: Sequence[Item]) -> str:
    """Every item in a line, under its source."""
    lines = []
    for source in dict.fromkeys(item.source for item in items):
        lines.append(source)
        lines += [f"  {i.name:<20} {i.item:<14} {i.shows}" for i in items if i.source == source]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(exit_code(main, "paper"))
