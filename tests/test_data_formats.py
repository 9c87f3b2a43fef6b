"""Vocabularies, Annif, Label Studio and search engines: read, written, and read again."""

from __future__ import annotations

import gzip
import json
import os
import sys

import pytest

from pusl.cli import main
from pusl.data.json_stream import json_values
from pusl.examples import Example, read_examples, write_examples
from pusl_eval.concepts import Concept, read_concepts
from pusl_eval.files import InputError, read_rows, write_rows
from pusl_eval.records import read_label_file

TURTLE = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
<http://v.org/1> a skos:Concept ; skos:prefLabel "bicycles"@en, "polkupyörät"@fi ;
  skos:altLabel "bikes"@en, "cycles"@en .
<http://v.org/2> a skos:Concept ; skos:prefLabel "drones"@en ; skos:altLabel "UAV"@en, "kopterit"@fi .
<http://v.org/3> a skos:Concept ; skos:prefLabel "periods"@en ; skos:altLabel "cycles"@en .
<http://v.org/4> a skos:Concept ; skos:prefLabel "old"@en ; owl:deprecated true .
<http://v.org/5> a skos:Concept ; skos:prefLabel "vain suomeksi"@fi .
"""
CONCEPTS = [
    Concept("http://v.org/1", "bicycles", ("bikes", "cycles")),
    Concept("http://v.org/2", "drones", ("UAV",)),
    Concept("http://v.org/3", "periods", ("cycles",)),
]
ITEMS = [
    Example("a1", "Zeto X2: it flies", ["drones", "bicycles"]),
    Example("a2", "Größe 3", ["bicycles"]),
    Example("a3", "nothing", []),
]
PREDICTIONS = [
    {"id": "a1", "keyphrases": ["UAV", "drones", "bikes"], "scores": [0.9, 0.5, 0.25]},
    {"id": "a/2 ü", "keyphrases": [], "scores": []},
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v.ttl").write_text(TURTLE, encoding="utf-8")
    write_examples("items.jsonl", ITEMS)
    write_rows("predictions.jsonl", PREDICTIONS)
    return tmp_path


def convert(*words):
    return main(["data", "convert", *map(str, words)])


def content(path):
    with open(path, encoding="utf-8") as stream:
        return stream.read()


def rows(path):
    return [row for _, row in read_rows(path)]


# --- Vocabularies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["v2.nt", "v2.rdf", "v2.ttl.gz", "v2.jsonl", "v2.jsonl.gz", "v2.csv", "v2.parquet"])
def test_a_vocabulary_survives_every_kind_of_file(name):
    assert convert("v.ttl", "--to", name, "--language", "en") == 0
    assert list(read_concepts(name)) == CONCEPTS
    assert convert(name, "--to", "back.ttl", "--language", "en", "--format", "vocabulary") == 0
    assert list(read_concepts("back.ttl")) == CONCEPTS
    assert list(read_label_file(name)) == ["bicycles", "drones", "periods"]


def test_a_vocabulary_as_a_universe_and_for_annif(capsys):
    assert convert("v.ttl", "--to", "u.txt", "--language", "en") == 0
    assert content("u.txt") == "bicycles\ndrones\nperiods\n"
    assert "3 concepts with 7 labels (read as vocabulary)" in capsys.readouterr().out
    assert convert("v.ttl", "--to", "all.txt", "--language", "en", "--alternatives") == 0
    assert content("all.txt").split() == ["bicycles", "bikes", "cycles", "drones", "UAV", "periods", "cycles"]
    assert convert("v.ttl", "--to", "v.tsv", "--language", "en") == 0
    assert content("v.tsv").splitlines()[0] == "<http://v.org/1>\tbicycles"
    assert list(read_label_file("v.tsv")) == ["bicycles", "drones", "periods"]
    assert convert("v.tsv", "--to", "again.nt") == 0
    assert [concept.uri for concept in read_concepts("again.nt")] == [concept.uri for concept in CONCEPTS]


def test_a_csv_vocabulary_with_languages(capsys):
    with open("v.csv", "w") as stream:
        stream.write("uri,label_en,label_fi,notation\n<http://v.org/1>,bicycles,pyörät,1\nhttp://v.org/5,,vain,2\n")
    assert convert("v.csv", "--to", "u.txt") == 2
    assert "several languages (en, fi)" in capsys.readouterr().err
    assert convert("v.csv", "--to", "u.txt", "--language", "en") == 0
    assert content("u.txt") == "bicycles\n"


@pytest.mark.parametrize(
    ("name", "content", "flags", "words"),
    [
        ("v.ttl", TURTLE, [], "has labels in several languages (en, fi). Pass --language fi, or"),
        ("v.ttl", TURTLE, ["--language", "sv"], "no labels in the language 'sv' (found: en, fi)"),
        ("v.ttl", "@prefix broken", [], "v.ttl: not valid turtle"),
        ("v.rdf", "<rdf:RDF", [], "v.rdf: not valid xml"),
        ("v.nt", "<http://a> <http://b> .", [], "v.nt: not valid nt"),
        ("v.nt", "<http://a> <http://b> <http://c> .\n", [], "no skos:prefLabel"),
        ("v.tsv", "<http://a>\tone\nno uri\n", [], "v.tsv:2: expected `<uri>`, a tab and a label"),
    ],
)
def test_bad_vocabularies(folder, capsys, name, content, flags, words):
    (folder / name).write_text(content, encoding="utf-8")
    assert convert(name, "--to", "u.txt", *flags) == 2
    shown = capsys.readouterr().err
    assert words in shown and len(shown.splitlines()) <= 2 and not os.path.exists("u.txt")


def test_rdf_without_rdflib_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rdflib", None)
    assert convert("v.ttl", "--to", "u.txt") == 2
    shown = capsys.readouterr().err
    assert "pip install 'pusl[rdf]'" in shown and "pip install -e '.[rdf]'" in shown


def test_references_and_predictions_get_preferred_labels(capsys):
    write_examples("raw.jsonl", [Example("1", "t", ["UAV", "Drones", "cycles", "hats"], [1, 2, 3, 4])])
    flags = ["--vocabulary", "v.ttl", "--language", "en"]
    assert convert("raw.jsonl", "--to", "out.jsonl", *flags) == 0
    assert list(read_examples("out.jsonl")) == [Example("1", "t", ["drones", "cycles", "hats"], [3, 3, 4])]
    shown = capsys.readouterr().out
    assert "1 keyphrases replaced by the preferred label" in shown and "2 keyphrases that the vocabulary lacks" in shown
    assert convert("predictions.jsonl", "--to", "mapped.jsonl", *flags) == 0
    assert rows("mapped.jsonl")[0] == {"id": "a1", "keyphrases": ["drones", "bicycles"], "scores": [0.9, 0.25]}


# --- Annif ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["c.tsv", "c.tsv.gz", "c.csv", "c.jsonl", "folder"])
@pytest.mark.parametrize("forced", [True, False])
def test_a_corpus_goes_to_annif_and_back(capsys, name, forced):
    flags = ["--vocabulary", "v.ttl", "--language", "en"]
    assert convert("items.jsonl", "--to", name, "--to-format", "annif", *flags) == 0
    assert convert(name, "--to", "back.jsonl", *flags, *(["--format", "annif"] if forced else [])) == 0
    back = list(read_examples("back.jsonl"))
    assert [(item.text, item.keyphrases) for item in back] == [(item.text, item.keyphrases) for item in ITEMS]
    ids = ["1", "2", "3"] if "tsv" in name else ["a1", "a2", "a3"]  # a TSV corpus has no ids
    assert [item.id for item in back] == ids
    assert "(read as annif)" in capsys.readouterr().out


def test_a_folder_of_labels_and_one_of_uris(folder, capsys):
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "d1.txt").write_text("Zwei\nZeilen")
    (corpus / "d1.key").write_text("UAV\nhats\n")
    (corpus / "d2.txt").write_text("more")
    (corpus / "d2.tsv").write_text("<http://v.org/1>\tan older label\textra\n<http://v.org/9>\tgone\n")
    assert convert("corpus", "--to", "plain.jsonl") == 0
    assert [e.keyphrases for e in read_examples("plain.jsonl")] == [["UAV", "hats"], ["an older label", "gone"]]
    assert convert("corpus", "--to", "out.jsonl", "--vocabulary", "v.ttl", "--language", "en") == 0
    assert list(read_examples("out.jsonl")) == [
        Example("d1", "Zwei\nZeilen", ["drones"]), Example("d2", "more", ["bicycles"]),
    ]  # fmt: skip
    assert "2 subjects left out that the vocabulary lacks" in capsys.readouterr().out
    assert convert("items.jsonl", "--to", "keys", "--to-format", "annif") == 0
    assert (folder / "keys" / "a1.key").read_text() == "drones\nbicycles\n"


def test_what_a_corpus_cannot_be(folder, capsys):
    (folder / "c.tsv").write_text("a text\t<http://v.org/1>\nno tab\n")
    for command, words in [
        (["c.tsv", "--to", "o.jsonl"], "c.tsv:1: <http://v.org/1> has no label here; name the vocabulary"),
        (["c.tsv", "--to", "o.jsonl", "--vocabulary", "v.ttl", "--language", "en"], "c.tsv:2: expected a text, a tab"),
        (["items.jsonl", "--to", "o.tsv", "--to-format", "annif"], "needs --vocabulary FILE for the URIs"),
        (["items.jsonl", "--to", "o.parquet", "--to-format", "annif"], "writes .tsv, .csv, .jsonl or a folder"),
    ]:
        assert convert(*command) == 2
        assert words in capsys.readouterr().err and not any(name.startswith("o.") for name in os.listdir())
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.doc").write_text("keep me")
    assert convert("items.jsonl", "--to", "mine", "--to-format", "annif", "--force") == 2
    assert (folder / "mine" / "thesis.doc").exists() and os.listdir("mine") == ["thesis.doc"]
    write_examples("odd.jsonl", [Example("../a", "t", ["x"])])
    assert convert("odd.jsonl", "--to", "new", "--to-format", "annif") == 2
    assert "'../a' cannot be a file name" in capsys.readouterr().err and not os.path.exists("new")


# --- Label Studio ---------------------------------------------------------------------------------


def annotate(tasks, change):
    """What Label Studio exports after annotators accepted the predictions and changed them."""
    for number, task in enumerate(tasks, 1):
        result = change(task["predictions"][0]["result"])
        task.update(id=number, annotations=[{"id": number, "was_cancelled": False, "result": result}])
    return tasks


def test_predictions_go_to_label_studio_and_annotations_come_back(capsys):
    write_rows("p.jsonl", [{"id": "a2", "keyphrases": ["bicycles", "x"], "scores": [0.5, 0.25]},
                           {"id": "a1", "keyphrases": ["drones"], "scores": [-1.5]}])  # fmt: skip
    assert convert("p.jsonl", "--to", "t.json", "--to-format", "label-studio") == 2
    assert "Name the items' file with --texts" in capsys.readouterr().err and not os.path.exists("t.json")
    flags = ["--to-format", "label-studio", "--texts", "items.jsonl", "--model-version", "pusl-3"]
    assert convert("p.jsonl", "--to", "t.json.gz", *flags) == 0
    with gzip.open("t.json.gz", "rt") as stream:
        tasks = json.load(stream)
    assert [task["data"] for task in tasks] == [{"id": e.id, "text": e.text} for e in ITEMS[:2]]
    assert tasks[1]["predictions"] == [{
        "model_version": "pusl-3", "score": 0.375,
        "result": [{"from_name": "keyphrases", "to_name": "text", "type": "textarea",
                    "value": {"text": ["bicycles", "x"]}}],
    }]  # fmt: skip
    assert "score" not in tasks[0]["predictions"][0]  # a log-probability is no share
    exported = annotate(tasks, lambda result: [*result, {**result[0], "value": {"text": ["added"]}}])
    with open("export.json", "w") as stream:
        json.dump(exported, stream, indent=2)
    assert convert("export.json", "--to", "back.jsonl") == 0
    assert list(read_examples("back.jsonl")) == [
        Example("a1", ITEMS[0].text, ["drones", "added"]), Example("a2", ITEMS[1].text, ["bicycles", "x", "added"]),
    ]  # fmt: skip
    capsys.readouterr()
    assert convert("t.json.gz", "--to", "nobody.jsonl") == 0  # nobody has annotated them yet
    assert "2 tasks without an annotation" in capsys.readouterr().out


def test_every_control_of_label_studio(capsys):
    def result(kind, value, name="tags"):
        return {"type": kind, "from_name": name, "to_name": "text", "value": value}

    results = {
        "1": [result("choices", {"choices": ["a", "b"]})],
        "2": [result("taxonomy", {"taxonomy": [["shop", "c"], ["d"]]})],
        "3": [result("labels", {"start": 0, "text": "e f", "labels": ["KEY"]}), result("rating", {"rating": 3})],
        "4": [result("textarea", {"text": "g"}, "note"), result("choices", {"choices": ["h"]}, "keyphrases")],
    }  # fmt: skip
    tasks = [{"id": int(n), "data": {"text": f"t{n}"}, "annotations": [{"result": r}]} for n, r in results.items()]
    tasks[0]["annotations"].append({"result": [result("choices", {"choices": ["B", "z"]})]})
    tasks.append({"id": 5, "data": {"text": "t5"}, "annotations": [{"was_cancelled": True, "result": results["1"]}]})
    with open("export.json", "w") as stream:
        json.dump(tasks, stream)
    assert convert("export.json", "--to", "out.jsonl") == 0
    found = [(e.id, e.keyphrases) for e in read_examples("out.jsonl")]
    assert found == [("1", ["a", "b", "z"]), ("2", ["c", "d"]), ("3", ["e f"]), ("4", ["h"]), ("5", [])]
    shown = capsys.readouterr().out
    assert "1 tasks with several annotations" in shown and "1 tasks without an annotation" in shown


def test_json_min(capsys):
    tasks = [{"id": 7, "text": "t", "keyphrases": ["a", "b"]}, {"id": 8, "text": "u", "keyphrases": {"choices": ["c"]}}]
    with open("min.json", "w") as stream:
        json.dump(tasks, stream)
    assert convert("min.json", "--to", "out.jsonl") == 2
    assert "needs --format label-studio" in capsys.readouterr().err
    assert convert("min.json", "--to", "out.jsonl", "--format", "label-studio") == 0
    assert list(read_examples("out.jsonl")) == [Example("7", "t", ["a", "b"]), Example("8", "u", ["c"])]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[{"id": 1, "data": {"text": "a"}}', "the list does not end; the file is cut short"),
        ('[{"id": 1, "data": {"text": "a"}} {', "value 2 is not JSON"),
        ('[{"id": 1, "data": {"text": "a"}}] more', "something follows the end of the list"),
        ('[{"id": 1, "data": {"text": "a"}}, 3]', "task 2: expected an object, found a number"),
        ('[{"id": 1, "data": {"body": "a"}}]', "no field 'text' (found: body)"),
        ('[{"id": 1, "data": {"text": "a"}, "annotations": "x"}]', "task 1: 'annotations' must be a list"),
        ('[{"id": 1, "data": {"text": "\\ud800"}}]', "half of a surrogate pair"),
    ],
)
def test_bad_exports(capsys, content, words):
    with open("export.json", "w") as stream:
        stream.write(content)
    assert convert("export.json", "--to", "out.jsonl", "--format", "label-studio") == 2
    assert words in capsys.readouterr().err and not os.path.exists("out.jsonl")


def test_long_lists_are_read_in_pieces(folder):
    values = [{"n": n, "text": "ü" * (n * 7 % 3000), "list": [n, [n]]} for n in range(300)]
    (folder / "long.json").write_text(json.dumps(values, indent=1, ensure_ascii=False), encoding="utf-8-sig")
    assert [value for _, value in json_values("long.json")] == values
    (folder / "lines.json").write_text("\n".join(map(json.dumps, values)))
    assert [value for _, value in json_values("lines.json")] == values
    (folder / "huge.json").write_text('[{"a": "' + "x" * (1 << 25))
    with pytest.raises(InputError, match="value 1 is not JSON"):
        list(json_values("huge.json"))


# --- Search engines -------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["update", "index"])
@pytest.mark.parametrize("name", ["elasticsearch", "vespa"])
@pytest.mark.parametrize("source", ["items.jsonl", "predictions.jsonl"])
def test_search_engines_get_what_comes_back(name, action, source):
    flags = ["--to-format", name, "--action", action, "--index", "shop", "--namespace", "ns", "--document-type", "doc"]
    assert convert(source, "--to", "feed.jsonl.gz", *flags) == 0
    assert convert("feed.jsonl.gz", "--to", "back.jsonl") == 0
    assert rows("back.jsonl") == rows(source)


def test_the_operations_are_those_that_the_engines_document():
    assert convert("predictions.jsonl", "--to", "bulk.ndjson", "--to-format", "elasticsearch", "--index", "shop") == 0
    assert [json.loads(line) for line in content("bulk.ndjson").splitlines()][:2] == [
        {"update": {"_index": "shop", "_id": "a1"}},
        {"doc_as_upsert": True,
         "doc": {"keyphrases": ["UAV", "drones", "bikes"], "keyphrase_scores": [0.9, 0.5, 0.25]}},
    ]  # fmt: skip
    assert convert("predictions.jsonl", "--to", "feed.jsonl", "--to-format", "vespa") == 0
    first, second = (json.loads(line) for line in content("feed.jsonl").splitlines())
    assert first == {
        "update": "id:items:item::a1", "create": True,
        "fields": {"keyphrases": {"assign": ["UAV", "drones", "bikes"]},
                   "keyphrase_scores": {"assign": [0.9, 0.5, 0.25]}},
    }  # fmt: skip
    assert second["update"] == "id:items:item::a%2F2%20%C3%BC"


def test_a_dump_of_an_index(folder, capsys):
    (folder / "dump.json").write_text(
        '{"_index": "shop", "_id": "7", "_source": {"title": "Zeto", "tags": ["drone"]}}\n'
        '{"_index": "shop", "_id": "8", "_source": {"title": "Bavix"}}\n'
    )
    assert convert("dump.json", "--to", "out.jsonl", "--text-column", "title", "--keyphrases-column", "tags") == 0
    assert list(read_examples("out.jsonl")) == [Example("7", "Zeto", ["drone"]), Example("8", "Bavix", [])]
    (folder / "cut.ndjson").write_text('{"index": {"_id": "1"}}\n')
    assert convert("cut.ndjson", "--to", "o2.jsonl") == 2
    assert "the last action has no document line" in capsys.readouterr().err


def test_a_source_that_breaks_leaves_nothing(folder, capsys):
    write_rows("p.jsonl", PREDICTIONS)
    with open("p.jsonl", "a") as stream:
        stream.write('{"id": "x", "keyphrases": "no list"}\n')
    for name in ("elasticsearch", "vespa"):
        assert convert("p.jsonl", "--to", "feed.jsonl", "--to-format", name) == 2
        assert "p.jsonl:3: id 'x': 'keyphrases' is a string" in capsys.readouterr().err
    assert sorted(os.listdir()) == ["items.jsonl", "p.jsonl", "predictions.jsonl", "v.ttl"]
