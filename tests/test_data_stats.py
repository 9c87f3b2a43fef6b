"""Numbers about data sets, computed by hand."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from pusl.cli import main
from pusl.data.stats import describe, tally
from pusl.examples import Example, write_examples

TRAIN = [
    Example("1", "Red drone, foldable", ["drone", "Drone ", "red"], [3, 1, 2]),
    Example("2", "A tent", ["tent", "camping", "beach tent", "tents", "camp", "outdoor"], [1] * 6),
    Example("3", "A kettle", ["kettle"], [1]),
    Example("4", "Wi-Fi box", ["wi fi"], [9]),
]


def run(capsys, *words):
    code = main(["data", "stats", *map(str, words)])
    return code, capsys.readouterr()


def test_one_file_by_hand():
    found = describe(tally("train", TRAIN))
    assert found["items"] == 4 and found["unique_labels"] == 10 and found["label_occurrences"] == 10
    assert found["mu"] == 2.5  # 2, 6, 1, 1
    assert found["sigma"] == pytest.approx((0.25 + 12.25 + 2.25 + 2.25) ** 0.5 / 2)
    assert found["cv"] == pytest.approx(found["sigma"] / 2.5)
    assert (found["median"], found["max"], found["share_above_2mu"]) == (1.5, 6, 0.25)
    assert found["present_in_text"] == pytest.approx(5 / 10)  # drone, red, tent, kettle, wi fi; not tents or beach tent
    assert found["words_per_label"] == pytest.approx(12 / 10)
    assert found["words_per_text"] == pytest.approx((3 + 2 + 2 + 2) / 4)
    assert {name: cell["items"] for name, cell in found["quadrants"].items()} == {
        "hot_diverse": 1, "hot_narrow": 2, "rare_narrow": 1, "rare_diverse": 0,
    }  # fmt: skip
    assert found["label_frequency_bins"]["1-9"] == {"labels": 10, "share_of_occurrences": 1.0}


def test_bins_by_hand():
    rows = [Example(str(n), f"t{n}", ["all", *(["ten"] if n < 10 else []), f"own {n}"]) for n in range(120)]
    found = describe(tally("a", rows))["label_frequency_bins"]
    assert {name: cell["labels"] for name, cell in found.items()} == {"1-9": 120, "10-99": 1, "100-999": 1, ">=1000": 0}
    assert found["100-999"]["share_of_occurrences"] == pytest.approx(120 / 250)


def test_overlap_by_hand():
    test = [Example("9", "a  TENT", ["tent", "new"]), Example("8", "other", ["DRONE"])]
    found = describe(tally("test", test), tally("train", TRAIN))
    overlap = found["overlap"]
    assert found["compared_with"] == "train" and overlap["texts_shared"] == 1
    assert overlap["labels_shared"] == 2 and overlap["occurrences_of_shared_labels"] == pytest.approx(2 / 3)
    assert overlap["labels_by_frequency_there"]["0"] == {"labels": 1, "share_of_occurrences": pytest.approx(1 / 3)}
    assert found["share_above_2mu"] == 0.0  # against the training μ of 2.5


def seen(picture):
    """Texts and tooltips of an SVG file."""
    root = ElementTree.parse(picture).getroot()
    return [[node.text for node in root.iter(f"{{http://www.w3.org/2000/svg}}{kind}")] for kind in ("text", "title")]


def test_table_json_and_plot(tmp_path, capsys):
    write_examples(tmp_path / "train.jsonl", TRAIN)
    write_examples(tmp_path / "test.jsonl", [Example("9", "a tent", ["tent"])])
    picture = tmp_path / "out" / "plot.svg"
    code, shown = run(capsys, tmp_path / "train.jsonl", tmp_path / "test.jsonl", "--plot", picture)
    assert code == 0
    [means] = [line for line in shown.out.splitlines() if line.startswith("keyphrases per item, mean μ")]
    assert means.split()[-2:] == ["2.50", "1.00"]
    assert "hot-narrow" in shown.out and "50.0%" in shown.out and "overlap with train.jsonl" in shown.out
    first = picture.read_bytes()
    texts, bars = seen(picture)
    assert {"train.jsonl (μ = 2.5, CV = 0.82)", "label rank", "diverse: > 2μ", "5+"} <= set(texts)
    assert "train.jsonl, 1: 50%" in bars and "train.jsonl, 5+: 25%" in bars and "test.jsonl, 1: 100%" in bars
    code, shown = run(capsys, tmp_path / "train.jsonl", "--plot", tmp_path / "plot.SVG", "--json")
    assert code == 0 and json.loads(shown.out)["train.jsonl"]["mu"] == 2.5
    assert "test.jsonl" not in (tmp_path / "plot.SVG").read_text(encoding="utf-8")
    code, _ = run(capsys, tmp_path / "train.jsonl", tmp_path / "test.jsonl", "--plot", picture, "--force")
    assert code == 0 and picture.read_bytes() == first  # same data, same bytes


def test_many_keyphrases_share_bars_and_every_item_is_in_one(tmp_path, capsys):
    rows = [Example(str(n), f"t{n}", [f"label {m}" for m in range(n)]) for n in range(201)]
    write_examples(tmp_path / "a&b.jsonl", rows)
    code, _ = run(capsys, tmp_path / "a&b.jsonl", "--plot", tmp_path / "a.svg")
    texts, bars = seen(tmp_path / "a.svg")
    assert code == 0 and "a&b.jsonl, 0–3: 2%" in bars and bars[-1] == "a&b.jsonl, 196+: 2%"
    assert 45 < len(bars) <= 62 and len([text for text in texts if "–" in text]) < 10  # not every bar has room


def test_files_of_one_name_are_told_apart(tmp_path, capsys):
    for folder in ("a", "b"):
        write_examples(tmp_path / folder / "x.jsonl", TRAIN)
    code, shown = run(capsys, tmp_path / "a" / "x.jsonl", tmp_path / "b" / "x.jsonl", "--json")
    assert code == 0 and list(json.loads(shown.out)) == ["a/x.jsonl", "b/x.jsonl"]


def test_items_without_labels_and_without_counts(tmp_path, capsys):
    write_examples(tmp_path / "a.jsonl", [Example("1", "", []), Example("2", "t", [])])
    code, shown = run(capsys, tmp_path / "a.jsonl", "--json", "--plot", tmp_path / "a.svg")
    found = json.loads(shown.out)["a.jsonl"]
    assert code == 0 and found["cv"] is None and found["quadrants"] is None and found["present_in_text"] is None
    assert "a.jsonl, 0: 100%" in seen(tmp_path / "a.svg")[1]
    code, shown = run(capsys, tmp_path / "a.jsonl")
    assert code == 0 and "–" in shown.out and "hot" not in shown.out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--plot", "x.png"], "--plot x.png: expected a file name that ends in .svg"),
        (["--plot", "there.svg"], "pass --force"),
        (["train.jsonl"], "a file is given twice"),
        (["nothing.jsonl"], "nothing.jsonl: no such file"),
    ],
)
def test_bad_flags(tmp_path, capsys, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    write_examples("train.jsonl", TRAIN)
    (tmp_path / "there.svg").write_text("")
    code, shown = run(capsys, "train.jsonl", *flags)
    assert code == 2 and words in shown.err and shown.err.count("\n") <= 2 and not shown.out
