"""The verdict: who is ahead, how sure that is, what it costs, what to do next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pusl_eval import compare, evaluate
from pusl_eval.__main__ import main
from pusl_eval.report import write_report
from pusl_eval.verdict import verdict

LABELS = [f"label {i}" for i in range(4)]
REFERENCES = {str(i): LABELS for i in range(100)}
GOOD = {i: [*LABELS[:3], "wrong"] for i in REFERENCES}
POOR = {i: [LABELS[0], "wrong 1", "wrong 2", "wrong 3"] for i in REFERENCES}
LAZY = [{"id": i, "keyphrases": LABELS[:1], "exhausted": True} for i in REFERENCES]


def test_a_clear_lead():
    text = compare(REFERENCES, {"poor": POOR, "good": GOOD}, k=[2, 4]).verdict()
    assert text.startswith("good is ahead of poor: B@4 75.0 against 25.0, +50.0 points (95% interval +50.0 to +50.0)")
    assert "not chance" in text and "Next: use good" in text and "no other main score is worse" in text
    assert 2 <= text.count(". ") + 1 <= 3


def test_the_price_of_a_lead():
    text = compare(REFERENCES, {"lazy": LAZY, "good": GOOD}, k=[4]).verdict()
    assert "good is ahead of lazy" in text
    assert "It gives 4.0 phrases per item instead of 1.0; P@4 falls from 100.0 to 75.0." in text


def test_several_prices():
    other = {i: [f"label {int(i) % 4}", "x"] for i in REFERENCES}  # every label is found somewhere
    same = {i: [LABELS[0], LABELS[1], "x", "y", "z"] for i in REFERENCES}
    rows = [{"id": i, "keyphrases": phrases, "exhausted": True} for i, phrases in other.items()]
    text = compare(REFERENCES, {"other": rows, "same": same}, k=[5]).verdict()
    assert "P@5 falls from 50.0 to 40.0 and Cov@5 from 100.0 to 50.0." in text


def test_a_lead_that_may_be_chance():
    other = {i: (LABELS if int(i) % 2 else ["x", "y", "z", "w"]) for i in REFERENCES}
    almost = {i: (LABELS if int(i) % 2 == 0 or i == "1" else ["x", "y", "z", "w"]) for i in REFERENCES}
    text = compare(REFERENCES, {"other": other, "almost": almost}, k=[4]).verdict()
    assert text.startswith("almost scores higher than other: B@4 51.0") and "may be chance" in text
    assert "is ahead" not in text
    needed = int(text.split("score about ")[1].split()[0].replace(",", ""))
    assert 10_000 < needed <= 100_000, "an interval of ±20 points around 1 point needs about 400 times the items"


def test_level_systems_and_no_draws():
    assert "a and b are level: B@4 75.0 against 75.0." in compare(REFERENCES, {"a": GOOD, "b": GOOD}, k=[4]).verdict()
    text = compare(REFERENCES, {"a": GOOD, "b": POOR}, k=[4], bootstrap=0).verdict()
    assert text.startswith("a scores higher than b") and "--bootstrap 1000" in text and "interval" not in text


def test_one_system():
    text = evaluate(REFERENCES, GOOD, k=[2, 4]).verdict()
    assert text.startswith("B@4 is 75.0 (95% interval 75.0 to 75.0): 75% of the 100.0 that the labels allow.")
    assert "Of the 4 phrases asked for it gives 4.00 distinct ones; 75.0% of what it gives" in text
    assert "pusl baseline knn" in text
    assert "Of the 1 phrase asked for it gives" in evaluate(REFERENCES, GOOD, k=[1]).verdict()
    empty = {i: [] for i in REFERENCES}
    assert "generate at least 1 phrase per item" in evaluate(REFERENCES, empty, k=[1]).verdict()


def test_short_lists_come_first():
    short = {i: LABELS[:1] for i in REFERENCES}
    text = compare(REFERENCES, {"short": short, "good": GOOD}, k=[4]).verdict()
    assert "First generate at least 4 phrases per item: 100 of 100 (short) prediction lists are shorter" in text
    assert "Next: use good" not in text
    alone = evaluate(REFERENCES, short, k=[4]).verdict()
    assert "First generate at least 4 phrases per item: 100 of 100 prediction lists are shorter" in alone
    assert "First generate" not in compare(REFERENCES, {"lazy": LAZY, "good": GOOD}, k=[4]).verdict()


def test_missing_predictions_come_first():
    half = {i: phrases for i, phrases in GOOD.items() if int(i) % 2}
    alone = evaluate(REFERENCES, half, k=[4]).verdict()
    assert alone.startswith(
        "Predictions are missing for 50 of 100 items; these count as empty, so the scores are too low."
    )
    assert alone.endswith("First generate the missing predictions.") and "Next:" not in alone
    several = compare(REFERENCES, {"half": half, "poor": POOR, "none": {"1": LABELS[:1]}}, k=[4]).verdict()
    assert several.startswith("Predictions are missing for 50 of 100 (half) and 99 of 100 (none) items;")
    assert several.endswith("1 of 100 (none) prediction lists are shorter and not marked exhausted, so B@4 is too low.")
    unlabeled = evaluate(REFERENCES | {"x": []}, GOOD, k=[4]).verdict()
    assert "missing" not in unlabeled, "an item without labels is not scored"


@pytest.mark.parametrize(
    ("difference", "interval", "words"),
    [
        (0.0021, [0.0, 0.0042], "75.0 against 25.0, +0.2 points (95% interval 0.0 to +0.4); the interval includes 0"),
        (0.0021, [1e-18, 0.0042], "+0.2 points (95% interval 0.0 to +0.4); the interval includes 0"),
        (
            0.0021,
            [-0.0003, 0.0042],
            "75.00 against 25.00, +0.21 points (95% interval -0.03 to +0.42); the interval inc",
        ),
        (0.0021, [0.0003, 0.0042], "+0.21 points (95% interval +0.03 to +0.42); the interval is above 0"),
        (0.0021, [0.000003, 0.0042], "+0.2100 points (95% interval +0.0003 to +0.4200); the interval is above 0"),
    ],
)
def test_rounding_does_not_hide_a_sign(difference, interval, words):
    systems = compare(REFERENCES, {"poor": POOR, "good": GOOD}, k=[4], bootstrap=0)["systems"]
    lead = verdict(systems, lambda *_: {"difference": difference, "interval": interval}, 4)[0]
    assert words in lead and ("is ahead" in lead) == ("above 0" in words)


def test_nothing_to_score():
    assert "nothing can be scored" in evaluate({"1": []}, {"1": ["a"]}, k=[1]).verdict()


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, source in (("refs", REFERENCES), ("good", GOOD), ("poor", POOR)):
        rows = [{"id": i, "keyphrases": phrases, "text": "t"} for i, phrases in source.items()]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_evaluate_and_the_report_open_with_it(files, capsys):
    flags = ["--references", "refs.jsonl", "--train", "refs.jsonl", "--k", "mu", "2mu"]
    assert main([*flags, "--predictions", "good.jsonl", "poor.jsonl"]) == 0
    assert capsys.readouterr().out.startswith("good is ahead of poor: B@8")
    assert main([*flags, "--predictions", "good.jsonl"]) == 0
    assert capsys.readouterr().out.startswith("B@8 is 37.5 (95% interval")
    systems = {"good": "good.jsonl", "poor": "poor.jsonl"}
    write_report("r.html", "refs.jsonl", systems, train="refs.jsonl", complete="refs.jsonl")
    page = Path("r.html").read_text()
    assert page.split("</h1>")[1].startswith('<p class="verdict">good is ahead of poor: B@8 37.5 against 12.5, +25.0')
    assert "First generate at least 8 phrases per item: 100 of 100 (good)" in page, "the lists hold 4 phrases"
    assert page.count('<p class="verdict">') == 2, "one for the observed labels, one for the complete ones"


def test_complete_labels_need_no_caution():
    compared = compare(REFERENCES, {"poor": POOR, "good": GOOD}, k=[4])
    pair = compared["comparisons"][0]["scores"]["all"]
    gap = {**pair["B@4"], "difference": abs(pair["B@4"]["difference"]), "interval": [0.1, 0.2]}
    systems = compared["systems"]
    assert "incomplete" in " ".join(verdict(systems, lambda *_: gap, 4))
    assert verdict(systems, lambda *_: gap, 4, complete=True)[-1] == "Next: use good."
    assert "incomplete" not in " ".join(verdict({"good": systems["good"]}, lambda *_: None, 4, complete=True))
