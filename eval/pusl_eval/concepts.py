"""A vocabulary file -> concepts (preferred label, alternatives, URI), and any of their names -> the preferred label.

SKOS as Turtle, N-Triples or RDF/XML (needs rdflib), the vocabularies of Annif (`<uri>` tab label, or CSV with the
columns uri and label_en), or rows with a `keyphrase`, its `uri` and `alternatives`. All of them plain or gzipped.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pusl_eval.errors import InputError, needs_extra
from pusl_eval.files.lines import BOM, MAX_LINE, read_lines, reading
from pusl_eval.files.reader import Row
from pusl_eval.files.rows import read_rows
from pusl_eval.files.storage import kind_of, size_of
from pusl_eval.files.tables import split_list
from pusl_eval.normalize import normalize

RDF_ENDINGS = {".ttl": "turtle", ".nt": "nt", ".rdf": "xml", ".skos": "xml", ".owl": "xml"}
SKOS = "http://www.w3.org/2004/02/skos/core#"
_ANNIF_LINE = re.compile(r"<([^<>\s]*)>\t([^\t]*)")


@dataclass(frozen=True)
class Concept:
    """One entry of a vocabulary."""

    uri: str
    label: str
    alternatives: tuple[str, ...] = ()

    def to_row(self) -> Row:
        """The entry as a row; `keyphrase` makes the file a universe too."""
        return {"keyphrase": self.label, "uri": self.uri, "alternatives": list(self.alternatives)}


def rdf_syntax(path: str | Path) -> str | None:
    """The RDF syntax that the ending names, as rdflib calls it.

    >>> rdf_syntax("yso.ttl.gz"), rdf_syntax("queries.txt")
    ('turtle', None)
    """
    return RDF_ENDINGS.get(Path(Path(path).name.lower().removesuffix(".gz")).suffix)


def first_line(path: str | Path) -> str:
    """The first line for a look at its structure, whatever its encoding."""
    size_of(path)
    with reading(path) as file:
        return file.content.readline(MAX_LINE).removeprefix(BOM).decode("utf-8", "replace").rstrip("\r\n")


def is_vocabulary(path: str | Path) -> bool:
    """Whether a file is a vocabulary: by an RDF ending, or because its first line has a URI and a label."""
    if rdf_syntax(path) is not None:
        return True
    try:
        kind = kind_of(path)
    except InputError:
        return False
    line = first_line(path) if kind != "parquet" else ""
    if kind == "jsonl":
        return '"keyphrase":' in line and '"uri":' in line
    names = line.split(",")
    return _ANNIF_LINE.match(line) is not None if kind == "tsv" else "uri" in names and bool(_label_columns(names))


def read_concepts(path: str | Path, language: str | None = None) -> Iterator[Concept]:
    """Streams the concepts of a vocabulary; those without a label in the language are left out."""
    size_of(path)
    syntax = rdf_syntax(path)
    if syntax is not None:
        yield from _read_rdf(path, syntax, language)
    elif kind_of(path) == "tsv" and _ANNIF_LINE.match(first_line(path)):
        yield from _read_annif(path)
    else:
        yield from _read_rows(path, language)


def _read_annif(path: str | Path) -> Iterator[Concept]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        found = _ANNIF_LINE.match(line)
        if found is None or not found[2].strip():
            raise InputError(f"{path}:{number}: expected `<uri>`, a tab and a label, found {line[:60]!r}")
        yield Concept(found[1], found[2].strip())


def _label_columns(row: Iterable[str]) -> dict[str, str]:
    """Language -> column, for the columns `label` and `label_en`."""
    return {name[6:]: name for name in row if name == "label" or name.startswith("label_")}


def _read_rows(path: str | Path, language: str | None) -> Iterator[Concept]:
    for number, row in read_rows(path, raw=True):
        if "keyphrase" in row:
            label = row["keyphrase"]
        else:
            columns = _label_columns(row)
            if not columns or "uri" not in row:
                raise InputError(
                    f"{path}:{number}: not a vocabulary (found: {', '.join(row)}); expected 'uri' and 'keyphrase', or "
                    "'uri' and 'label_en'"
                )
            label = row[columns[_choose(path, columns, language)]]
        if not isinstance(label, str) or not label.strip():
            continue
        others = row.get("alternatives") or []
        if isinstance(others, str):
            others = split_list(others)  # a cell of CSV
        if not isinstance(others, list) or not all(isinstance(other, str) for other in others):
            raise InputError(f"{path}:{number}: 'alternatives' must be a list of strings")
        yield Concept(str(row.get("uri") or "").strip("<>"), label.strip(), tuple(others))


def _choose(path: str | Path, languages: Iterable[str], language: str | None) -> str:
    """The language to take. Labels without a language ('') serve when there are no others."""
    found = sorted(set(languages))
    if language is None and len(found) == 1:
        return found[0]
    if language is not None and language in found:
        return language
    if language is not None and found == [""]:
        return ""
    shown = ", ".join(name or "none" for name in found)
    if language is None:
        raise InputError(
            f"{path}: has labels in several languages ({shown}). Pass --language {found[-1]}, or where a command has "
            f"no such flag, first: pusl data convert {path} --to universe.txt --language {found[-1]}"
        )
    raise InputError(f"{path}: no labels in the language {language!r} (found: {shown or 'no labels at all'})")


def _read_rdf(path: str | Path, syntax: str, language: str | None) -> Iterator[Concept]:
    """SKOS concepts in the order of their URIs; deprecated ones are left out."""
    try:
        import rdflib
    except ImportError:
        raise needs_extra(f"{path}: reading RDF", "rdflib", "rdf") from None
    graph = rdflib.Graph(bind_namespaces="none")
    with reading(path) as file:
        try:
            content = io.BytesIO(file.content.read())
            graph.parse(content, format=syntax, publicID="urn:vocabulary:")
        except InputError:
            raise
        except Exception as error:  # every parser of rdflib has its own exceptions
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise InputError(f"{path}: not valid {syntax} ({reason})") from None
    preferred = rdflib.URIRef(SKOS + "prefLabel")
    alternative = rdflib.URIRef(SKOS + "altLabel")
    deprecated = set(graph.subjects(rdflib.OWL.deprecated, rdflib.Literal(True)))
    labels: dict[Any, dict[str, str]] = {}
    pairs: Any = sorted(graph.subject_objects(preferred))
    for subject, label in pairs:
        if subject not in deprecated:
            labels.setdefault(subject, {}).setdefault(label.language or "", str(label).strip())
    if not labels:
        raise InputError(f"{path}: no skos:prefLabel in it; expected a SKOS vocabulary")
    chosen = _choose(path, {name for names in labels.values() for name in names}, language)
    for subject, names in labels.items():
        if names.get(chosen):
            given: Any = graph.objects(subject, alternative)
            others = (name for name in given if (name.language or "") in (chosen, ""))
            yield Concept(str(subject), names[chosen], tuple(sorted({str(other).strip() for other in others} - {""})))


class Thesaurus:
    """All names of all concepts, as dictionaries."""

    def __init__(self, concepts: Iterable[Concept]) -> None:
        self.labels: dict[str, str] = {}  # URI -> preferred label
        self.uris: dict[str, str] = {}  # normalized preferred label -> URI
        self._preferred: dict[str, str] = {}  # normalized -> as written
        self._alternatives: dict[str, str | None] = {}  # normalized -> preferred label; None if there are several
        for concept in concepts:
            form = normalize(concept.label)
            self.labels[concept.uri] = self._preferred.setdefault(form, concept.label)
            self.uris.setdefault(form, concept.uri)
            for other in concept.alternatives:
                known = self._alternatives.setdefault(normalize(other), concept.label)
                if known is not None and normalize(known) != form:
                    self._alternatives[normalize(other)] = None

    @classmethod
    def read(cls, path: str | Path, language: str | None = None) -> Thesaurus:
        """The vocabulary of a file."""
        found = cls(read_concepts(path, language))
        if not found.labels:
            raise InputError(f"{path}: no label in it")
        return found

    def resolve(self, name: str) -> str | None:
        """The preferred label of a URI, a preferred label or an alternative; None if it has none or several.

        >>> words = Thesaurus([Concept("urn:1", "Bicycle", ("bike", "cycle")), Concept("urn:2", "Period", ("cycle",))])
        >>> words.resolve("bike"), words.resolve("<urn:2>"), words.resolve("BICYCLE"), words.resolve("cycle")
        ('Bicycle', 'Period', 'Bicycle', None)
        """
        found = self.labels.get(name) or self.labels.get(name.strip("<>"))
        if found is not None:
            return found
        form = normalize(name)
        return self._preferred.get(form) or self._alternatives.get(form)

    def uri(self, label: str) -> str | None:
        """The URI of a preferred label or an alternative."""
        preferred = self.resolve(label)
        return None if preferred is None else self.uris.get(normalize(preferred))
