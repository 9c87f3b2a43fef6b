"""Predictions or examples -> what search engines load, and back.

Elasticsearch and OpenSearch: bulk NDJSON, an action line and a document line per item. Vespa: one JSON operation per
line for `vespa feed`. By default both update the documents that are there and create those that are not, so other
fields of a document stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pusl.data.convert_config import ConvertConfig, Report
from pusl_eval.files import InputError, Row, open_atomic, read_rows, to_json, type_name

ACTIONS = ("index", "create", "update", "delete")
OPERATIONS = ("put", "update", "remove")
SCORES = {"scores": "keyphrase_scores", "probabilities": "keyphrase_probabilities"}


def is_bulk(first: Row) -> bool:
    """Whether a first line is a bulk action or a document with its `_source`."""
    return "_source" in first or (len(first) == 1 and next(iter(first)) in ACTIONS and isinstance(_only(first), dict))


def is_feed(first: Row) -> bool:
    """Whether a first line is a Vespa operation."""
    return any(isinstance(first.get(name), str) and first[name].startswith("id:") for name in OPERATIONS)


def _only(row: Row) -> Any:
    return next(iter(row.values()))


def write_feed(to: str | Path, rows: Iterable[Row], config: ConvertConfig, report: Report, force: bool) -> int:
    """Writes the operations of all items; returns how many items."""
    lines = _bulk_lines if report.to_format == "elasticsearch" else _vespa_lines
    count = 0
    with open_atomic(to, force) as stream:
        for row in rows:
            count += 1
            stream.writelines(to_json(line) + "\n" for line in lines(row, config))
    return count


def _document(row: Row) -> Row:
    """The fields of a search document: lists named so that they stay together in a mapping."""
    return {SCORES.get(name, name): value for name, value in row.items() if name != "id"}


def _bulk_lines(row: Row, config: ConvertConfig) -> list[Row]:
    action = {config.action: {"_index": config.index, "_id": row["id"]}}
    document = _document(row)
    return [action, {"doc": document, "doc_as_upsert": True} if config.action == "update" else document]


def _vespa_lines(row: Row, config: ConvertConfig) -> list[Row]:
    name = f"id:{config.namespace}:{config.document_type}::{quote(row['id'], safe='')}"
    document = _document(row)
    if config.action == "update":
        fields = {field: {"assign": value} for field, value in document.items()}
        return [{"update": name, "create": True, "fields": fields}]
    return [{"put": name, "fields": document}]


def read_bulk(source: str, report: Report) -> Iterator[tuple[int, Row]]:
    """Rows of a bulk file, or of lines with `_id` and `_source` as dump tools write them."""
    lines = read_rows(source, kind="jsonl")
    for number, line in lines:
        if "_source" in line:
            yield number, _row(line.get("_id"), line["_source"], source, number)
            continue
        if not is_bulk(line):
            raise InputError(f'{source}:{number}: expected an action such as {{"index": {{"_id": "a1"}}}}')
        name, about = next(iter(line.items()))
        if name == "delete":
            report.note("delete actions left out")
            continue
        number, document = next(lines, (number, None))
        if document is None:
            raise InputError(f"{source}:{number}: the last action has no document line; the file is cut short")
        yield (
            number,
            _row(about.get("_id"), document.get("doc", document) if name == "update" else document, source, number),
        )


def read_vespa(source: str, report: Report) -> Iterator[tuple[int, Row]]:
    """Rows of a Vespa feed of JSON lines."""
    for number, line in read_rows(source, kind="jsonl"):
        if not is_feed(line):
            raise InputError(f'{source}:{number}: expected an operation such as {{"put": "id:shop:item::a1", ...}}')
        name = next(name for name in OPERATIONS if name in line)
        if name == "remove":
            report.note("remove operations left out")
            continue
        item = unquote(line[name].split("::", 1)[-1])
        fields = line.get("fields")
        if isinstance(fields, dict):
            fields = {
                field: value["assign"] if isinstance(value, dict) and "assign" in value else value
                for field, value in fields.items()
            }
        yield number, _row(item, fields, source, number)


def _row(item: Any, document: Any, source: str, number: int) -> Row:
    if not isinstance(document, dict):
        raise InputError(f"{source}:{number}: expected a document (an object), found {type_name(document)}")
    own = {name: field for field, name in SCORES.items()}
    row: Row = {own.get(str(name), str(name)): value for name, value in document.items()}
    return row if item is None else {**row, "id": item}
