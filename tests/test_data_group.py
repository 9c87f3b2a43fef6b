"""`pusl data group`: hot and rare, diverse and narrow items, and what is scored by group afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from pusl.cli import main
from pusl.examples import Example, read_examples, write_examples

WANTED = {"hd": "hot-diverse", "hn": "hot-narrow", "rd": "rare-diverse", "rn": "rare-narrow"}


@pytest.fixture
def items(tmp_path: Path) -> Path:
    def example(name: str, labels: int, counts: list[int]) -> Example:
        return Example(name, f"text {name}", [f"{name} {n}" for n in range(labels)], counts, extra={"kept": name})

    rows = [example("hd", 3, [3, 1, 1]), example("hn", 1, [5]), example("rd", 3, [1, 1, 1]), example("rn", 1, [4])]
    write_examples(tmp_path / "items.jsonl", rows)
    return tmp_path / "items.jsonl"


def test_groups_from_counts(items: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grouped.jsonl"
    assert main(["data", "group", str(items), "--out", str(out), "--diverse", "3"]) == 0
    found = list(read_examples(out))
    assert {e.id: e.group for e in found} == WANTED and all(e.extra["kept"] == e.id for e in found)
    said = capsys.readouterr().out
    assert "hot from 5 interactions on" in said and "rare-diverse" in said and "25.0%" in said and "3.00" in said
    # A system that says one phrase per item: #K by group, side by side.
    for name, most in (("lazy", 1), ("rich", 3)):
        rows = [Example(e.id, e.text, e.keyphrases[:most]) for e in found]
        write_examples(tmp_path / f"{name}.jsonl", rows)
    words = ["evaluate", "--references", str(out), "--k", "3", "--bootstrap", "0", "--predictions"]
    assert main([*words, str(tmp_path / "lazy.jsonl"), str(tmp_path / "rich.jsonl")]) == 0
    said = capsys.readouterr().out
    table = said[said.index("#K@3 by group") :].splitlines()
    assert table[0].split() == ["#K@3", "by", "group", "items", "lazy", "rich"]
    assert table[1].split() == ["hot-diverse", "1", "1.00", "3.00"]
    assert table[2].split() == ["hot-narrow", "1", "1.00", "1.00"]


def test_groups_from_a_popularity_file(items: Path, tmp_path: Path) -> None:
    (tmp_path / "downloads.tsv").write_text("rd\t900\nrn\t1000\nhd\t3\n")
    (tmp_path / "ranks.tsv").write_text("rd\t2\nrn\t1\nhd\t30\n")
    out, flags = tmp_path / "out.jsonl", ["--diverse", "3", "--hot-share", "0.5", "--force"]
    for name, more in (("downloads", []), ("ranks", ["--popularity-is-rank"])):
        words = ["data", "group", str(items), "--out", str(out), "--popularity", str(tmp_path / f"{name}.tsv")]
        assert main([*words, *flags, *more]) == 0
        groups = {e.id: e.group for e in read_examples(out)}
        assert groups == {"rd": "hot-diverse", "rn": "hot-narrow", "hd": "rare-diverse", "hn": "rare-narrow"}


def test_ranks_are_reported_as_ranks(items: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ranks.tsv").write_text("rd\t1200\nrn\t7\nhd\t30000\n")
    words = ["data", "group", str(items), "--out", str(tmp_path / "out.jsonl"), "--diverse", "3", "--hot-share", "0.5"]
    assert main([*words, "--popularity", str(tmp_path / "ranks.tsv"), "--popularity-is-rank"]) == 0
    said = capsys.readouterr().out
    assert "hot up to rank 1,200, diverse" in said
    assert said.splitlines()[2].split() == ["hot-diverse", "1", "25.0%", "3.00", "–"], "a rank is not an interaction"


def test_an_item_without_interactions_is_never_hot(items: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "downloads.tsv").write_text("rd\t900\n")  # one of four items, but half are to be hot
    out = tmp_path / "out.jsonl"
    words = ["data", "group", str(items), "--out", str(out), "--diverse", "3", "--hot-share", "0.5"]
    assert main([*words, "--popularity", str(tmp_path / "downloads.tsv")]) == 0
    assert "hot from 900 interactions on" in capsys.readouterr().out
    assert {e.id for e in read_examples(out) if str(e.group).startswith("hot")} == {"rd"}
    write_examples(tmp_path / "zero.jsonl", [Example("a", "t", ["x"], [0])])
    assert main(["data", "group", str(tmp_path / "zero.jsonl"), "--out", str(out), "--hot-share", ".5", "--force"]) == 2
    assert "all counts are 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "id 'a' has no counts; name their column with --counts-column"),
        (["--hot-share", "2"], "--hot-share 2: expected a share"),
        (["--popularity-is-rank"], "needs --popularity FILE and --hot-share"),
        (["--popularity", "none.tsv"], "none.tsv"),
    ],
)
def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str) -> None:
    write_examples(tmp_path / "a.jsonl", [Example("a", "t", ["x"])])
    assert main(["data", "group", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "b.jsonl"), *flags]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "b.jsonl").exists()
