"""Document corpora of Annif -> examples, and back.

Short texts: a TSV file `text<tab><uri> <uri>` without a header, a CSV file with the columns text, subject_uris and
document_id, or JSON lines with `subjects`. Full texts: a folder of .txt files, each with a .tsv (`<uri>` tab label)
or .key (one label per line) beside it. A vocabulary turns URIs into labels and labels into URIs.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pusl.data.convert_config import ConvertConfig, Report
from pusl.examples import Columns, Example
from pusl_eval.concepts import Thesaurus, first_line
from pusl_eval.files import InputError, Row, folder_atomic, kind_of, open_atomic, read_lines, read_rows, to_json
from pusl_eval.files.storage import check_output, make_folder

UNKNOWN = "subjects left out that the vocabulary lacks"
_SHORT = re.compile(r"[^\t]*\t(<[^<>\s]*>\s*)+")
_KNOWN = {".txt", ".tsv", ".key"}


def looks_like_annif(source: str | Path) -> bool:
    """Whether the structure is that of a corpus: subject files beside texts, or URIs in angle brackets."""
    path = Path(source)
    if path.is_dir():
        return any(path.glob("*.key")) or any(text.with_suffix(".tsv").exists() for text in path.glob("*.txt"))
    line, kind = first_line(path), kind_of(path)
    if kind == "tsv":
        return _SHORT.fullmatch(line) is not None
    if kind == "csv":
        return {"text", "subject_uris"} <= set(line.split(","))
    return kind == "jsonl" and re.search(r'"subjects":\s*\[', line) is not None and '"text"' in line


def read_corpus(source: str, config: ConvertConfig, columns: Columns, report: Report) -> Iterator[Example]:
    """The documents of a corpus."""
    words = _words(config)
    path = Path(source)
    if path.is_dir():
        yield from _folder(path, words, report)
        return
    kind = kind_of(path)
    if kind == "tsv":
        yield from _short_texts(path, words, report)
        return
    for number, row in read_rows(path, raw=True):
        where = f"{path}:{number}"
        if kind == "csv":
            if "text" not in row or "subject_uris" not in row:
                raise InputError(f"{where}: expected the columns text and subject_uris (found: {', '.join(row)})")
            labels = _labels(((uri, None) for uri in row["subject_uris"].split()), words, report, where)
        else:
            labels = _labels(_subjects(row, where), words, report, where)
        more = row.get("metadata") if kind == "jsonl" else None
        text = row.get("text")
        if not isinstance(text, str):
            raise InputError(f"{where}: expected a 'text' (found: {', '.join(row)})")
        item = row.get("document_id") or row.get("id") or str(number)
        yield Example(str(item), text, labels, extra=dict(more) if isinstance(more, dict) else {})


def _words(config: ConvertConfig) -> Thesaurus | None:
    return Thesaurus.read(config.vocabulary, config.language) if config.vocabulary else None


def _labels(
    subjects: Iterable[tuple[str | None, str | None]], words: Thesaurus | None, report: Report, where: str
) -> list[str]:
    """(URI, label) pairs -> preferred labels. With a vocabulary the URI decides, as in Annif."""
    labels = []
    for uri, label in subjects:
        if words is None:
            if not label:
                raise InputError(f"{where}: {uri} has no label here; name the vocabulary with --vocabulary FILE")
            labels.append(label)
            continue
        found = words.labels.get((uri or "").strip("<>")) or (words.resolve(label) if label else None)
        if found is None:
            report.note(UNKNOWN)
        else:
            labels.append(found)
    return labels


def _subjects(row: Row, where: str) -> list[tuple[str | None, str | None]]:
    subjects = row.get("subjects", [])
    if not isinstance(subjects, list) or not all(isinstance(subject, dict) for subject in subjects):
        raise InputError(f'{where}: \'subjects\' must be a list such as [{{"uri": "...", "label": "..."}}]')
    return [(subject.get("uri"), subject.get("label")) for subject in subjects]


def _short_texts(path: Path, words: Thesaurus | None, report: Report) -> Iterator[Example]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        text, tab, uris = line.partition("\t")
        if not tab:
            raise InputError(f"{path}:{number}: expected a text, a tab and URIs in angle brackets; there is no tab")
        labels = _labels(((uri, None) for uri in uris.split()), words, report, f"{path}:{number}")
        yield Example(str(number), text, labels)


def _folder(folder: Path, words: Thesaurus | None, report: Report) -> Iterator[Example]:
    for path in sorted(folder.glob("*.txt")):
        text = "\n".join(line for _, line in read_lines(path))
        pairs: list[tuple[str | None, str | None]] = []
        if (beside := path.with_suffix(".tsv")).exists():
            for number, line in read_lines(beside):
                uri, tab, rest = line.partition("\t")
                if line.strip() and not tab:
                    raise InputError(f"{beside}:{number}: expected `<uri>`, a tab and a label, found {line[:60]!r}")
                if tab:
                    pairs.append((uri, rest.split("\t")[0].strip()))
        elif (beside := path.with_suffix(".key")).exists():
            pairs = [(None, line.strip()) for _, line in read_lines(beside) if line.strip()]
        yield Example(path.stem, text, _labels(pairs, words, report, str(beside)))


def write_corpus(
    to: str | Path, examples: Iterable[Example], config: ConvertConfig, report: Report, force: bool
) -> int:
    """Writes a TSV, CSV or JSONL corpus, or with a name without an ending a folder of full texts; returns how many."""
    words = _words(config)
    if not Path(to).suffix:
        return _write_folder(Path(to), examples, words, report, force)
    kind = kind_of(to)
    if kind == "parquet" or (kind != "jsonl" and words is None):
        need = "writes .tsv, .csv, .jsonl or a folder" if kind == "parquet" else "needs --vocabulary FILE for the URIs"
        raise InputError(f"{to}: --to-format annif {need}")
    count = 0
    with open_atomic(to, force) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        if kind == "csv":
            writer.writerow(["document_id", "text", "subject_uris"])
        for example in examples:
            count += 1
            pairs = _pairs(example, words, report)
            uris = " ".join(f"<{uri}>" for uri, _ in pairs)
            if kind == "tsv":
                stream.write(f"{' '.join(example.text.split())}\t{uris}\n")
            elif kind == "csv":
                writer.writerow([example.id, example.text, uris])
            else:
                subjects = [{"uri": uri, "label": label} if uri else {"label": label} for uri, label in pairs]
                row = {"document_id": example.id, "text": example.text, "subjects": subjects}
                stream.write(to_json(row) + "\n")
    return count


def _pairs(example: Example, words: Thesaurus | None, report: Report) -> list[tuple[str | None, str]]:
    """(URI, label) of each keyphrase; with a vocabulary only those that it has."""
    if words is None:
        return [(None, phrase) for phrase in example.keyphrases]
    found = [(words.uri(phrase), words.resolve(phrase)) for phrase in example.keyphrases]
    for uri, _ in found:
        if uri is None:
            report.note(UNKNOWN)
    return [(uri, label) for uri, label in dict.fromkeys(found) if uri is not None and label is not None]


def _write_folder(to: Path, examples: Iterable[Example], words: Thesaurus | None, report: Report, force: bool) -> int:
    """One .txt file per document, with its subjects as .tsv (with a vocabulary) or .key."""
    make_folder(to.parent)
    if to.exists():
        if not to.is_dir():
            check_output(to, force)
            raise InputError(f"{to}: is a file; expected a folder, or a name that ends in .tsv, .csv or .jsonl")
        if any(path.suffix not in _KNOWN or path.is_dir() for path in to.iterdir()):
            raise InputError(f"{to}: holds other files than a corpus; name a new folder")
        if any(to.iterdir()) and not force:
            raise InputError(f"{to}: exists already; pass --force to overwrite it")
    count = 0
    with folder_atomic(to) as work:
        for example in examples:
            name = example.id
            if re.search(r'[/\\:*?"<>|\x00-\x1f]', name) or name.startswith(".") or len(name.encode()) > 200:
                raise InputError(f"id {name!r} cannot be a file name; write .jsonl or .csv instead")
            count += 1
            (work / f"{name}.txt").write_text(example.text, encoding="utf-8", newline="\n")
            pairs = _pairs(example, words, report)
            lines = [f"<{uri}>\t{label}\n" if words else f"{label}\n" for uri, label in pairs]
            beside = work / (f"{name}.tsv" if words else f"{name}.key")
            beside.write_text("".join(lines), encoding="utf-8", newline="\n")
    return count
