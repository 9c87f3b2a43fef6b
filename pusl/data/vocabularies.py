"""A vocabulary -> a universe file or another vocabulary, and names in items -> preferred labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pusl.data.convert_config import ConvertConfig, Report
from pusl.examples import Example
from pusl_eval.concepts import SKOS, Concept, Thesaurus, rdf_syntax, read_concepts
from pusl_eval.errors import needs_extra
from pusl_eval.files import InputError, kind_of, open_atomic, write_rows
from pusl_eval.normalize import normalize

LISTS = (".txt", ".txt.gz")


def convert_vocabulary(source: str, to: str | Path, config: ConvertConfig, report: Report, force: bool) -> None:
    """Writes a universe (.txt), an Annif vocabulary (.tsv), SKOS (.ttl, .nt, .rdf) or rows, by the ending."""
    if config.to_format != "rows":
        raise InputError(f"--to-format {config.to_format}: {source} is a vocabulary; it has no items")
    concepts = _counted(read_concepts(source, config.language), report)
    name = str(to).lower()
    syntax = rdf_syntax(to)
    if syntax is not None:
        _write_rdf(to, concepts, syntax, config.language, force)
    elif name.endswith(LISTS):
        with open_atomic(to, force) as stream:
            for concept in concepts:
                names = (concept.label, *(concept.alternatives if config.alternatives else ()))
                stream.writelines(f"{name}\n" for name in names)
    elif kind_of(to) == "tsv":
        with open_atomic(to, force) as stream:
            stream.writelines(f"<{concept.uri}>\t{' '.join(concept.label.split())}\n" for concept in concepts)
    else:
        write_rows(to, (concept.to_row() for concept in concepts), force)


def _counted(concepts: Iterator[Concept], report: Report) -> Iterator[Concept]:
    for concept in concepts:
        report.written += 1
        report.labels += 1 + len(concept.alternatives)
        yield concept


def _write_rdf(to: str | Path, concepts: Iterator[Concept], syntax: str, language: str | None, force: bool) -> None:
    try:
        import rdflib
    except ImportError:
        raise needs_extra(f"{to}: writing RDF", "rdflib", "rdf") from None
    graph = rdflib.Graph(bind_namespaces="none")
    skos = rdflib.Namespace(SKOS)
    graph.bind("skos", skos)
    for concept in concepts:
        if not concept.uri:
            raise InputError(f"{concept.label!r} has no URI, which SKOS needs")
        subject = rdflib.URIRef(concept.uri)
        graph.add((subject, rdflib.RDF.type, skos.Concept))
        graph.add((subject, skos.prefLabel, rdflib.Literal(concept.label, lang=language)))
        for other in concept.alternatives:
            graph.add((subject, skos.altLabel, rdflib.Literal(other, lang=language)))
    with open_atomic(to, force, "wb") as stream:
        stream.write(graph.serialize(format=syntax, encoding="utf-8"))


def to_preferred(examples: Iterator[Example], words: Thesaurus, report: Report) -> Iterator[Example]:
    """Keyphrases that are URIs or alternative labels become preferred labels; others stay and are counted."""
    for example in examples:
        phrases = []
        for phrase in example.keyphrases:
            label = words.resolve(phrase)
            if label is None:
                report.note("keyphrases that the vocabulary lacks, or has for several concepts (kept as they are)")
            elif normalize(label) != normalize(phrase):
                report.note("keyphrases replaced by the preferred label")
            phrases.append(phrase if label is None else label)
        yield replace(example, keyphrases=phrases)
