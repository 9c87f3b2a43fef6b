"""Other people's files -> examples, and examples or predictions -> other people's files.

Every source is read in one pass and written as it is read. Exceptions: logs, whose (item, query) pairs have to be
added up first, `--duplicates merge`, and vocabularies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pusl.config import check
from pusl.data import duplicates
from pusl.data.annif import looks_like_annif, read_corpus, write_corpus
from pusl.data.convert_config import FORMATS, ConvertConfig, Report
from pusl.data.hf_datasets import dataset_rows, is_saved
from pusl.data.interactions import read_log
from pusl.data.json_stream import is_json_list
from pusl.data.label_studio import looks_like_tasks, read_tasks, write_tasks
from pusl.data.search_feeds import is_bulk, is_feed, read_bulk, read_vespa, write_feed
from pusl.data.sniff import sniff
from pusl.data.vocabularies import convert_vocabulary, to_preferred
from pusl.data.xmc import read_libsvm, read_xmc
from pusl.examples import Columns, Example, SeenIds, examples_of, read_examples
from pusl_eval.columns import ItemFields, choose_ids
from pusl_eval.concepts import Thesaurus, is_vocabulary
from pusl_eval.files import InputError, Row, check_apart, check_output, is_url, kind_of, read_rows, write_rows
from pusl_eval.files.tables import LIST_SEPARATOR
from pusl_eval.normalize import collapse, distinct_forms
from pusl_eval.records import parse_prediction

__all__ = ["ConvertConfig", "Report", "convert", "guess_format"]
SEPARATORS = {"|": '"|"', ";": '";"', "\t": r"$'\t'", ",": '","'}  # of lists -> how a shell takes them
_ENTITY = re.compile(r"&#?\w+;")  # of HTML; its semicolon separates nothing
FEW, SHARE = 3, 0.05  # items that look like lists, and their share of the labeled ones: enough for a warning
TWICE = f"{duplicates.FIX}, or --number-ids"
PARALLEL = ("scores", "probabilities")  # lists of a prediction with one value per keyphrase
Readers = dict[str, Callable[[str, ConvertConfig, Columns, Report], Iterator[Example]]]


def convert(
    source: str, to: str | Path, config: ConvertConfig, columns: Columns | None = None, force: bool = False
) -> Report:
    """Converts `source` to the file `to`."""
    check(config)
    columns, report = columns or Columns(), Report(config.format, config.to_format)
    if not (config.to_format == "annif" and not Path(to).suffix):  # a folder
        check_apart([to], {"input": source})
        check_output(to, force)
    if config.format == "auto":
        report.format, columns = guess_format(source, config, columns, report.warnings)
    elif config.format in ("log", "table") and _is_table(source):
        columns = sniff(source, columns, report.warnings)
    if report.format == "vocabulary":
        convert_vocabulary(source, to, config, report, force)
        return report
    if config.to_format == "rows":
        kind_of(to)
    readers: Readers = {
        "xmc": read_xmc, "libsvm": read_libsvm, "log": read_log, "hf": _hf, "table": _table,
        "predictions": _predictions, "annif": read_corpus, "label-studio": read_tasks, "elasticsearch": _feed,
        "vespa": _feed,
    }  # fmt: skip
    examples = readers[report.format](source, config, columns, report)
    if config.duplicates != "error":
        examples = duplicates.resolve(examples, config.duplicates, report.note)
    if config.vocabulary and report.format != "annif":  # which asks the vocabulary itself
        examples = to_preferred(examples, Thesaurus.read(config.vocabulary, config.language), report)
    if config.to_format == "label-studio":
        examples = _with_texts(examples, source, config, columns)
    examples = _clean(examples, source, config, report)
    if config.to_format == "annif":
        write_corpus(to, examples, config, report, force)
    elif config.to_format == "label-studio":
        write_tasks(to, examples, config, report, force)
    elif config.to_format in ("elasticsearch", "vespa"):
        write_feed(to, map(_row, examples), config, report, force)
    else:
        write_rows(to, map(_row, examples), force)
    return report


def _row(example: Example) -> Row:
    """The item as a row; a prediction has no text."""
    row = example.to_row()
    if not example.text:
        del row["text"]
    return row


def _is_table(source: str) -> bool:
    """Whether it is a file that ends like a table."""
    try:
        return Path(source).is_file() and kind_of(source) in ("csv", "tsv")
    except InputError:
        return False


def guess_format(source: str, config: ConvertConfig, columns: Columns, warnings: list[str]) -> tuple[str, Columns]:
    """What the source is, by its structure, and the columns with how a table is written."""
    path = Path(source)
    if path.is_dir():
        if any(path.glob("lbl*.json*")):
            raise InputError(f"{source}: is a folder of XMC files. Name one, such as {path / 'trn.json.gz'}")
        if looks_like_annif(path):
            return "annif", columns
        if config.split is None and not is_saved(path):
            raise InputError(f"{source}: is a folder. Name a file, or add --format hf (a folder that `datasets` can "
                             "load) or --format annif")  # fmt: skip
        return "hf", columns
    if not path.exists() and not is_url(source):
        raise InputError(f"{source}: no such file. A dataset of the Hugging Face hub needs --format hf")
    if config.texts is not None and config.to_format != "label-studio":
        return "libsvm", columns
    if is_vocabulary(source):
        return "vocabulary", columns
    try:
        kind = kind_of(path)
    except InputError:
        raise InputError(
            f"{source}: cannot tell what this is. Pass --format {', '.join(FORMATS[1:-1])} or {FORMATS[-1]}"
        ) from None
    if kind == "jsonl" and is_json_list(source):
        if looks_like_tasks(source):
            return "label-studio", columns
        raise InputError(f"{source}: is a JSON list; expected one object per line. A JSON-MIN export of Label Studio "
                         "needs --format label-studio")  # fmt: skip
    if looks_like_annif(path):
        return "annif", columns
    if kind in ("csv", "tsv"):
        columns = sniff(source, columns, warnings)
    _, first = next(read_rows(path, raw=True, dialect=columns.dialect), (0, {}))
    return _format_of(first, kind, config, columns), columns


def _format_of(first: Row, kind: str, config: ConvertConfig, columns: Columns) -> str:
    """The format that a first row shows."""
    if kind == "jsonl" and (is_bulk(first) or is_feed(first)):
        return "elasticsearch" if is_bulk(first) else "vespa"
    if "target_ind" in first:
        return "xmc"
    if columns.keyphrases_column not in first:
        return "log" if config.query_column in first else "table"
    foreign = config.to_format != "rows" or config.vocabulary is not None
    textless = columns.text_column not in first and columns.text_template is None
    return "predictions" if textless and ("scores" in first or foreign) else "table"


def _clean(examples: Iterator[Example], source: str, config: ConvertConfig, report: Report) -> Iterator[Example]:
    """What every source needs: no blank text, no repeated id, no repeated keyphrase; with a progress bar."""
    from tqdm import tqdm

    seen, ids = SeenIds(), 0
    for example in tqdm(examples, desc=f"{report.format}: {Path(source).name}", unit=" items", disable=None):
        ids += 1
        if seen.add(example.id):
            raise InputError(f"{source}: an id occurs twice ({example.id!r} or one shortly before){TWICE}")
        if not example.text.strip() and not report.textless:
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
    """Repeats of a keyphrase become one; their counts are added, of their scores the first stays."""
    kept = list(distinct_forms(example.keyphrases).values())
    lost = len(example.keyphrases) - len(kept)
    if not lost:
        return
    for name in PARALLEL:
        if isinstance(example.extra.get(name), list) and len(example.extra[name]) == len(example.keyphrases):
            example.extra[name] = [example.extra[name][position] for position in kept]
    if example.counts is None:
        example.keyphrases = [example.keyphrases[position] for position in kept]
    else:
        example.keyphrases, example.counts = collapse(example.keyphrases, example.counts)
    for _ in range(lost):
        report.note("repeated keyphrases collapsed")


def _predictions(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
    """A file of predictions: id, keyphrases and what else its rows have, without texts."""
    yield from _textless(read_rows(source), source, report)


def _textless(rows: Iterable[tuple[int, Row]], source: str, report: Report) -> Iterator[Example]:
    report.textless = True
    for number, row in rows:
        found = parse_prediction(row, source, number)
        extra = dict(found.extra)
        if found.scores is not None:
            extra = {"scores": found.scores, **extra}
        if found.exhausted:
            extra["exhausted"] = True
        yield Example(found.id, "", found.keyphrases, extra=extra)


def _feed(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
    """Documents of a search engine's feed: examples where they have texts, else predictions."""
    rows = read_bulk(source, report) if report.format == "elasticsearch" else read_vespa(source, report)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{source}: has no document")
    everything = _chain(first, rows)
    if columns.text_template is None and columns.text_column not in first[1]:
        yield from _textless(everything, source, report)
    else:
        yield from examples_of(everything, source, ItemFields(columns, table=False), labeled=False)


