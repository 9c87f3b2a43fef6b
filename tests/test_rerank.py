"""Reranking: hand examples, plain top-k as a limit, continued catalogs, and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pusl.cli import main
from pusl.rerank import BoundedRandom, Coverage, rerank
from pusl_eval.files import InputError, write_rows
from pusl_eval.propensity import propensities


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def catalog(items: int, seed: int = 0, prefix: str = "") -> list[dict]:
    draw = np.random.default_rng(seed)
    rows = []
    for number in range(items):
        names = draw.permutation(12)[:8]
        scores = np.sort(draw.random(8))[::-1].round(4)
        row = {"id": f"{prefix}{number}", "keyphrases": [f"P{name}" for name in names], "scores": scores.tolist()}
        rows.append({**row, "note": "kept"})
    return rows


def test_coverage_by_hand(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "keyphrases": ["x", "y", "z"], "scores": [0.9, 0.5, 0.095]},
        {"id": "b", "keyphrases": ["X", "y", "z"], "scores": [0.9, 0.5, 0.095]},
        {"id": "c", "keyphrases": ["x", "y", "z"], "scores": [0.9, 0.5, 0.095]},
    ]
    write_rows(tmp_path / "p.jsonl", rows)
    rerank(tmp_path / "p.jsonl", tmp_path / "o.jsonl", 2, "coverage")
    # a takes x, y; then f(x) = .1, f(y) = .5: gains x .09, y .25, z .095 -> y, z; then f(y) = .25, f(z) = .905:
    # gains x .09, y .125, z .086 -> y, x.
    assert [row["keyphrases"] for row in read(tmp_path / "o.jsonl")] == [["x", "y"], ["y", "z"], ["y", "x"]]
    assert read(tmp_path / "o.jsonl")[1]["scores"] == [0.5, 0.095]


def test_a_large_beta_is_plain_top_k(tmp_path: Path) -> None:
    rows = catalog(30)
    write_rows(tmp_path / "p.jsonl", rows)
    rerank(tmp_path / "p.jsonl", tmp_path / "o.jsonl", 3, "coverage", beta=1e9)
    for before, after in zip(rows, read(tmp_path / "o.jsonl"), strict=True):
        assert after["keyphrases"] == before["keyphrases"][:3] and after["note"] == "kept"


def test_pure_coverage_covers_at_least_as_much_as_top_k(tmp_path: Path) -> None:
    """Expected number of phrases that some item got right, by the scores themselves."""
    write_rows(tmp_path / "p.jsonl", catalog(40))
    expected = {}
    for beta in (0.0, 0.5, 1e9):
        rerank(tmp_path / "p.jsonl", tmp_path / "o.jsonl", 2, "coverage", beta=beta, force=True)
        missing: dict[str, float] = {}
        for row in read(tmp_path / "o.jsonl"):
            for phrase, score in zip(row["keyphrases"], row["scores"], strict=True):
                missing[phrase] = missing.get(phrase, 1.0) * (1 - score)
        expected[beta] = sum(1 - value for value in missing.values())
    assert expected[0.0] >= expected[0.5] >= expected[1e9]


def test_a_catalog_in_two_parts_with_state_is_the_catalog_in_one(tmp_path: Path) -> None:
    rows = catalog(40)
    write_rows(tmp_path / "all.jsonl", rows)
    write_rows(tmp_path / "1.jsonl", rows[:25])
    write_rows(tmp_path / "2.jsonl", rows[25:])
    common = ["--objective", "coverage", "--beta", "0.25", "-k", "3"]
    for name, extra in (("all", []), ("1", ["--state", "S"]), ("2", ["--state", "S"])):
        extra = [str(tmp_path / "state.json") if word == "S" else word for word in extra]
        files = ["--predictions", str(tmp_path / f"{name}.jsonl"), "--output", str(tmp_path / f"{name}.out.jsonl")]
        assert main(["rerank", *files, *common, *extra]) == 0
    assert read(tmp_path / "all.out.jsonl") == read(tmp_path / "1.out.jsonl") + read(tmp_path / "2.out.jsonl")
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["items"] == 40 and len(state["files"]) == 2
    with pytest.raises(InputError, match="already counted"):
        rerank(tmp_path / "2.jsonl", tmp_path / "x.jsonl", 3, "coverage", state=tmp_path / "state.json")


def test_a_failed_run_leaves_output_and_state_as_they_were(tmp_path: Path) -> None:
    rows = catalog(5)
    write_rows(tmp_path / "good.jsonl", rows)
    rerank(tmp_path / "good.jsonl", tmp_path / "o.jsonl", 2, "coverage", state=tmp_path / "s.json")
    before = (tmp_path / "o.jsonl").read_bytes(), (tmp_path / "s.json").read_bytes()
    bad = catalog(5, prefix="b")
    bad[4]["scores"][0] = 1.5
    write_rows(tmp_path / "bad.jsonl", bad)
    with pytest.raises(InputError, match=r"bad\.jsonl:5: id 'b4': score 1.5"):
        rerank(tmp_path / "bad.jsonl", tmp_path / "o.jsonl", 2, "coverage", state=tmp_path / "s.json", force=True)
    assert ((tmp_path / "o.jsonl").read_bytes(), (tmp_path / "s.json").read_bytes()) == before


def test_log_probabilities_are_recognized(tmp_path: Path) -> None:
    rows = catalog(20)
    logs = [{**row, "scores": [math.log(max(score, 1e-9)) for score in row["scores"]]} for row in rows]
    write_rows(tmp_path / "p.jsonl", rows)
    write_rows(tmp_path / "l.jsonl", logs)
    for name in "pl":
        rerank(tmp_path / f"{name}.jsonl", tmp_path / f"{name}.out.jsonl", 3, "coverage")
    plain, log = ([row["keyphrases"] for row in read(tmp_path / f"{name}.out.jsonl")] for name in "pl")
    assert plain == log


def test_propensity_objective(tmp_path: Path) -> None:
    train = [{"id": str(n), "text": "t", "keyphrases": ["common"] + (["rare"] if n < 2 else [])} for n in range(100)]
    write_rows(tmp_path / "train.jsonl", train)
    p_common, p_rare, p_new = propensities([100, 2, 0], 100, "jpv")
    assert 0.5 / p_common < 0.45 / p_rare < 0.44 / p_new
    write_rows(
        tmp_path / "p.jsonl", [{"id": "a", "keyphrases": ["Common", "rare", "new"], "scores": [0.5, 0.45, 0.44]}]
    )
    arguments = ["--predictions", str(tmp_path / "p.jsonl"), "--output", str(tmp_path / "o.jsonl"), "-k", "2"]
    assert main(["rerank", *arguments, "--objective", "propensity", "--train", str(tmp_path / "train.jsonl")]) == 0
    assert read(tmp_path / "o.jsonl")[0]["keyphrases"] == ["new", "rare"]
    more = ["--objective", "propensity", "--train", str(tmp_path / "train.jsonl"), "--force"]
    assert main(["rerank", *arguments, *more, "--propensity", "none"]) == 0
    assert read(tmp_path / "o.jsonl")[0]["keyphrases"] == ["Common", "rare"]
    power = ["--propensity", "power", "--propensity-parameters", "beta=1,gamma=0.01"]  # p = 1, .96 and (unseen) 1e-6
    assert main(["rerank", *arguments, *more, *power]) == 0
    assert read(tmp_path / "o.jsonl")[0]["keyphrases"] == ["new", "Common"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 6), st.integers(0, 5))
def test_bounded_random_draws_from_the_best(scores: list[float], k: int, seed: int) -> None:
    rule = BoundedRandom(k, bound=2.0, seed=seed)
    chances = np.array(scores)
    chosen = rule.choose("item", [str(number) for number in range(len(scores))], chances)
    assert len(chosen) == len(set(chosen)) == min(k, len(scores))
    best = np.argsort(-chances, kind="stable")[: 2 * k].tolist()
    assert set(chosen) <= set(best)
    assert [best.index(number) for number in chosen] == sorted(best.index(number) for number in chosen)
    assert chosen == rule.choose("item", [""] * len(scores), chances)


def test_bounded_random_differs_between_items_and_seeds() -> None:
    chances = np.linspace(1, 0, 40)
    names = [str(number) for number in range(40)]
    draws = {tuple(BoundedRandom(5, 4.0, seed).choose(item, names, chances)) for item in "abc" for seed in (0, 1)}
    assert len(draws) == 6


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1)), max_size=6), max_size=8), st.floats(0, 2))
def test_coverage_keeps_chances_between_zero_and_one(items: list[list[tuple[int, float]]], beta: float) -> None:
    rule = Coverage(2, beta)
    for number, pairs in enumerate(items):
        phrases = list(dict.fromkeys(str(name) for name, _ in pairs))
        chosen = rule.choose(str(number), phrases, np.array([score for _, score in pairs][: len(phrases)]))
        assert len(chosen) == len(set(chosen)) == min(2, len(phrases))
    assert all(0 <= value <= 1 for value in rule.missing.values())


def test_repeats_and_blanks_are_dropped_and_fewer_than_k_is_said(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "keyphrases": ["Cat", " cat ", " ", "dog"], "scores": [0.5, 0.9, 0.9, 0.4]},
        {"id": "b", "keyphrases": [], "scores": []},
    ]
    write_rows(tmp_path / "p.jsonl", rows)
    rerank(tmp_path / "p.jsonl", tmp_path / "o.jsonl", 3, "brs")
    assert read(tmp_path / "o.jsonl") == [
        {"id": "a", "keyphrases": ["Cat", "dog"], "scores": [0.5, 0.4], "exhausted": True},
        {"id": "b", "keyphrases": [], "scores": [], "exhausted": True},
    ]


@pytest.mark.parametrize(
    ("rows", "flags", "expected"),
    [
        ([{"id": "a", "keyphrases": ["x"]}], ["--objective", "coverage"], "no 'scores'"),
        ([{"id": "a", "keyphrases": ["x"], "scores": [2.0]}], ["--objective", "coverage"], "--scores log"),
        ([{"id": "a", "keyphrases": ["x", "y"], "scores": [-1, 0.5]}], ["--objective", "brs"], "log-probability"),
        (None, ["--objective", "coverage", "-k", "0"], "argument -k/--k: 0 must be at least 1"),
        (None, ["--objective", "coverage", "--beta", "-1"], "--beta is -1"),
        (None, ["--objective", "coverage", "--beta", "nan"], "--beta is nan"),
        (None, ["--objective", "brs", "--bound", "0.5"], "--bound is 0.5"),
        (None, ["--objective", "brs", "--state", "s.json"], "--state is for"),
        (None, ["--objective", "propensity"], "needs --train"),
        (None, ["--objective", "brs", "--train", "t.jsonl"], "--train is for"),
        (None, ["--objective", "propensity", "--train", "P", "--propensity-parameters", "a"], "NAME=NUMBER"),
        (None, ["--objective", "coverage", "--state", "P"], "not a state file"),
    ],
)
def test_bad_input_is_two_lines(
    rows: list[dict] | None, flags: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "p.jsonl", tmp_path / "o.jsonl"
    write_rows(path, rows or catalog(3))
    flags = [str(path) if flag == "P" else flag for flag in flags]
    try:
        code = main(["rerank", "--predictions", str(path), "--output", str(out), "-k", "2", *flags])
    except SystemExit as stopped:
        code = stopped.code
    error = capsys.readouterr().err
    assert code == 2 and expected in error and len(error.strip().splitlines()) <= 2
    assert not out.exists()
