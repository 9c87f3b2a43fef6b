"""One declaration is all that a metric needs: evaluate, the table, the help, the docs and the report follow."""

from __future__ import annotations

import doctest
import json
import logging
from pathlib import Path

import numpy as np
import pytest

from pusl_eval import compare, evaluate, metrics
from pusl_eval.__main__ import main
from pusl_eval.declarations import FURTHER, LOWER, REGISTRY, over_labels, per_item, pooled, shown_name, template
from pusl_eval.files import InputError
from pusl_eval.glossary import help_text, markdown, rewritten
from pusl_eval.judge import JudgedItem, judge_scores
from pusl_eval.presence import Texts, is_present
from pusl_eval.report import write_report
from pusl_eval.table import best_of

ROOT = Path(__file__).resolve().parent.parent
REFERENCES = {"a": ["red shoe", "hat"], "b": ["coat"]}
PREDICTIONS = {"a": ["red shoe", "boot"], "b": ["cap"]}


@pytest.fixture
def declared():
    """Three metrics that nothing else in the project knows."""

    @per_item("Wrong@k", formula="|Ŷ:k \\ Y|", meaning="Wrong phrases.", unit="number", better=LOWER, brief=True)
    def wrong(t):
        return t.unique - t.hits

    @pooled("Odd@k", formula="Σ hits / Σ 2k", meaning="An odd share.")
    def odd(t):
        return t.hits, np.full(len(t.hits), 2 * t.k)

    @over_labels("Never@k", formula="share of labels with TP = 0", meaning="Labels that are never found.", better=LOWER)
    def never(table):
        return float(np.mean(table.counts.tp == 0))

    found = [wrong, odd, never]
    yield found
    for metric in found:
        REGISTRY.remove(metric)


