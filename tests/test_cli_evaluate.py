"""`pusl evaluate` is `python -m pusl_eval` under another name, with datasets besides."""

from __future__ import annotations

import json
import re
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
    own = re.search(r"  --dataset DIR .*(?:\n {10,}.*)*\n", texts[0])
    assert texts[0].replace(own.group(), "") == texts[1] != ""


def test_scores_as_a_dataset(files, capsys):
    import datasets

    rows = [json.loads(line) for line in Path("test.jsonl").read_text().splitlines()]
    write_rows("grouped.jsonl", [{**row, "group": "ab"[n % 2]} for n, row in enumerate(rows)])
    files[1] = "grouped.jsonl"
    more = ["--train", "test.jsonl", "--output", "m.json", "--dataset", "scores"]
    assert main(["evaluate", *files, *more]) == 0
    metrics = json.loads(Path("m.json").read_text())
    saved = datasets.load_from_disk("scores")
    assert saved.column_names == ["system", "group", "metric", "value", "low", "high"]
    assert set(saved["system"]) == {"predictions"}
    assert {"all", "narrow", "diverse", "group:a", "group:b", "bin:1-9"} <= set(saved["group"])
    for place, scores, spans in (
        ("all", metrics["scores"]["all"], metrics["intervals"]["all"]),
        ("group:b", metrics["groups"]["b"], metrics["intervals"]["groups"]["b"]),
    ):
        of = [row for row in saved if row["group"] == place]
        assert {row["metric"]: row["value"] for row in of} == scores
        spanned = {row["metric"]: [row["low"], row["high"]] for row in of if row["low"] is not None}
        assert spanned == {metric: span for metric, span in spans.items() if span} != {}
    assert (
        main(["evaluate", *files, *more[:-2], "--force", "--dataset", "scores", "--predictions", "b=test.jsonl"]) == 0
    )
    both = datasets.load_from_disk("scores").to_pandas()
    assert set(both["system"]) == {"predictions", "b"} and (both[both["metric"] == "R@6"]["value"].dropna() == 1).all()
    capsys.readouterr()
    for flags, message in (
        (["--dataset", "scores"], "--dataset scores: exists already; pass --force to overwrite it"),
        (["--dataset", "test.jsonl", "--force"], "--dataset test.jsonl: exists and is not a dataset"),
        (["--dataset", "new", "--output", "new"], "--dataset new: would replace --output new; name another folder"),
        (["--dataset", "scores", "--output", "scores/m.json", "--force"], "would replace --output scores/m.json"),
    ):
        assert main(["evaluate", *files, *flags]) == 2
        error, out = capsys.readouterr()[::-1]
        assert message in error and error.count("\n") == 1 and not out, (flags, error)
    assert not Path("new").exists() and datasets.load_from_disk("scores").num_rows == len(both)


def test_rows_for_a_frame():
    from pusl import compare, evaluate

    truth = {"a": ["hat", "cap"], "b": ["coat"]}
    one = evaluate(truth, truth, k=[2])
    assert {
        "system": "predictions",
        "group": "all",
        "metric": "R@2",
        "value": 1.0,
        "low": 1.0,
        "high": 1.0,
    } in one.rows()
    two = compare(truth, {"x": truth, "y": {"a": [], "b": []}}, k=[2])
    assert two.rows() == [*two.evaluations["x"].rows("x"), *two.evaluations["y"].rows("y")]


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
    assert main(["report", *files, "--delimiter", ";", "--encoding", "latin-1", "--output", "s.html"]) == 2
    assert "no column 'id' (found: sku, title, tags). Name it with --id-column" in capsys.readouterr().err
    assert main(["judge", *files, "--output", "v.jsonl", "--dry-run"]) == 2
