"""The one reader and writer: limits, encodings, delimiters, damage, and the column flags of every command."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from catalog_words import WordsRecipe

from pusl.catalog.run import generate_catalog
from pusl.cli import main
from pusl.examples import read_examples
from pusl_eval import evaluate
from pusl_eval.columns import BadRecord, Columns, ItemFields, ItemFile, render
from pusl_eval.files import (
    MAX_LINE,
    Dialect,
    InputError,
    file_digest,
    folder_atomic,
    open_atomic,
    open_reader,
    read_lines,
    read_rows,
    write_rows,
)
from pusl_eval.files.lines import TOO_LONG
from pusl_eval.records import read_references

ROWS = [
    {"id": "a1", "text": "Töpfe, groß", "keyphrases": ["topf", "töpfe"]},
    {"id": "a2", "text": 'say "hi"', "keyphrases": ["hi"]},
]
COMMANDS = {
    "generate": (), "score": (), "train": (), "post-train": (), "evaluate": (), "report": (), "judge": (),
    "rerank": (), "fuse": (), "baseline": ("knn",), "data": ("convert",),
}  # fmt: skip
FLAGS = (
    "--id-column", "--text-column", "--text-template", "--keyphrases-column", "--separator", "--delimiter",
    "--encoding",
)  # fmt: skip


def bomb(path: Path, start: bytes, piece: bytes, total: int = 256 << 20) -> Path:
    """A small gzip file that unpacks to `total` bytes."""
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(start)
        block = piece * ((1 << 20) // len(piece))
        for _ in range(total // len(block)):
            stream.write(block)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "start", "piece"),
    [
        ("a.jsonl.gz", b'{"id": "', b"a"),
        ("a.csv.gz", b"id,text,keyphrases\n1,", b"a"),
        ("quotes.csv.gz", b'id,text,keyphrases\n1,"', b"a\n"),
        ("cells.csv.gz", b'id,text,keyphrases\n1,"a\n', b'","a\n'),
        ("a.txt.gz", b"", b"a"),
    ],
)
def test_a_long_line_costs_little_memory(tmp_path, name, start, piece):
    path = bomb(tmp_path / name, start, piece)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"the record is longer than 16 MiB"):
            list(read_lines(path) if ".txt" in name else read_examples(path))
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_a_long_record_is_rejected_and_the_next_is_used(tmp_path):
    long = b"a" * (MAX_LINE + 5)
    (tmp_path / "in.jsonl").write_bytes(b'{"id": "1", "text": "' + long + b'"}\n{"id": "2", "text": "b c"}\n')
    (tmp_path / "in.csv").write_bytes(b'id,text\n1,"' + long + b'"\n2,b c\n')
    for ending in ("jsonl", "csv"):
        output = tmp_path / f"{ending}.jsonl"
        summary = generate_catalog(WordsRecipe(), tmp_path / f"in.{ending}", output, 2, workers=1, progress=False)
        assert (summary.items, summary.rejects) == (1, 1)
        assert json.loads(output.read_text())["id"] == "2"


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8-sig", "utf-16-le"])
@pytest.mark.parametrize("delimiter", [";", "\t", ","])
def test_other_encodings_and_delimiters(tmp_path, encoding, delimiter):
    write_rows(tmp_path / "a.csv", ROWS)
    plain = (tmp_path / "a.csv").read_text(encoding="utf-8")
    if delimiter != ",":
        plain = "".join(
            delimiter.join('"' + str(value).replace('"', '""') + '"' for value in cells) + "\r\n"
            for cells in [("id", "text", "keyphrases")]
            + [(row["id"], row["text"], json.dumps(row["keyphrases"])) for row in ROWS]
        )
    (tmp_path / "b.csv").write_bytes(plain.encode(encoding))
    columns = Columns(delimiter="\\t" if delimiter == "\t" else delimiter, encoding=encoding)
    assert [example.to_row() for example in read_examples(tmp_path / "b.csv", columns=columns)] == ROWS
    assert [one.keyphrases for one in read_references(ItemFile(tmp_path / "b.csv", columns))] == [
        row["keyphrases"] for row in ROWS
    ]
    output = tmp_path / "out.jsonl"
    workers = 2 if (encoding, delimiter) == ("utf-16", ";") else 1
    generate_catalog(
        WordsRecipe(), tmp_path / "b.csv", output, 3, columns=columns, workers=workers, shard_size=1, progress=False
    )
    assert [row["id"] for _, row in read_rows(output)] == ["a1", "a2"] and "Töpfe" in output.read_text("utf-8")


def test_the_error_names_the_flag_that_helps(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("id;text;keyphrases\n1;t;a\n")
    Path("b.csv").write_bytes("id,text,keyphrases\n1,Töpfe,a\n".encode("latin-1"))
    assert main(["data", "stats", "a.csv"]) == 2
    assert "the header is one column, 'id;text;keyphrases'" in (err := capsys.readouterr().err)
    assert "--delimiter ';'" in err
    assert main(["data", "stats", "b.csv"]) == 2
    assert (
        capsys.readouterr().err == "pusl: b.csv:2: not valid UTF-8; name its encoding, for example --encoding latin-1\n"
    )
    assert main(["data", "stats", "b.csv", "--encoding", "latin-1"]) == 0
    assert main(["data", "stats", "a.csv", "--delimiter", ";"]) == 0
    capsys.readouterr()
    assert main(["data", "stats", "a.csv", "--delimiter", "ab"]) == 2
    assert "--delimiter 'ab': expected one character" in capsys.readouterr().err
    assert main(["data", "stats", "a.csv", "--encoding", "klingon"]) == 2
    assert "--encoding klingon: unknown encoding" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_reads_items_has_the_column_flags(command, capsys):
    with pytest.raises(SystemExit):
        main([command, *COMMANDS[command], "--help"])
    shown = capsys.readouterr().out
    assert [flag for flag in FLAGS if flag not in shown] == []


def test_scores_do_not_depend_on_how_the_columns_are_called(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows("test.jsonl", ROWS)
    write_rows("p.jsonl", [{"id": "a1", "keyphrases": ["topf", "x"]}, {"id": "a2", "keyphrases": ["hi"]}])
    Path("test.csv").write_text(
        "sku;name;tags\n" + "".join(f"{row['id']};{row['text']!r};{','.join(row['keyphrases'])}\n" for row in ROWS),
        encoding="latin-1",
    )
    flags = ["--id-column", "sku", "--keyphrases-column", "tags", "--separator", ",", "--delimiter", ";"]
    flags += ["--text-column", "name", "--encoding", "latin-1"]
    common = ["--predictions", "p.jsonl", "--k", "2", "--bootstrap", "0", "--output"]
    assert main(["evaluate", "--references", "test.jsonl", "--train", "test.jsonl", *common, "a.json"]) == 0
    assert main(["evaluate", "--references", "test.csv", "--train", "test.csv", *flags, *common, "b.json"]) == 0
    one, two = (json.loads(Path(name).read_text()) for name in ("a.json", "b.json"))
    assert one["scores"] == two["scores"] and one["mu"] == two["mu"]
    assert main(["report", "--references", "test.csv", "--predictions", "p.jsonl", *flags, "--output", "r.html"]) == 0
    capsys.readouterr()
    columns = Columns("sku", "name", keyphrases_column="tags", separator=",", delimiter=";", encoding="latin-1")
    found = evaluate(ItemFile("test.csv", columns), "p.jsonl", [2], bootstrap=0)
    assert found["scores"]["all"]["F1@O"] == one["scores"]["all"]["F1@O"]


def test_a_folder_that_no_run_made_is_left_alone(tmp_path):
    write_rows(tmp_path / "in.jsonl", [{"id": "1", "text": "a b"}])
    folder = tmp_path / "out.jsonl.parts"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(InputError, match=r"out.jsonl.parts: holds other files \(thesis.txt\)"):
            generate_catalog(
                WordsRecipe(), tmp_path / "in.jsonl", tmp_path / "out.jsonl", 2, workers=1, force=force, progress=False
            )
    assert (folder / "thesis.txt").read_text() == "mine" and os.listdir(folder) == ["thesis.txt"]


@pytest.mark.parametrize(
    ("template", "values", "text"),
    [
        ("{title}. {body}", ("", "text"), "text"),
        ("{title}. {body}", ("Zeto", ""), "Zeto."),
        ("{title} - {body} | {more}", ("Zeto", "", "x"), "Zeto - x"),
        ("{title} ({body}) {more}", ("Zeto", "", "x"), "Zeto () x"),
        ("by {title}. {body}", ("", "text"), "by text"),
    ],
)
def test_an_empty_field_takes_its_separator_along(template, values, text):
    assert render(template, dict(zip(("title", "body", "more"), values, strict=False))) == text


def test_a_parquet_record_has_the_limit_of_a_line(tmp_path):
    """20 KB of Parquet can hold a text of 600 MB."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    small, large, huge = "a", "b" * (MAX_LINE - 100), "c" * (MAX_LINE + 1)
    for values, row in (([small, huge, small, large], 2), ([small] * 3 + [large] * 3, 0), ([huge], None)):
        path = tmp_path / "a.parquet"
        parquet.write_table(pa.table({"text": values, "n": range(len(values))}), path, compression="zstd")
        reader = open_reader(path)
        if row is None:  # the file itself says so: nothing is read
            with pytest.raises(InputError, match=r"a\.parquet: column 'text': the record is longer than 16 MiB"):
                list(reader.rows())
            assert [row for _, row in open_reader(path, names=["n"]).rows()] == [{"n": 0}]
            continue
        found = [given if isinstance(given, str) else given["text"] for _, given in reader.rows()]
        assert found == [TOO_LONG if value is huge else value for value in values]
        assert reader.read(0, len(values)) == [given for _, given in reader.rows()]
        if row:
            with pytest.raises(InputError, match=f"a.parquet:{row}: the record is longer than 16 MiB"):
                list(read_rows(path))