def _chain(first: tuple[int, Row], rest: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
    yield first
    yield from rest


def _with_texts(examples: Iterator[Example], source: str, config: ConvertConfig, columns: Columns) -> Iterator[Example]:
    """Predictions with the texts of their items, in the order of the items."""
    first = next(examples, None)
    if first is None:
        return
    if first.text:
        yield first
        yield from examples
        return
    if config.texts is None:
        raise InputError(f"{source}: has no texts, which annotators need. Name the items' file with --texts FILE")
    predicted = {first.id: first} | {example.id: example for example in examples}
    for item in read_examples(config.texts, columns=columns, labeled=False):
        found = predicted.pop(item.id, None)
        if found is not None:
            found.text = item.text
            yield found
    if predicted:
        raise InputError(f"{config.texts}: has no item with the id {next(iter(predicted))!r} of {source}")


# --- Tables and Hugging Face datasets -------------------------------------------------------------


def _table(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
    """Any table with a text and a list column."""
    _, first = next(read_rows(source, raw=True, dialect=columns.dialect), (0, {}))
    columns, numbered = choose_ids(columns, list(first), config.number_ids, report.warnings)
    once = config.duplicates == "error"
    found = read_examples(source, columns=columns, numbered=numbered, unique_ids=once, fix=TWICE)
    cells = kind_of(source) in ("csv", "tsv") or columns.separator is not None
    yield from _watch_lists(found, columns, report) if cells else found


def _watch_lists(examples: Iterator[Example], columns: Columns, report: Report) -> Iterator[Example]:
    """The examples; warns if items have a single keyphrase that looks like a list of another separator."""
    others = [char for char in SEPARATORS if char != (columns.separator or LIST_SEPARATOR)]
    lists, shown = dict.fromkeys(others, 0), dict.fromkeys(others, "")
    labeled = 0
    for example in examples:
        labeled += bool(example.keyphrases)
        for char in others if len(example.keyphrases) == 1 else ():
            if char in _ENTITY.sub("", example.keyphrases[0]):
                lists[char] += 1
                shown[char] = shown[char] or example.keyphrases[0]
        yield example
    suspects = [char for char in others if _look_like_lists(char, lists[char], labeled)]
    if suspects:
        likely = max(suspects, key=lambda char: (char != ",", lists[char]))
        report.warnings.append(
            f"{lists[likely]:,} of {labeled:,} labeled items have one keyphrase with {likely!r} in it, for example "
            f"{shown[likely][:60]!r}; if it separates keyphrases, add --separator {SEPARATORS[likely]}"
        )


def _look_like_lists(char: str, lists: int, labeled: int) -> bool:
    """Whether so many single keyphrases with the character are probably lists. A comma is often part of a label."""
    return 2 * lists > labeled or (char != "," and lists >= max(FEW, SHARE * labeled))


def _hf(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
    """A dataset folder (saved by `save_to_disk`, or of data files) or a dataset of the hub."""
    found = dataset_rows(
        source, columns, config.split, config.config_name, config.streaming, config.number_ids, report.warnings
    )
    yield from found if columns.separator is None else _watch_lists(found, columns, report)
