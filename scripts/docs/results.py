"""Result files and the comments in a page -> small tables and charts.

A result file (docs/results/data/NAME.json) has a title, a date, the command that made it, the meaning of its spread,
columns and rows. A cell is a number, `[value, half width]`, `[value, low, high]` or a text. A page asks for a part:

    <!-- table
    data: table1-tate
    rows: [One2Seq, PUSL]
    columns: {"#K@2μ all": phrases, "B@2μ all": B@14}
    -->
    <!-- end -->

With `sets: {name: FILE}` or `{name: FILE/PART}` and `metric: NAME` the columns are sets, or parts of one file that
`where` tells apart (`where: {set: "*"}`). A chart has the same keys and `file: NAME.svg`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from pusl_eval.charts import Interval, bar_chart, plain, standalone
from pusl_eval.files import InputError

_BLOCK = re.compile(r"(<!-- (table|chart)\n(.*?)\n-->\n)(.*?)(<!-- end -->)", re.DOTALL)

Grid = tuple[list[str], list[tuple[str, list[Any]]]]  # column titles, and each row's name with its cells


def read(name: str, data: Path) -> dict[str, Any]:
    """One result file, checked."""
    path = data / f"{name}.json"
    if not path.is_file():
        raise InputError(f"there is no result file {path.name} in {data}")
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    wrong = [row for row in table["rows"] if len(row) != len(table["columns"])]
    missing = [key for key in ("title", "date", "command", "spread") if not table.get(key)]
    if wrong or missing:
        raise InputError(
            f"{path}: " + (f"no {', '.join(missing)}" if missing else f"a row of another length: {wrong[0]}")
        )
    return table


def with_tables(text: str, data: Path, page: Path) -> str:
    """The page with every table made anew."""

    def table(match: re.Match[str]) -> str:
        if match[2] == "chart":
            return match[0]
        return match[1] + "\n" + _markdown(_grid(_options(match[3], page), data)) + "\n" + match[5]

    return _BLOCK.sub(table, text)


def charts(text: str, data: Path, page: Path) -> dict[str, str]:
    """The charts that a page asks for: file name -> SVG."""
    found = {}
    for _, kind, options, _, _ in _BLOCK.findall(text):
        if kind == "chart":
            wanted = _options(options, page)
            found[wanted["file"]] = _bars(_grid(wanted, data), wanted)
    return found


def _options(text: str, page: Path) -> dict[str, Any]:
    try:
        options: dict[str, Any] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{page}: a table's comment is not YAML: {error}") from None
    unknown = set(options) - {"data", "sets", "metric", "rows", "columns", "where", "file", "unit", "first", "key"}
    if unknown:
        raise InputError(f"{page}: unknown key in a table's comment: {', '.join(sorted(unknown))}")
    return options


def _grid(options: dict[str, Any], data: Path) -> Grid:
    rows: dict[str, str] = _names(options.get("rows"))
    if "sets" in options:
        tables = {}
        for title, name in options["sets"].items():
            file, _, part = name.partition("/")
            tables[title] = _cells(read(file, data), options, part or title)
        metric = options["metric"]
        rows = rows or {name: name for name in next(iter(tables.values()))}
        return list(tables), [
            (shown, [t.get(row, {}).get(metric) for t in tables.values()]) for row, shown in rows.items()
        ]
    table = read(options["data"], data)
    cells = _cells(table, options)
    columns = _names(options.get("columns")) or {c: c for c in table["columns"][1:]}
    rows = rows or {name: name for name in cells}
    for row in rows:
        if row not in cells:
            raise InputError(f"{options['data']}.json has no row {row!r}")
    return list(columns.values()), [(shown, [cells[row].get(c) for c in columns]) for row, shown in rows.items()]


def _cells(table: dict[str, Any], options: dict[str, Any], part: str = "") -> dict[str, dict[str, Any]]:
    """Row name -> column -> cell, of the rows that `where` lets through (`{set: tate}`; `*` stands for `part`)."""
    columns, wanted = table["columns"], {**options.get("where", {})}
    key = columns.index(options.get("key", columns[len(wanted)]))
    found: dict[str, dict[str, Any]] = {}
    for row in table["rows"]:
        named = dict(zip(columns, row, strict=True))
        if all(named[column] == (part if value == "*" else value) for column, value in wanted.items()):
            found[str(row[key])] = named
    return found


def _names(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {str(v): str(v) for v in value}


def _markdown(grid: Grid) -> str:
    columns, rows = grid
    digits = [max((_digits(cells[i]) for _, cells in rows), default=0) for i in range(len(columns))]
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name, cells in rows:
        lines.append("| " + " | ".join([name, *(_shown(c, d) for c, d in zip(cells, digits, strict=True))]) + " |")
    return "\n".join(lines) + "\n"


def _digits(cell: Any) -> int:
    """Digits behind the point of a cell's numbers; JSON drops trailing zeros, a table's column should not."""
    numbers = [n for n in (cell if isinstance(cell, list) else [cell]) if isinstance(n, float)]
    return max((len(str(n).partition(".")[2]) for n in numbers), default=0)


def _shown(cell: Any, digits: int) -> str:
    if cell is None:
        return ""
    if not isinstance(cell, list):
        return _number(cell, digits)
    first, *rest = (_number(n, digits) for n in cell)
    return f"{first} [{rest[0]}, {rest[1]}]" if len(rest) == 2 else f"{first} ± {rest[0]}"


def _number(value: Any, digits: int) -> str:
    if isinstance(value, (int, float)):
        return (f"{value:,.{digits}f}" if isinstance(value, float) else f"{value:,}").replace("-", "−")
    return str(value)


def _bars(grid: Grid, options: dict[str, Any]) -> str:
    """Grouped bars: a group per column, a color per row."""
    columns, rows = grid
    series = {name: [_value(c) for c in cells] for name, cells in rows}
    whiskers = {name: [_interval(c) for c in cells] for name, cells in rows}
    svg = bar_chart(columns, series, options.get("unit", "percent"), intervals=whiskers, y_format=plain)
    return standalone((svg, list(series)))


def _value(cell: Any) -> float | None:
    found = cell[0] if isinstance(cell, list) else cell
    return float(found) if isinstance(found, (int, float)) else None


def _interval(cell: Any) -> Interval:
    if not isinstance(cell, list):
        return None
    return (cell[1], cell[2]) if len(cell) == 3 else (cell[0] - cell[1], cell[0] + cell[1])