def test_parquet_that_python_cannot_hold(tmp_path):
    import pyarrow
    import pyarrow.parquet

    text = pyarrow.array([b"good", b"\xff\xfe"]).cast(pyarrow.string(), safe=False)
    table = pyarrow.table({"id": ["1", "2"], "text": text})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a.parquet:2: a value cannot be read \(not valid UTF-8\)"):
        list(read_rows(tmp_path / "a.parquet"))
    reader = open_reader(tmp_path / "a.parquet")
    (batch,) = reader.batches(10)
    assert next(reader.parse(batch)).row == {"id": "1", "text": "good"}


def test_lines_of_a_cell_end_alike_however_the_file_was_written(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'id,text\r\n1,"two\r\nlines"\r\n')
    assert list(read_rows(tmp_path / "a.csv")) == [(3, {"id": "1", "text": "two\nlines"})]


def test_unknown_dialects_are_refused_at_once():
    for wrong in ({"delimiter": ""}, {"delimiter": "\n"}, {"encoding": "base64"}, {"encoding": "no-such"}):
        with pytest.raises(InputError, match=r"--delimiter|--encoding"):
            Dialect(**wrong)


def test_bad_records_say_what_helps():
    fields = ItemFields(Columns(), table=False)
    with pytest.raises(BadRecord, match=r"no field 'text' \(found: id\)") as caught:
        fields.text({"id": "1"})
    shown = str(fields.refuse(caught.value, {"id": "1"}, "items.jsonl", 7, "1"))
    expected = "no field 'text' (found: id). Name it with --text-column, or build it with --text-template"
    assert shown == f"items.jsonl:7: id '1': {expected}"


