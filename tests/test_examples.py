"""Files -> Example records: every kind, every way a line can be wrong."""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pusl.examples import Columns, Example, SeenIds, read_examples, write_examples
from pusl_eval.columns import template_fields
from pusl_eval.files import InputError

ROWS = [
    {"id": "a1", "text": "Zeto X2 drone", "keyphrases": ["drone", "zeto drone"], "counts": [5, 1]},
    {"id": "a2", "text": 'Töpfe, "groß"\n2 St.', "keyphrases": ["töpfe"], "counts": [2]},
]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.csv", "a.tsv", "a.csv.gz"])
def test_every_kind_gives_back_what_was_written(tmp_path, name):
    examples = [Example(**row) for row in ROWS]
    assert write_examples(tmp_path / name, examples) == 2
    assert list(read_examples(tmp_path / name)) == examples


def test_unknown_fields_are_kept_and_written_back(tmp_path):
    row = {**ROWS[0], "timestamp": "2025-01-02", "group": "hot", "price": 3.5, "tags": {"a": [1]}}
    source = write_lines(tmp_path / "a.jsonl", [row])
    [example] = read_examples(source)
    assert (example.timestamp, example.group, example.extra) == (
        "2025-01-02",
        "hot",
        {"price": 3.5, "tags": {"a": [1]}},
    )
    write_examples(tmp_path / "b.jsonl", [example])
    assert json.loads((tmp_path / "b.jsonl").read_text()) == row


def test_bom_crlf_blank_lines_and_integer_ids(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": 7, "text": "t", "keyphrases": ["a", " ", ""], "counts": [1, 2, 3]}\r\n\r\n')
    assert list(read_examples(path)) == [Example("7", "t", ["a"], [1])]


def test_text_from_a_template(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("id,title,description,keyphrases\n1,Zeto,a drone,x|y\n2,Bavix,,[]\n")
    texts = [example.text for example in read_examples(path, "{title}. {description}")]
    assert texts == ["Zeto. a drone", "Bavix."]


def test_template_in_jsonl_allows_an_absent_field_but_not_all(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"id": 1, "title": "Zeto", "keyphrases": []}])
    assert [example.text for example in read_examples(path, "{title} {body}")] == ["Zeto"]
    with pytest.raises(InputError, match=r"no field 'name' \(found: id, title, keyphrases\)"):
        list(read_examples(path, "{name} {body}"))


@pytest.mark.parametrize("template", ["plain", "{}", "{a.b}", "{a[0]}", "{a:>5}", "{a!r}", "{a"])
def test_templates_name_columns_and_nothing_else(template):
    with pytest.raises(InputError, match="--text-template"):
        template_fields(template)


