"""Files of the XMC repository -> examples: raw text with label numbers, or label files in libsvm form."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pusl.data.convert_config import ConvertConfig, Report
from pusl.examples import Columns, Example, render_text
from pusl_eval.columns import ItemFields
from pusl_eval.files import InputError, Row, check_input, read_lines, read_rows


def read_xmc(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
    """`trn.json`: one object per line with uid, title, content and the label numbers target_ind."""
    path = check_input(source)
    names = _label_names(_beside(path, config))
    fields = ItemFields(columns, table=False)
    for number, row in read_rows(path, kind="jsonl"):
        targets = row.get("target_ind")
        if not isinstance(targets, list) or not all(type(target) is int for target in targets):
            raise InputError(f"{path}:{number}: 'target_ind' must be a list of label numbers; is this an XMC file?")
        if columns.text_template:
            text = render_text(row, fields, path, number)
        else:
            title, content = (str(row.get(name) or "").strip() for name in ("title", "content"))
            text = f"{title}. {content}" if title and content else title or content
        item = str(number) if config.number_ids or row.get("uid") is None else str(row["uid"])
        yield Example(item, text, _names(targets, names, path, number))


def _beside(path: Path, config: ConvertConfig) -> Path:
    if config.labels:
        return check_input(config.labels)
    for name in ("lbl.json", "lbl.json.gz", "lbl.raw.json", "lbl.raw.json.gz"):
        if (path.parent / name).is_file():
            return path.parent / name
    raise InputError(f"{path}: no lbl.json(.gz) beside it. Name the file of label names with --labels")


def _label_names(path: Path) -> list[str]:
    """Label names by number: the titles of lbl.json, or one name per line."""
    as_json = path.name.lower().removesuffix(".gz").endswith((".json", ".jsonl"))
    if not as_json:
        names = [line.strip() for _, line in read_lines(path)]
    else:
        names = [_title(row, path, number) for number, row in read_rows(path, kind="jsonl")]
    if not names:
        raise InputError(f"{path}: is empty; expected the labels' names")
    return names


def _title(row: Row, path: Path, number: int) -> str:
    title = row.get("title") or row.get("name") or row.get("uid")
    if not isinstance(title, str):
        raise InputError(f"{path}:{number}: no 'title' (found: {', '.join(row)}); expected a label's name")
    return title.strip()


def _names(targets: list[int], names: list[str], path: str | Path, number: int) -> list[str]:
    for target in targets:
        if not 0 <= target < len(names):
            raise InputError(f"{path}:{number}: label {target} has no name; the label file has {len(names)}")
    return [names[target] for target in targets if names[target]]


def read_libsvm(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
    """Lines `l1,l2 feature:value ...` after a header `points features labels`, or `label:value ...`
    after a header `points labels`; the n-th line of the text file is the n-th item's text."""
    if config.texts is None or config.labels is None:
        raise InputError("--format libsvm needs the items' texts (--texts FILE) and the label names (--labels FILE)")
    names = _label_names(check_input(config.labels))
    texts = read_lines(config.texts)
    lines = read_lines(source)
    _, first = next(lines, (0, ""))
    header = first.split()
    if len(header) not in (2, 3) or not all(part.isdigit() for part in header):
        raise InputError(f"{source}:1: expected a header `points features labels` or `points labels`, found {first!r}")
    points, labels = int(header[0]), int(header[-1])
    if labels > len(names):
        raise InputError(f"{source}:1: says {labels} labels, but {config.labels} names {len(names)}")
    number = 0
    for number, (line, text) in enumerate(lines, 1):
        title = next(texts, None)
        if title is None:
            raise InputError(f"{config.texts}: has {number - 1} lines, but {source} has more items")
        head = text.split() if len(header) == 2 else text.split(" ", 1)[0].split(",")
        if len(header) == 3 and ":" in text.split(" ", 1)[0]:
            head = []  # no label: the line starts with its features
        try:
            targets = [int(part.partition(":")[0]) for part in head if part]
        except ValueError:
            raise InputError(f"{source}:{line}: expected label numbers, found {text[:40]!r}") from None
        yield Example(str(number), title[1], _names(targets, names, source, line))
    if number != points:
        raise InputError(f"{source}: the header says {points} items, but {number} lines follow it")
    if next(texts, None) is not None:
        raise InputError(f"{config.texts}: has more lines than {source} has items ({number})")
