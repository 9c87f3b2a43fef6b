"""`pusl evaluate` is `python -m pusl_eval` under another name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pusl.cli import main
from pusl_eval.__main__ import main as eval_main
from pusl_eval.files import write_rows


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"id": str(n), "keyphrases": ["red shoe", "hat", f"label {n}"][: n % 3 + 1]} for n in range(12)]
    write_rows("test.jsonl", rows)
    write_rows("predictions.jsonl", [{**row, "keyphrases": row["keyphrases"][::-1]} for row in rows])
    return ["--references", "test.jsonl", "--predictions", "predictions.jsonl", "--k", "3", "6"]


def test_the_same_numbers_and_the_same_table(files, capsys):
    assert main(["evaluate", *files, "--train", "test.jsonl", "--output", "a.json"]) == 0
    ours = capsys.readouterr().out
    assert eval_main([*files, "--train", "test.jsonl", "--output", "b.json"]) == 0
    assert capsys.readouterr().out == ours
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()
    assert json.loads(Path("a.json").read_text())["scores"]["all"]["R@3"] == 1


def test_the_same_flags(capsys):
    texts = []
    for program, argv in ((main, ["evaluate", "--help"]), (eval_main, ["--help"])):
        with pytest.raises(SystemExit) as stop:
            program(argv)
        assert stop.value.code == 0
        texts.append(capsys.readouterr().out.partition("options:")[2])
    assert texts[0] == texts[1] != ""


def test_bad_input(files, capsys):
    Path("predictions.jsonl").write_text('{"id": "nobody", "keyphrases": []}\n')
    assert main(["evaluate", *files, "--output", "m.json"]) == 2
    error = capsys.readouterr().err
    assert "predictions.jsonl:1" in error and "'nobody'" in error and len(error.splitlines()) == 1
    assert not Path("m.json").exists()


def test_report_and_judge_read_the_columns_of_a_users_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("shop.csv").write_bytes("sku;title;tags\ni0;Ä red shoe;red shoe/hat\ni1;Coat;coat\n".encode("latin-1"))
    write_rows("p.jsonl", [{"id": "i0", "keyphrases": ["hat", "red shoe"]}, {"id": "i1", "keyphrases": ["x", "coat"]}])
    columns = [
        "--id-column", "sku", "--text-column", "title", "--keyphrases-column", "tags", "--separator", "/",
        "--delimiter", ";", "--encoding", "latin-1",
    ]  # fmt: skip
    files = ["--references", "shop.csv", "--predictions", "p.jsonl", "--train", "shop.csv"]
    assert main(["report", *files, "--complete", "shop.csv", *columns, "--output", "r.html"]) == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert "Ä red shoe" in page and "1.50" in page
    capsys.readouterr()
    assert main(["judge", *files, *columns, "--output", "v.jsonl", "--dry-run"]) == 0
    assert "items:    2 (12 verdicts)" in capsys.readouterr().out
    assert main(["judge", *files, "--output", "v.jsonl", "--dry-run"]) == 2
