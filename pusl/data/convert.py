"""Other people's files -> examples.

Five sources: the raw text of the XMC repository, label files in libsvm form, interaction logs, Hugging
Face datasets, and tables with a list column. All are read in one pass and written as they are read,
except logs, whose (item, query) pairs have to be added up first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pusl.config import check, option
from pusl.data import duplicates
from pusl.data.sniff import sniff
from pusl.examples import Columns, Example, SeenIds, read_examples, render_text, write_examples
from pusl_eval.columns import ItemFields, choose_ids, missing_column
from pusl_eval.files import InputError, Row, check_input, check_output, kind_of, read_lines, read_rows
from pusl_eval.normalize import collapse, distinct, normalize

SEPARATORS = (";", ",")  # looked for in keyphrases that may be whole lists
TWICE = f"{duplicates.FIX}, or --number-ids"
FORMATS = ("auto", "xmc", "libsvm", "log", "hf", "table")


@dataclass(frozen=True)
class ConvertConfig:
    """What the source is and where its parts are."""

    format: str = option("auto", "what the source is; auto looks at it", choices=FORMATS)
    labels: str | None = option(
        None, "xmc, libsvm: label names, lbl.json(.gz) or one name per line (default: lbl.json beside the source)"
    )
    texts: str | None = option(None, "libsvm: the items' texts, one per line")
    query_column: str = option("query", "log: column that holds the query")
    count_column: str = option("count", "log: column that holds the interactions; without it a row counts as one")
    min_count: int = option(1, "log: skip queries with fewer interactions with an item", minimum=1)
    split: str | None = option(None, "hf: split of the dataset, e.g. train")
    config_name: str | None = option(None, "hf: configuration (subset) of the dataset")
    streaming: bool = option(False, "hf: stream from the hub instead of downloading first")
    number_ids: bool = option(False, "use row numbers as ids, as is done without an id column")
    drop_unlabeled: bool = option(False, "skip items without keyphrases")
    duplicates: str = option("error", duplicates.HELP, choices=duplicates.WAYS)


@dataclass
class Report:
    """What came of a conversion."""

    format: str = ""
    written: int = 0
    labels: int = 0
    notes: dict[str, int] = field(default_factory=dict)  # what was left out or mended -> how often
    warnings: list[str] = field(default_factory=list)  # what was guessed, and what looks wrong

    def note(self, what: str) -> None:
        """Counts one more of it."""
        self.notes[what] = self.notes.get(what, 0) + 1


def convert(
    source: str, to: str | Path, config: ConvertConfig, columns: Columns | None = None, force: bool = False
) -> Report:
    """Converts `source` to the example file `to`."""
    check(config)
    check_output(to, force)
    kind_of(to)
    columns, report = columns or Columns(), Report(config.format)
    if config.format in ("auto", "log", "table") and _is_table(source):
        columns = sniff(source, columns, report.warnings)
    if config.format == "auto":
        report.format = guess_format(source, config, columns)
    readers = {"xmc": _xmc, "libsvm": _libsvm, "log": _log, "hf": _hf, "table": _table}
    examples = readers[report.format](source, config, columns, report)
    if config.duplicates != "error":
        examples = duplicates.resolve(examples, config.duplicates, report.note)
    write_examples(to, _clean(examples, source, config, report), force)
    return report


def _is_table(source: str) -> bool:
    """Whether it is a file that ends like a table."""
    try:
        return Path(source).is_file() and kind_of(source) in ("csv", "tsv")
    except InputError:
        return False


def guess_format(source: str, config: ConvertConfig, columns: Columns) -> str:
    """What the source looks like, by its content."""
    path = Path(source)
    if path.is_dir():
        if any(path.glob("lbl*.json*")):
            raise InputError(f"{source}: is a folder of XMC files. Name one, such as {path / 'trn.json.gz'}")
        return "hf"
    if not path.exists():
        raise InputError(f"{source}: no such file. A dataset of the Hugging Face hub needs --format hf")
    if config.texts is not None:
        return "libsvm"
    try:
        kind_of(path)
    except InputError:
        raise InputError(
            f"{source}: cannot tell what this is. Pass --format {', '.join(FORMATS[1:-1])} or {FORMATS[-1]}"
        ) from None
    _, first = next(read_rows(path, raw=True, dialect=columns.dialect), (0, {}))
    if "target_ind" in first:
        return "xmc"
    return "log" if config.query_column in first and columns.keyphrases_column not in first else "table"


def _clean(examples: Iterator[Example], source: str, config: ConvertConfig, report: Report) -> Iterator[Example]:
    """What every source needs: no blank text, no repeated id, no repeated keyphrase; with a progress bar."""
    from tqdm import tqdm

    seen, ids = SeenIds(), 0
    for example in tqdm(examples, desc=f"{report.format}: {Path(source).name}", unit=" items", disable=None):
        ids += 1
        if seen.add(example.id):
            raise InputError(f"{source}: an id occurs twice ({example.id!r} or one shortly before){TWICE}")
        if not example.text.strip():
            report.note("items with a blank text left out")
            continue
        _collapse(example, report)
        if not example.keyphrases:
            report.note("items without keyphrases" + (" left out" if config.drop_unlabeled else ""))
            if config.drop_unlabeled:
                continue
        report.written += 1
        report.labels += len(example.keyphrases)
        yield example
    if seen.finish():
        raise InputError(f"{source}: an id occurs twice{TWICE}")
    if not report.written:
        raise InputError(f"{source}: no item came out of it ({ids} were read)")


def _collapse(example: Example, report: Report) -> None:
    """Repeats of a keyphrase become one; their counts are added."""
    before = len(example.keyphrases)
    if example.counts is None:
        example.keyphrases = distinct(example.keyphrases)
    else:
        example.keyphrases, example.counts = collapse(example.keyphrases, example.counts)
    for _ in range(before - len(example.keyphrases)):
        report.note("repeated keyphrases collapsed")


# --- XMC repository -------------------------------------------------------------------------------


def _xmc(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
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


def _libsvm(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
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


# --- Interaction logs -----------------------------------------------------------------------------


def _log(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
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


# --- Tables and Hugging Face datasets -------------------------------------------------------------


def _table(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
    """Any table with a text and a list column."""
    _, first = next(read_rows(source, raw=True, dialect=columns.dialect), (0, {}))
    columns, numbered = choose_ids(columns, list(first), config.number_ids, report.warnings)
    once = config.duplicates == "error"
    found = read_examples(source, columns=columns, numbered=numbered, unique_ids=once, fix=TWICE)
    yield from _watch_lists(found, columns, report)


def _watch_lists(examples: Iterator[Example], columns: Columns, report: Report) -> Iterator[Example]:
    """The examples; warns if most of them have one keyphrase that looks like a list."""
    single = dict.fromkeys(SEPARATORS, 0)
    labeled = 0
    for example in examples:
        labeled += bool(example.keyphrases)
        if len(example.keyphrases) == 1:
            for char in SEPARATORS:
                single[char] += char in example.keyphrases[0]
        yield example
    likely = max(SEPARATORS, key=lambda char: single[char])
    if columns.separator is None and 2 * single[likely] > labeled:
        report.warnings.append(
            f"most items have one keyphrase with {likely!r} in it; if it separates keyphrases, "
            f"pass --separator {likely!r}"
        )


def _hf(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
    """A dataset folder (saved by `save_to_disk`, or of data files) or a dataset of the hub."""
    from pusl.data.hf_datasets import dataset_rows

    yield from dataset_rows(
        source, columns, config.split, config.config_name, config.streaming, config.number_ids, report.warnings
    )