def test_folders_and_files_appear_whole_or_not_at_all(tmp_path):
    with folder_atomic(tmp_path / "out") as folder:
        (folder / "a").write_text("1")
        assert not (tmp_path / "out").exists()
    with pytest.raises(RuntimeError), folder_atomic(tmp_path / "out") as folder:
        (folder / "a").write_text("2")
        raise RuntimeError
    with pytest.raises(RuntimeError), open_atomic(tmp_path / "b.csv.gz") as stream:
        stream.write("half")
        raise RuntimeError
    assert os.listdir(tmp_path) == ["out"] and (tmp_path / "out" / "a").read_text() == "1"
    assert file_digest(tmp_path / "out" / "a") == "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"


def test_convert_says_what_it_guessed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("SKU,text,keyphrases\nx9,t,a;b\nx8,u,c;d\nx7,v,e\n")
    assert main(["data", "convert", "a.csv", "--to", "a.jsonl"]) == 0
    said = capsys.readouterr().err
    assert "a.csv: no column 'id': the ids are those of 'SKU' (see --id-column)" in said
    assert "2 of 3 labeled items have one keyphrase with ';' in it, for example 'a;b'" in said
    assert 'add --separator ";"' in said
    assert [example.id for example in read_examples("a.jsonl")] == ["x9", "x8", "x7"]
    flags = ["--id-column", "SKU", "--separator", ";"]
    assert main(["data", "convert", "a.csv", "--to", "b.jsonl", *flags]) == 0
    assert "pusl:" not in capsys.readouterr().err
    Path("c.csv").write_text("text,keyphrases\nt,a\n")
    assert main(["data", "convert", "c.csv", "--to", "c.jsonl"]) == 0
    assert "no column 'id' (found: text, keyphrases): row numbers are the ids" in capsys.readouterr().err