def test_a_declared_metric_is_everywhere(declared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scores = evaluate(REFERENCES, PREDICTIONS, k=[2])["scores"]["all"]
    assert (scores["Wrong@2"], scores["Odd@2"], scores["Never@2"]) == (1.0, 1 / 8, pytest.approx(2 / 3))
    assert evaluate(REFERENCES, PREDICTIONS, k=[2]).per_item["Wrong@2"].tolist() == [1, 1]
    assert declared[0]([["a"]], [["x", "a", "y"]], k=3).tolist() == [2]
    for name, source in (("refs", REFERENCES), ("good", REFERENCES), ("bad", PREDICTIONS)):
        rows = [{"id": key, "keyphrases": phrases, "exhausted": True} for key, phrases in source.items()]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--references", "refs.jsonl", "--k", "2", "--predictions"]
    assert main([*flags, "bad.jsonl", "--output", "m.json"]) == 0
    table = capsys.readouterr().out
    assert json.loads(Path("m.json").read_text())["scores"]["all"]["Wrong@2"] == 1.0
    for line in ("Wrong@k  ", "Odd@k  ", "Never@k  "):
        assert line in table
    assert "1.00 [1.00, 1.00]" in table and "12.5" in table
    assert main([*flags, "good=good.jsonl", "bad=bad.jsonl"]) == 0
    compared = capsys.readouterr().out
    assert "*0.00" in compared, "fewer wrong phrases are better, and the best is marked"
    assert "Wrong@2" in compared.split("Differences")[1], "a brief metric is among the differences"
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "Wrong phrases." in capsys.readouterr().out
    assert "| Wrong@k | Wrong phrases. | \\|Ŷ:k \\ Y\\| | ↓ |" in markdown(FURTHER)


def test_the_draws_of_the_others_stay(declared):
    """A further metric must not move anyone's interval."""
    generator = np.random.default_rng(0)
    truth = {str(i): [f"l{j}" for j in generator.integers(0, 9, 4)] for i in range(60)}
    guess = {str(i): [f"l{j}" for j in generator.integers(0, 9, 6)] for i in range(60)}
    with_them = evaluate(truth, guess, k=[2, 5])["intervals"]["all"]
    for metric in declared:
        REGISTRY.remove(metric)
    without = evaluate(truth, guess, k=[2, 5])["intervals"]["all"]
    for metric in declared:
        REGISTRY.add(metric)
    for name, span in without.items():
        assert with_them[name] == pytest.approx(span, abs=1e-12), name


def test_wrong_declarations_are_refused():
    for wrong in ({"better": "up"}, {"needs": "luck"}, {"unit": "inches"}, {"section": "Nowhere"}):
        with pytest.raises(ValueError, match="X@k"):
            per_item("X@k", formula="", meaning="", **wrong)(lambda t: t.hits)
    with pytest.raises(ValueError, match="two metrics are called B@k"):
        per_item("B@k", formula="", meaning="")(lambda t: t.hits)
    assert "X@k" not in REGISTRY.metrics


def test_names():
    assert [template(name) for name in ("B@12", "nDCG@3_k", "Cov@5 (20 items)", "F1@M")] == [
        "B@k", "nDCG@k_k", "Cov@k (n items)", "F1@M",
    ]  # fmt: skip
    assert shown_name("K@3") == "#K@3" and shown_name("B@3") == "B@3"
    assert best_of("B@3", [0.1, None, 0.2]) == 0.2 and best_of("Abandonment@3", [0.1, 0.2]) == 0.1
    assert best_of("New@3", [0.1, 0.2]) is None and best_of("B@3", [0.1, 0.1]) is None


def test_the_page_is_made_from_the_declarations():
    """After a change: python -m pusl_eval.glossary docs/reference/metrics.md"""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert rewritten(page) == page
    for metric in REGISTRY:
        assert metric.meaning.endswith(".") and metric.formula, metric.names
        assert metric.needs == "judge" or metric.meaning.split()[0] in help_text()
    with pytest.raises(InputError, match="one table for each"):
        rewritten("no tables")


def test_the_judge_gives_declared_metrics():
    names = judge_scores([JudgedItem("a", ["x"], [1], [True], [True])], [1], resamples=2)["scores"]["all"]
    for name in names:
        assert template(name.removesuffix("_max")) in REGISTRY.metrics


def test_short_lists_are_counted_and_warned_about(caplog):
    references = {"1": ["a", "b", "c"], "2": ["d"], "3": ["e"], "4": ["f"]}
    predictions = [
        {"id": "1", "keyphrases": ["a", "A"]},  # a repeat is an entry
        {"id": "2", "keyphrases": ["d"], "exhausted": True},
        {"id": "3", "keyphrases": ["x", "y", "e"]},
    ]  # 4 is missing, which is counted elsewhere
    with caplog.at_level(logging.WARNING):
        result = evaluate(references, predictions, k=[2, 3])
    assert result["provenance"]["short_lists"] == {"2": 0, "3": 1, "O": 1}
    assert result["counts"]["n_missing_predictions"] == 1
    (note,) = result["provenance"]["warnings"]
    assert "1 of 4 at k = 3, 1 of 4 at O" in note and "k = 2" not in note and note in caplog.text
    caplog.clear()
    evaluate(references, predictions, k=[2, 3], warn=False)
    assert not caplog.text
    assert evaluate({"1": ["a"] * 3}, {"1": ["a"] * 3}, k=[3])["provenance"]["warnings"] == []
    full = {"1": [f"l{i}" for i in range(150)]}
    assert evaluate(full, {"1": full["1"][:100]}, k=[3])["provenance"]["short_lists"]["O"] == 0, "O is at most 100"
    compare(references, {"one": predictions, "two": predictions}, k=[3])
    assert "warning: one: " in caplog.text


def test_present_and_absent_by_hand():
    rows = [
        {"id": "1", "text": "Red shoe, size 9.", "keyphrases": ["red SHOE", "boot", "shoe size"]},
        {"id": "2", "text": "", "keyphrases": ["hat"]},
        {"id": "3", "keyphrases": ["red shoe"]},  # no text: of neither kind
    ]
    predictions = {"1": ["cap", "boot", "size 9", "", "red shoe"], "2": ["x"], "3": ["red shoe"]}
    scores = evaluate(rows, predictions, k=[1, 2], bootstrap=0)["scores"]["all"]
    # Item 1: present references {red shoe, shoe size}, predictions size 9, red shoe; absent {boot}: cap, boot.
    assert scores["present F1@1"] == 0
    assert scores["present F1@2"] == scores["present F1@M"] == 2 * 1 / (2 + 2)
    assert scores["absent R@1"] == 0 and scores["absent R@2"] == (1 + 0) / 2
    assert scores["absent F1@2"] == (2 * 1 / (2 + 1) + 0) / 2
    row = {"id": "1", "text": "Red shoes", "keyphrases": ["red shoe"]}
    stemmed = evaluate([row], {"1": ["red shoes"]}, k=[1], normalization="stem")["scores"]["all"]
    assert stemmed["present F1@1"] == 1 and stemmed["absent R@1"] is None
    assert is_present("C++", "c") and not is_present("++", "c ++") and not is_present("", "")


def test_long_texts_move_to_a_file(monkeypatch):
    monkeypatch.setattr("pusl_eval.presence.IN_MEMORY", 100)
    texts = Texts()
    texts.extend([f"item {i} ünïcode" * 5 for i in range(50)] + [None, ""])
    assert texts.file._rolled
    assert list(texts)[7] == list(texts)[7] and b" 7 " in list(texts)[7] and list(texts)[-2:] == [b"", b""]


def test_rank_weights_from_files(tmp_path):
    references, predictions = {"1": ["a", "b"]}, {"1": ["b", "a"]}
    rows = '{"keyphrase": "A", "weights": [1, 0.5]}\n{"keyphrase": "b", "weights": [4]}\n'
    for name, text in (
        ("w.jsonl", rows), ("w.txt", "A\t1\t0.5\nb\t4\n"), ("w.csv", 'keyphrase,weights\nA,"[1, 0.5]"\nb,4\n'),
        ("w2.csv", "keyphrase,weights\nA,1|0.5\nb,4\n"), ("w.tsv", "A\t1\t0.5\nb\t4\n"),
        ("w2.tsv", "keyphrase\tweights\nA\t1|0.5\nb\t4\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        scores = evaluate(references, predictions, k=[2], rank_weights=tmp_path / name)["scores"]["all"]
        assert scores["rank-weighted P@2"] == (4 + 0.5) / 2, name
    partly = evaluate(references, predictions, k=[2], rank_weights={"b": [4]}, bootstrap=0)
    assert partly["scores"]["all"]["rank-weighted P@2"] == 2
    assert any("no weights by rank" in note for note in partly["provenance"]["warnings"])
    for name, text in (("bad.txt", "a\n"), ("bad2.txt", "a\tx\n"), ("bad.jsonl", '{"keyphrase": "a", "weights": 3}\n')):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=name):
            evaluate(references, predictions, k=[2], rank_weights=tmp_path / name)


def test_weights_in_a_tsv_file_need_no_header(tmp_path):
    for name, text in (("plain.tsv", "a\t3\n"), ("head.tsv", "keyphrase\tweight\nA\t3\n"), ("empty.tsv", "")):
        (tmp_path / name).write_text(text)
    for name in ("plain.tsv", "head.tsv"):
        found = evaluate({"1": ["a"]}, {"1": ["a"]}, k=[2], weights=tmp_path / name, bootstrap=0)
        assert found["scores"]["all"]["weighted P@2"] == 1.5, name
    with pytest.raises(InputError, match="no weights"):
        evaluate({"1": ["a"]}, {"1": ["a"]}, k=[2], weights=tmp_path / "empty.tsv")


def test_a_metric_says_what_it_needs():
    with pytest.raises(InputError, match="PSP@k needs propensities"):
        metrics.propensity_precision([["a"]], [["a"]], k=1)
    with pytest.raises(InputError, match="B@k needs k"):
        metrics.budget_accuracy([["a"]], [["a"]])
    result = evaluate(REFERENCES, PREDICTIONS, k=[2])
    assert result["provenance"]["given"] == []
    assert "Not given: --universe. Left out: Uni@k." in result.table()


def test_a_declared_metric_is_in_the_report(declared, tmp_path):
    for name, source in (("refs", REFERENCES), ("preds", PREDICTIONS)):
        rows = [{"id": key, "keyphrases": phrases} for key, phrases in source.items()]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_report(tmp_path / "r.html", tmp_path / "refs.jsonl", {"x": tmp_path / "preds.jsonl"})
    table = (tmp_path / "r.html").read_text().split('class="every"')[1].split("</table>")[0]
    assert "<td>Wrong@10<small>Wrong phrases.</small></td><td" in table and "1.00<small>1.00–1.00</small>" in table
    assert "Odd@10" in table and "Never@10" in table and "F1@O" in table and "Wrong@1<" not in table


def test_the_example_in_contributing(capsys):
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## A new metric")[1].split("\n## ")[0]
    code = section.split("```python\n")[1].split("```")[0]
    space: dict[str, object] = {"__name__": "example"}
    exec(code, space)
    metric = space["wrong_count"]
    try:
        for test in doctest.DocTestFinder().find(metric, "wrong_count", globs=space):
            assert doctest.DocTestRunner().run(test).failed == 0 and test.examples
        assert evaluate(REFERENCES, PREDICTIONS, k=[2])["scores"]["all"]["Wrong@2"] == 1
        assert "Wrong@k" in help_text()
    finally:
        REGISTRY.remove(metric)
