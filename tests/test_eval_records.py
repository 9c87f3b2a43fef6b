"""Normalization, stems, records and files."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from pusl_eval.files import InputError, open_atomic, read_rows, write_json, write_rows
from pusl_eval.normalize import normalize
from pusl_eval.porter import stem
from pusl_eval.records import read_label_file, read_predictions, read_references


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Red\t\nSHOE ", "red shoe"),
        ("ﬁne", "fine"),  # a ligature
        ("Straße", "strasse"),  # casefold, not lower
        ("Ⅻ", "xii"),
        ("a\u00a0b\u3000c", "a b c"),  # no-break and ideographic spaces
        ("café", "café"),  # composed and decomposed are one
        ("cafe\u0301", "café"),
        ("ＷＩＤＥ", "wide"),
        ("\u200b", "\u200b"),  # a zero-width space is no white space
        (" \u2003 ", ""),
    ],
)
def test_basic(text, expected):
    assert normalize(text) == expected


def test_stem_splits_at_hyphens_and_none_keeps_everything():
    assert normalize("State-of-the-art Models", "stem") == normalize("state of the art model", "stem")
    assert normalize("non\u2011breaking", "stem") == "non break"
    assert normalize("- -", "stem") == ""
    assert normalize(" A  b ", "none") == " A  b "
    assert normalize("  ", "none") == ""
    with pytest.raises(InputError, match="basic, stem, nltk-stem, none"):
        normalize("a", "lemma")


# Words and stems from the algorithm's own publication and the author's vocabulary.
PORTER = {
    "caresses": "caress", "ponies": "poni", "ties": "ti", "caress": "caress", "cats": "cat", "feed": "feed",
    "agreed": "agre", "plastered": "plaster", "bled": "bled", "motoring": "motor", "sing": "sing",
    "conflated": "conflat", "troubled": "troubl", "sized": "size", "hopping": "hop", "tanned": "tan",
    "falling": "fall", "hissing": "hiss", "fizzed": "fizz", "failing": "fail", "filing": "file", "happy": "happi",
    "sky": "sky", "relational": "relat", "conditional": "condit", "rational": "ration", "valenci": "valenc",
    "hesitanci": "hesit", "digitizer": "digit", "conformabli": "conform", "radicalli": "radic",
    "differentli": "differ", "vileli": "vile", "analogousli": "analog", "vietnamization": "vietnam",
    "predication": "predic", "operator": "oper", "feudalism": "feudal", "decisiveness": "decis",
    "hopefulness": "hope", "callousness": "callous", "formaliti": "formal", "sensitiviti": "sensit",
    "sensibiliti": "sensibl", "triplicate": "triplic", "formative": "form", "formalize": "formal",
    "electriciti": "electr", "electrical": "electr", "hopeful": "hope", "goodness": "good", "revival": "reviv",
    "allowance": "allow", "inference": "infer", "airliner": "airlin", "gyroscopic": "gyroscop",
    "adjustable": "adjust", "defensible": "defens", "irritant": "irrit", "replacement": "replac",
    "adjustment": "adjust", "dependent": "depend", "adoption": "adopt", "homologou": "homolog",
    "communism": "commun", "activate": "activ", "angulariti": "angular", "homologous": "homolog",
    "effective": "effect", "bowdlerize": "bowdler", "probate": "probat", "rate": "rate", "cease": "ceas",
    "controll": "control", "roll": "roll", "generalizations": "gener", "oscillators": "oscil",
    "archaeology": "archaeolog", "possibly": "possibl", "by": "by", "yes": "ye", "syzygy": "syzygi",
}  # fmt: skip


@pytest.mark.parametrize("word", PORTER)
def test_porter(word):
    assert stem(word) == PORTER[word]


def test_unknown_fields_are_kept(tmp_path):
    path = tmp_path / "x.jsonl"
    row = {"id": 7, "keyphrases": ["a"], "text": "t", "timestamp": "2024", "group": 3, "counts": [2], "price": 1.5}
    path.write_text(json.dumps(row) + "\n")
    [record] = read_references(path)
    assert (record.id, record.group, record.counts, record.timestamp) == ("7", "3", [2], "2024")
    assert record.extra == {"price": 1.5} and record.line == 1
    path.write_text(json.dumps({"id": "p", "keyphrases": ["a"], "scores": [1], "exhausted": True, "model": "m"}) + "\n")
    [record] = read_predictions(path)
    assert record.exhausted and record.scores == [1] and record.extra == {"model": "m"}


def test_csv_records(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('id,keyphrases,exhausted,group\n1,red shoe | hat,True,\n2,"[""a|b"", ""c""]",,x\n3,,0,\n')
    found = list(read_predictions(path))
    assert [(p.id, p.keyphrases, p.exhausted) for p in found] == [
        ("1", ["red shoe", "hat"], True), ("2", ["a|b", "c"], False), ("3", [], False),
    ]  # fmt: skip
    assert [r.group for r in read_references(path)] == [None, "x", None]


def test_parquet_records(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "x.parquet"
    rows = [{"id": 1, "keyphrases": ["a", "b"], "scores": [0.1, 0.2]}, {"id": 2, "keyphrases": [], "scores": []}]
    write_rows(path, rows)
    assert [(p.id, p.keyphrases) for p in read_predictions(path)] == [("1", ["a", "b"]), ("2", [])]
    write_rows(path, [{"id": 1, "keyphrases": None}, {"id": 2, "keyphrases": ["a"]}], force=True)
    with pytest.raises(InputError, match=r"x\.parquet:1: id '1': 'keyphrases' is null"):
        list(read_references(path))


def test_label_files(tmp_path):
    text = tmp_path / "universe.txt.gz"
    text.write_bytes(gzip.compress("\ufeffred shoe\r\n\r\nhat\r\n".encode()))
    assert list(read_label_file(text)) == ["red shoe", "hat"]
    rows = tmp_path / "universe.jsonl"
    rows.write_text('{"id": "1", "keyphrases": ["a", " "]}\n{"keyphrase": "b"}\n')
    assert list(read_label_file(rows)) == ["a", "b"]
    rows.write_text('{"query": "b"}\n')
    with pytest.raises(InputError, match=r"universe.jsonl:1: expected 'keyphrases'.*found: query"):
        list(read_label_file(rows))


def test_reading_is_streamed(tmp_path):
    """The first record is there although a later line is bad."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": "1", "keyphrases": []}\nnot json\n')
    stream = read_references(path)
    assert next(stream).id == "1"
    with pytest.raises(InputError, match=r"x\.jsonl:2"):
        next(stream)