def test_named_columns_and_separator(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text('sku,name,tags,clicks\n1,Zeto,"a, b","3,1"\n')
    columns = Columns("sku", "name", keyphrases_column="tags", counts_column="clicks", separator=",")
    assert list(read_examples(path, columns=columns)) == [Example("1", "Zeto", ["a", "b"], [3, 1])]


def test_a_json_array_in_a_cell_wins_over_the_separator(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text('id,text,keyphrases\n1,t,"[""fire, open"", ""a|b""]"\n')
    assert next(read_examples(path)).keyphrases == ["fire, open", "a|b"]


def test_missing_column_says_expected_found_and_fix(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("id,title,desc,keyphrases\n1,t,d,a\n")
    with pytest.raises(InputError) as caught:
        list(read_examples(path))
    assert str(caught.value).startswith(
        f"{path} has no column 'text' (found: id, title, desc, keyphrases). Name it with --text-column"
    )


def test_parquet_values_that_json_lacks(tmp_path):
    table = pa.table({
        "id": [1, 2], "text": ["t", "u"], "keyphrases": [["a"], []], "counts": [[2.0], []],
        "timestamp": [datetime.datetime(2025, 1, 2), None], "price": [float("nan"), 1.5],
        "day": [datetime.date(2025, 1, 2)] * 2,
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    one, two = read_examples(tmp_path / "a.parquet")
    assert one.to_row() == {
        "id": "1", "text": "t", "keyphrases": ["a"], "counts": [2], "timestamp": "2025-01-02T00:00:00",
        "price": None, "day": "2025-01-02",
    }  # fmt: skip
    assert two.timestamp is None and two.extra["price"] == 1.5


def test_null_text_in_parquet_is_named_as_such(tmp_path):
    pq.write_table(
        pa.table({"id": ["1"], "text": pa.array([None], pa.string()), "keyphrases": [["a"]]}), tmp_path / "a.parquet"
    )
    with pytest.raises(InputError, match="1: id '1': 'text' must be a string, found null"):
        list(read_examples(tmp_path / "a.parquet"))


def test_unlabeled_files_need_labeled_false(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"id": "1", "text": "t"}])
    assert list(read_examples(path, labeled=False)) == [Example("1", "t")]
    with pytest.raises(InputError, match="no field 'keyphrases'"):
        list(read_examples(path))


BAD_LINES = {
    '{"id": "a", "text": "t", "keyphrases": null}': "'keyphrases' must be a list of strings, found null",
    '{"id": "a", "text": "t", "keyphrases": "drone"}': "'keyphrases' must be a list of strings, found a string",
    '{"id": "a", "text": "t", "keyphrases": ["x", 5]}': "must be a list of strings, found a number in it",
    '{"id": "a", "text": "t", "keyphrases": [["x"]]}': "found a list in it",
    '{"id": "a", "text": "t", "keyphrases": ["' + "x" * 1_000_000 + '"]}': "a keyphrase of 1,000,000 characters",
    '{"id": "a", "text": 3, "keyphrases": []}': "'text' must be a string, found a number",
    '{"id": null, "text": "t", "keyphrases": []}': "'id' must be a string or an integer, found null",
    '{"id": true, "text": "t", "keyphrases": []}': "'id' must be a string or an integer, found true/false",
    '{"id": "", "text": "t", "keyphrases": []}': "'id' is blank",
    '{"text": "t", "keyphrases": []}': r"no field 'id' \(found: text, keyphrases\). Name it with --id-column",
    '{"id": "a", "text": "t", "keyphrases": ["x"], "counts": [1, 2]}': "has 2 values, but there are 1 keyphrases",
    '{"id": "a", "text": "t", "keyphrases": ["x"], "counts": [-1]}': "'counts' must be integers >= 0, found -1",
    '{"id": "a", "text": "t", "keyphrases": ["x"], "counts": [1.5]}': "'counts' must be integers >= 0, found 1.5",
    '{"id": "a", "text": "t", "keyphrases": ["x"], "counts": [true]}': "'counts' must be integers >= 0",
    '{"id": "a", "text": "t", "keyphrases": ["x"], "counts": 3}': "'counts' must be a list of integers",
    '{"id": "a", "text": "\\ud800", "keyphrases": []}': "half of a surrogate pair",
    '{"id": "a", "text": "t", "keyphrases": [NaN]}': "not a JSON object",
    '["id", "text"]': "expected a JSON object, found a list",
    "not json": "not a JSON object",
}  # fmt: skip


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:60])
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n")
    with pytest.raises(InputError, match=BAD_LINES[line]) as caught:
        list(read_examples(path))
    assert f"{path}:2" in str(caught.value) and len(str(caught.value)) < 400
    if line.startswith('{"id": "a"') and "surrogate" not in BAD_LINES[line] and "JSON" not in BAD_LINES[line]:
        assert "id 'a'" in str(caught.value)


def test_damaged_files(tmp_path):
    whole = gzip.compress(b"".join(json.dumps({**ROWS[0], "id": str(n)}).encode() + b"\n" for n in range(2000)))
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="damaged or cut short"):
        list(read_examples(tmp_path / "cut.jsonl.gz"))
    (tmp_path / "latin.jsonl").write_bytes('{"id": "1", "text": "Töpfe", "keyphrases": []}'.encode("latin-1"))
    with pytest.raises(InputError, match=r"latin.jsonl:1: not valid UTF-8"):
        list(read_examples(tmp_path / "latin.jsonl"))
    (tmp_path / "empty.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="is empty"):
        list(read_examples(tmp_path / "empty.jsonl"))
    (tmp_path / "no.parquet").write_bytes(b"PAR1 is not enough")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        list(read_examples(tmp_path / "no.parquet"))
    with pytest.raises(InputError, match="is a directory"):
        list(read_examples(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        list(read_examples(tmp_path / "nothing.jsonl"))


def test_duplicate_ids_name_both_lines(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [ROWS[0], ROWS[1], ROWS[0]])
    with pytest.raises(InputError, match=r"a.jsonl:3: id 'a1' occurs twice \(first in line 1\)"):
        list(read_examples(path))
    assert len(list(read_examples(path, unique_ids=False))) == 3


def test_seen_ids_finds_repeats_far_apart():
    seen = SeenIds(block=8)
    assert not any([seen.add(f"id-{n}") for n in range(1000)])
    assert not seen.finish()
    assert any([seen.add(f"id-{n}") for n in (2000, 17, *range(3000, 3010))])
    assert seen.suspects() == {hash("id-17")}
    assert not seen.suspects()


def test_reading_is_lazy(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\nbroken\n")
    assert next(read_examples(path)).id == "a1"


def test_csv_writing_refuses_rows_of_another_shape(tmp_path):
    examples = [Example("1", "t", ["a"]), Example("2", "u", ["b"], [3])]
    with pytest.raises(InputError, match="the first row lacks"):
        write_examples(tmp_path / "a.csv", examples)
    assert list(tmp_path.iterdir()) == []


def test_wide_csv_row_is_named(tmp_path):
    with open(tmp_path / "a.csv", "w", newline="") as stream:
        csv.writer(stream).writerows([["id", "text", "keyphrases"], ["1", "t", "a"], ["2", "t", "a", "extra"]])
    with pytest.raises(InputError, match=r"a.csv:3: 4 cells, but the header has 3"):
        list(read_examples(tmp_path / "a.csv"))


MEASURE = """
import resource, sys
from pusl.cli import main
code = main(["data", *sys.argv[1:]])
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["stats", "convert"])
def test_one_pass_commands_stream(tmp_path, command):
    """A file of 26 MB costs hardly more than one of a hundred KB."""
    peaks = []
    for size in (25, 8_000):
        path = tmp_path / f"{size}.jsonl"
        with open(path, "w") as stream:
            for number in range(size):
                stream.write(
                    json.dumps(
                        {"id": f"i{number}", "text": f"{number} word " * 330, "keyphrases": ["a", f"k{number % 50}"]}
                    )
                    + "\n"
                )
        extra = [] if command == "stats" else ["--to", str(tmp_path / f"{size}.out.jsonl"), "--format", "table"]
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, command, str(path), *extra], capture_output=True, text=True, check=True
        )
        code, peak = done.stderr.split()[-2:]
        assert code == "0", done.stderr
        peaks.append(int(peak))
    assert peaks[1] - peaks[0] < 12, f"peak memory {peaks} MB"
