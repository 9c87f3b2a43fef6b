"""An interaction log (item, query, count) -> examples: the rows of an item added up to keyphrases with counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pusl.data.convert_config import ConvertConfig, Report
from pusl.examples import Columns, Example, render_text
from pusl_eval.columns import ItemFields, missing_column
from pusl_eval.files import InputError, Row, kind_of, read_rows
from pusl_eval.normalize import normalize


def read_log(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
    """Rows (item id, text, query, count), added up to keyphrases with counts, the most frequent first."""
    items: dict[str, tuple[str, dict[str, int], Row]] = {}
    spelling: dict[str, str] = {}  # the first spelling of a query, shared by all items
    table = kind_of(source) != "jsonl"
    fields = ItemFields(columns, table)
    for number, row in read_rows(source, raw=True, dialect=columns.dialect):
        item = _cell(row, columns.id_column, "--id-column", source, number, table)
        query = _cell(row, config.query_column, "--query-column", source, number, table)
        count = _count(row, config.count_column, source, number)
        if item not in items:
            if columns.text_template:
                text = render_text(row, fields, source, number)
            else:
                flag = "--text-column, or build it with --text-template"
                text = _cell(row, columns.text_column, flag, source, number, table)
            kept = {
                name: row[column]
                for name, column in (("timestamp", columns.timestamp_column), ("group", columns.group_column))
                if row.get(column) not in (None, "")
            }
            items[item] = (text, {}, kept)
        if not query.strip():
            report.note("rows with a blank query left out")
            continue
        form = normalize(query)
        spelling.setdefault(form, query.strip())
        counts = items[item][1]
        counts[form] = counts.get(form, 0) + count
    if not items:
        raise InputError(f"{source}: is empty; expected at least one row")
    for item, (text, counts, kept) in items.items():
        ranked = sorted(counts.items(), key=lambda pair: -pair[1])
        frequent = [(form, count) for form, count in ranked if count >= config.min_count]
        group = str(kept["group"]) if "group" in kept else None
        time = kept.get("timestamp")
        time = time if time is None or isinstance(time, (str, int, float)) else str(time)
        phrases = [spelling[form] for form, _ in frequent]
        yield Example(item, text, phrases, [count for _, count in frequent], time, group)


def _cell(row: Row, column: str, flag: str, source: str, number: int, table: bool) -> str:
    if column not in row:
        if table:
            raise missing_column(source, column, list(row), flag)
        raise InputError(f"{source}:{number} has no field '{column}' (found: {', '.join(row)}). Name it with {flag}")
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InputError(f"{source}:{number}: '{column}' must be text, found {value!r}")
    return str(value)


def _count(row: Row, column: str, source: str, number: int) -> int:
    value: Any = row.get(column, 1)
    try:
        count = int(value)
        if isinstance(value, bool) or count < 0 or (isinstance(value, float) and value != count):
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{source}:{number}: '{column}' must be an integer >= 0, found {value!r}") from None
    return count