def test_gzip_is_known_by_content_and_written_by_name(tmp_path):
    odd = tmp_path / "packed.jsonl"
    odd.write_bytes(gzip.compress(b'{"id": "1"}\n'))
    assert list(read_rows(odd)) == [(1, {"id": "1"})]
    first, second = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    for path in (first, second):
        write_rows(path, [{"id": "1"}])
    assert first.read_bytes() == second.read_bytes()
    assert list(read_rows(first)) == [(1, {"id": "1"})]


def test_atomic_writing(tmp_path):
    target = tmp_path / "new" / "out.json"
    with pytest.raises(RuntimeError), open_atomic(target) as stream:
        stream.write("half")
        raise RuntimeError
    assert not target.parent.exists()  # made for the file, gone with it
    write_json(target, {"a": 1})
    with pytest.raises(InputError, match="--force"):
        write_json(target, {"a": 2})
    assert json.loads(target.read_text()) == {"a": 1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(target, {"a": float("nan")}, force=True)
    assert json.loads(target.read_text()) == {"a": 1} and os.listdir(target.parent) == ["out.json"]


def test_a_link_stays_a_link_and_a_device_is_refused(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    write_json(link, [], force=True)
    assert link.is_symlink() and real.read_text() == "[]\n"
    with pytest.raises(InputError, match="not a regular file"):
        write_json("/dev/null", [], force=True)
    with pytest.raises(InputError, match="too long"):
        write_json(tmp_path / ("x" * 300), [])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; expected a folder"):
        write_json(tmp_path / "file" / "out.json", [])
