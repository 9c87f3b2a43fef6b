"""Other people's files -> examples."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pusl.cli import main
from pusl.examples import Example, read_examples

LABELS = ["drone", "tent", "fire, open", "kettle"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def convert(*words):
    return main(["data", "convert", *map(str, words)])


def result(name="out.jsonl"):
    return list(read_examples(name))


def write_xmc(rows, labels=LABELS):
    with gzip.open("trn.json.gz", "wt") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    with gzip.open("lbl.json.gz", "wt") as stream:
        stream.writelines(json.dumps({"uid": f"L{n}", "title": name}) + "\n" for n, name in enumerate(labels))


def test_xmc_raw_text(capsys):
    write_xmc([
        {"uid": "B01", "title": "Zeto X2", "content": "It flies.", "target_ind": [0, 2], "target_rel": [1.0, 1.0]},
        {"uid": "B02", "title": "Bavix", "content": "", "target_ind": [1, 1]},
        {"uid": "B03", "title": "", "content": "", "target_ind": [1]},
    ])  # fmt: skip
    assert convert("trn.json.gz", "--to", "out.jsonl.gz") == 0
    assert result("out.jsonl.gz") == [
        Example("B01", "Zeto X2. It flies.", ["drone", "fire, open"]),
        Example("B02", "Bavix", ["tent"]),
    ]
    shown = capsys.readouterr().out
    assert "2 items with 3 keyphrases (read as xmc)" in shown
    assert "1 items with a blank text left out" in shown and "1 repeated keyphrases collapsed" in shown


def test_xmc_with_a_template_and_a_label_list():
    write_xmc([{"uid": 5, "title": "Zeto", "content": "flies", "target_ind": [3]}])
    os.remove("lbl.json.gz")
    assert convert("trn.json.gz", "--to", "out.jsonl") == 2
    with open("names.txt", "w") as stream:
        stream.write("\n".join(LABELS) + "\n")
    command = ["trn.json.gz", "--to", "out.jsonl", "--labels", "names.txt", "--text-template", "{content} by {title}"]
    assert convert(*command) == 0
    assert result() == [Example("5", "flies by Zeto", ["kettle"])]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"uid": "1", "title": "t", "target_ind": [9]}, "trn.json.gz:1: label 9 has no name; the label file has 4"),
        ({"uid": "1", "title": "t", "target_ind": ["a"]}, "'target_ind' must be a list of label numbers"),
        ({"uid": "1", "title": "t", "target_ind": None}, "'target_ind' must be a list of label numbers"),
    ],
)
def test_bad_xmc(capsys, row, words):
    write_xmc([row])
    assert convert("trn.json.gz", "--to", "out.jsonl") == 2
    assert words in capsys.readouterr().err and not os.path.exists("out.jsonl")


def test_repeated_uids_are_refused_or_numbered(capsys):
    write_xmc([{"uid": "1", "title": f"t{n}", "target_ind": [n]} for n in range(2)])
    assert convert("trn.json.gz", "--to", "out.jsonl") == 2
    shown = capsys.readouterr().err
    assert "pass --duplicates merge" in shown and "--number-ids" in shown and not os.path.exists("out.jsonl")
    assert convert("trn.json.gz", "--to", "out.jsonl", "--number-ids") == 0
    assert [e.id for e in result()] == ["1", "2"]
    assert convert("trn.json.gz", "--to", "out.jsonl", "--duplicates", "first", "--force") == 0
    assert result() == [Example("1", "t0", ["drone"])]


LONG = "id,text,keyphrases,counts\n1,Zeto X2,drone,3\n2,Bavix,tent,1\n1,Zeto X2,gps|Drone,2|4\n1,Zeto X3,fast,1\n"


def test_rows_with_one_id_become_one_item_in_the_way_that_is_named(capsys):
    with open("long.csv", "w") as stream:
        stream.write(LONG)
    assert convert("long.csv", "--to", "out.jsonl") == 2
    shown = capsys.readouterr().err
    assert "long.csv:4: id '1' occurs twice (first in line 2)" in shown
    assert "--duplicates merge" in shown and "--duplicates first" in shown and shown.count("\n") == 1
    assert not os.path.exists("out.jsonl")
    assert convert("long.csv", "--to", "merged.jsonl", "--duplicates", "merge") == 0
    assert result("merged.jsonl") == [
        Example("1", "Zeto X2", ["drone", "gps", "fast"], [7, 2, 1]), Example("2", "Bavix", ["tent"], [1]),
    ]  # fmt: skip
    shown = capsys.readouterr().out
    assert "2 rows united with an earlier row" in shown and "1 rows whose text differs" in shown
    assert convert("long.csv", "--to", "first.jsonl", "--duplicates", "first") == 0
    assert result("first.jsonl") == [Example("1", "Zeto X2", ["drone"], [3]), Example("2", "Bavix", ["tent"], [1])]
    assert "2 rows left out because an earlier row has their id" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("encoding", "delimiter", "notes"),
    [
        ("utf-8", ";", ["';' was taken as the character between cells (see --delimiter)"]),
        ("utf-8-sig", "\t", ["a tab was taken"]),
        ("cp1252", ",", ["is not UTF-8; read as cp1252 (see --encoding)"]),
        ("utf-16", "|", ["read as utf-16", "'|' was taken"]),
        ("utf-8", ",", []),
    ],
)
def test_how_a_table_is_written_is_guessed_and_said(capsys, encoding, delimiter, notes):
    cells = [["id", "text", "keyphrases"], ["1", "Größe, €", '["a", "b"]']]
    with open("items.csv.gz", "wb") as raw, gzip.open(raw, "wt", encoding=encoding, newline="") as stream:
        csv.writer(stream, delimiter=delimiter).writerows(cells)
    assert convert("items.csv.gz", "--to", "out.jsonl") == 0
    assert result() == [Example("1", "Größe, €", ["a", "b"])]
    shown = capsys.readouterr().err
    assert all(note in shown for note in notes) and shown.count("\n") == len(notes)


def write_libsvm(lines, texts=("Zeto X2", "Bavix: a tent", "Kettle")):
    with open("train.txt", "w") as stream:
        stream.write("\n".join(lines) + "\n")
    with open("texts.txt", "w") as stream:
        stream.write("\n".join(texts) + "\n")
    with open("labels.txt", "w") as stream:
        stream.write("\n".join(LABELS) + "\n")
    return ["train.txt", "--to", "out.jsonl", "--texts", "texts.txt", "--labels", "labels.txt"]


@pytest.mark.parametrize(
    "lines",
    [
        ["3 10 4", "0,2 1:0.5 7:1", " 3:1.5", "3 2:1"],
        ["3 10 4", "0,2 1:0.5 7:1", "1:0.5 3:1.5", "3 2:1"],
        ["3 4", "0:1 2:1.0", "", "3:1"],
    ],
)
def test_libsvm_labels_with_texts(lines):
    assert convert(*write_libsvm(lines)) == 0
    assert result() == [
        Example("1", "Zeto X2", ["drone", "fire, open"]),
        Example("2", "Bavix: a tent", []),
        Example("3", "Kettle", ["kettle"]),
    ]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["a header", "0"], "train.txt:1: expected a header"),
        (["3 10 9", "0", "1", "2"], "says 9 labels, but labels.txt names 4"),
        (["3 10 4", "0", "x", "2"], "train.txt:3: expected label numbers, found 'x'"),
        (["3 10 4", "0", "1", "7"], "train.txt:4: label 7 has no name"),
        (["3 10 4", "0", "1"], "the header says 3 items, but 2 lines follow"),
        (["4 10 4", "0", "1", "2", "3"], "texts.txt: has 3 lines, but train.txt has more items"),
        (["2 10 4", "0", "1"], "texts.txt: has more lines than train.txt has items (2)"),
    ],
)
def test_bad_libsvm(capsys, lines, words):
    assert convert(*write_libsvm(lines)) == 2
    assert words in capsys.readouterr().err and not os.path.exists("out.jsonl")


LOG = [
    ("s1", "Zeto X2", "drone", 3), ("s2", "Bavix", "tent", 1), ("s1", "Zeto X2", "zeto drone", 5),
    ("s1", "Zeto X2", "Drone ", 4), ("s2", "Bavix", " ", 9),
]  # fmt: skip


@pytest.mark.parametrize("name", ["log.csv", "log.parquet", "log.jsonl"])
def test_logs_are_added_up(capsys, name):
    columns = ("sku", "title", "query", "count")
    if name.endswith(".csv"):
        with open(name, "w", newline="") as stream:
            csv.writer(stream).writerows([columns, *LOG])
    elif name.endswith(".parquet"):
        pq.write_table(pa.table(dict(zip(columns, map(list, zip(*LOG, strict=True)), strict=True))), name)
    else:
        with open(name, "w") as stream:
            stream.writelines(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in LOG)
    assert convert(name, "--to", "out.jsonl", "--id-column", "sku", "--text-column", "title") == 0
    assert result() == [
        Example("s1", "Zeto X2", ["drone", "zeto drone"], [7, 5]),
        Example("s2", "Bavix", ["tent"], [1]),
    ]
    assert "read as log" in capsys.readouterr().out
    flags = ["--id-column", "sku", "--text-column", "title", "--min-count", "2", "--drop-unlabeled", "--force"]
    assert convert(name, "--to", "out.jsonl", *flags) == 0
    assert [(e.id, e.counts) for e in result()] == [("s1", [7, 5])]


def test_log_without_counts_and_with_a_template():
    with open("log.tsv", "w") as stream:
        stream.write(
            "id\tbrand\tname\tquery\ttimestamp\n1\tZeto\tX2\tdrone\t2025-01-01\n1\tZeto\tX2\tdrone\t2025-02-01\n"
        )
    assert convert("log.tsv", "--to", "out.jsonl", "--text-template", "{brand} {name}") == 0
    assert result() == [Example("1", "Zeto X2", ["drone"], [2], "2025-01-01")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,query\n1,a\n", "log.csv has no column 'text' (found: id, query). Name it with --text-column"),
        ("sku,text,query\n1,t,a\n", "log.csv has no column 'id' (found: sku, text, query). Name it with --id-column"),
        ("id,text,query,count\n1,t,a,many\n", "log.csv:2: 'count' must be an integer >= 0, found 'many'"),
        ("id,text,query,count\n1,t,a,-3\n", "log.csv:2: 'count' must be an integer >= 0, found '-3'"),
        ("id,text,query,count\n", "is empty"),
    ],
)
def test_bad_logs(capsys, text, words):
    with open("log.csv", "w") as stream:
        stream.write(text)
    assert convert("log.csv", "--to", "out.jsonl", "--format", "log") == 2
    assert words in capsys.readouterr().err and not os.path.exists("out.jsonl")


def test_csv_columns_with_a_separator():
    with open("items.csv", "w") as stream:
        stream.write('title,body,tags\nZeto,flies,"drone; fire, open;"\nBavix,,\n')
    columns = ["--text-template", "{title}. {body}", "--keyphrases-column", "tags", "--separator", ";"]
    assert convert("items.csv", "--to", "out.parquet", *columns) == 0
    found = result("out.parquet")
    assert [(e.id, e.text, e.keyphrases) for e in found] == [
        ("2", "Zeto. flies", ["drone", "fire, open"]),
        ("3", "Bavix.", []),
    ]
    assert found[0].extra == {"title": "Zeto", "body": "flies"}


@pytest.mark.parametrize(
    ("lists", "items", "flags", "fix"),
    [
        ("a|b|c", 4, ["--separator", ";"], '--separator "|"'),
        ("a; b", 3, [], '--separator ";"'),
        ("a, b; c", 3, [], '--separator ";"'),
        ("a\tb", 3, [], "--separator $'\\t'"),
        ("a, b", 31, [], '--separator ","'),
        ("a; b", 2, [], None),
        ("UK cities, towns and villages", 20, [], None),
        ('["a; b"]', 2, [], None),
        ("a|b", 60, [], None),
        ("a;b", 60, ["--separator", ";"], None),
    ],
)
def test_lists_that_were_probably_not_split(capsys, lists, items, flags, fix):
    """Of 60 items, 3 are enough for a warning; labels with a comma are common, so it takes more than half of them."""
    with open("items.csv", "w", newline="") as stream:
        rows = [(number, "text", lists if number < items else "label") for number in range(60)]
        csv.writer(stream).writerows([("id", "text", "keyphrases"), *rows])
    assert convert("items.csv", "--to", "out.jsonl", *flags) == 0
    said = capsys.readouterr().err
    if fix is None:
        assert not said
    else:
        assert f"{items} of 60 labeled items have one keyphrase with" in said and said.count("\n") == 1
        assert f"for example {lists!r}; if it separates keyphrases, add {fix}\n" in said


def test_lists_of_json_are_lists(capsys):
    with open("items.jsonl", "w") as stream:
        stream.writelines(json.dumps({"id": str(n), "text": "t", "keyphrases": ["a; b"]}) + "\n" for n in range(9))
    assert convert("items.jsonl", "--to", "out.jsonl") == 0
    assert not capsys.readouterr().err


@pytest.fixture
def dataset():
    import datasets

    datasets.disable_progress_bars()
    return datasets.Dataset.from_dict(
        {"name": ["a", "b"], "doc": ["Zeto", "Bavix"], "tags": [["drone"], ["tent", "x"]]}
    )


HF_COLUMNS = ["--text-column", "doc", "--keyphrases-column", "tags"]


def test_a_saved_dataset(dataset):
    dataset.save_to_disk("saved")
    assert convert("saved", "--to", "out.jsonl", *HF_COLUMNS, "--id-column", "name") == 0
    assert result() == [Example("a", "Zeto", ["drone"]), Example("b", "Bavix", ["tent", "x"])]
    assert convert("saved", "--to", "numbered.jsonl", *HF_COLUMNS) == 0
    assert [(e.id, e.extra) for e in result("numbered.jsonl")] == [("1", {"name": "a"}), ("2", {"name": "b"})]


def test_a_saved_dataset_with_splits(dataset, capsys):
    import datasets

    datasets.DatasetDict({"train": dataset, "validation": dataset}).save_to_disk("saved")
    assert convert("saved", "--to", "out.jsonl", *HF_COLUMNS) == 2
    assert "several splits (found: train, validation). Name one with --split, or all" in capsys.readouterr().err
    assert convert("saved", "--to", "out.jsonl", *HF_COLUMNS, "--split", "dev") == 2
    assert "no split 'dev' (found: train, validation)" in capsys.readouterr().err
    assert convert("saved", "--to", "out.jsonl", *HF_COLUMNS, "--split", "validation") == 0
    assert len(result()) == 2
    capsys.readouterr()
    assert convert("saved", "--to", "data", *HF_COLUMNS, "--split", "all") == 0
    said = capsys.readouterr().out
    assert "data/train.jsonl: 2 items" in said and "data/dev.jsonl: 2 items" in said
    assert result("data/train.jsonl") == result("data/dev.jsonl") == result()
    assert convert("saved", "--to", "data", *HF_COLUMNS, "--split", "all") == 2
    assert "--force" in capsys.readouterr().err
    dataset.save_to_disk("single")
    assert convert("single", "--to", "data", *HF_COLUMNS, "--split", "all") == 2
    assert "has only one split; omit --split all" in capsys.readouterr().err


def test_class_numbers_become_names():
    import datasets

    features = datasets.Features(
        {"doc": datasets.Value("string"), "tags": datasets.Sequence(datasets.ClassLabel(names=LABELS))}
    )
    datasets.Dataset.from_dict({"doc": ["Zeto"], "tags": [[0, 2]]}, features=features).save_to_disk("saved")
    assert convert("saved", "--to", "out.jsonl", *HF_COLUMNS) == 0
    assert result() == [Example("1", "Zeto", ["drone", "fire, open"])]


@pytest.mark.slow
def test_a_folder_of_data_files(folder):
    """`load_dataset` on a folder, in a process of its own so that the cache stays in the test's folder."""
    (folder / "data").mkdir()
    (folder / "data" / "train.jsonl").write_text('{"id": "1", "text": "Zeto", "keyphrases": ["drone"]}\n')
    environment = {**os.environ, "HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "pusl", "data", "convert", "data", "--to", "out.jsonl", "--format", "hf"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert result() == [Example("1", "Zeto", ["drone"])]
    command = [sys.executable, "-m", "pusl", "data", "convert", "no/such", "--to", "none.jsonl", "--format", "hf"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 2 and "no/such: `datasets` cannot load it" in done.stderr
    assert "Traceback" not in done.stderr and not (folder / "none.jsonl").exists()


def test_datasets_with_wrong_columns(dataset, capsys):
    dataset.save_to_disk("saved")
    assert convert("saved", "--to", "out.jsonl") == 2
    assert "saved has no column 'text' (found: name, doc, tags). Name it with --text-column" in capsys.readouterr().err
    assert not os.path.exists("out.jsonl")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing", "--to", "o.jsonl"], "nothing: no such file. A dataset of the Hugging Face hub needs --format hf"),
        (["notes.doc", "--to", "o.jsonl"], "notes.doc: cannot tell what this is. Pass --format"),
        (["items.csv", "--to", "o.doc"], "o.doc: unknown file ending"),
        (["items.csv", "--to", "there.jsonl"], "pass --force"),
        (["items.csv", "--to", "o.jsonl", "--min-count", "0"], "'min_count' is 0"),
        (
            ["items.csv", "--to", "o.jsonl", "--format", "libsvm"],
            "--format libsvm needs the items' texts (--texts FILE)",
        ),
        (["items.csv", "--to", "o.jsonl"], "items.csv has no column 'text' (found: title)."),
        (["xmc", "--to", "o.jsonl"], "xmc: is a folder of XMC files. Name one"),
        (
            [".", "--to", "o.jsonl"],
            ".: is a folder. Name a file, or add --format hf (a folder that `datasets` can load)",
        ),
    ],
)
def test_bad_calls(folder, capsys, words, message):
    (folder / "items.csv").write_text("title\nZeto\n")
    (folder / "notes.doc").write_text("")
    (folder / "there.jsonl").write_text("")
    (folder / "xmc").mkdir()
    (folder / "xmc" / "lbl.json").write_text("")
    assert convert(*words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") <= 2
    assert not {"o.jsonl", "o.doc"} & set(os.listdir())
