"""Hiding labels: the wanted share exactly, popular items keep more, the full set stays."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from pusl.cli import main
from pusl.data.thin import Labels, ThinConfig, self_selection, thin
from pusl.examples import Example, read_examples, write_examples
from pusl_eval.propensity import propensities

pytestmark = pytest.mark.slow  # whole catalogs


@pytest.fixture
def source(tmp_path):
    """400 items with 1..8 labels; label j is on every item with more than j labels."""
    rows = [Example(f"i{n}", f"text {n}", [f"label {j}" for j in range(n % 8 + 1)]) for n in range(400)]
    write_examples(tmp_path / "full.jsonl", rows)
    return tmp_path / "full.jsonl"


def load(path):
    return list(read_examples(path))


@pytest.mark.parametrize("keep", [0.3, 0.55, 1.0])
def test_self_selection_keeps_the_wanted_share_exactly(tmp_path, source, keep):
    about = thin(source, tmp_path / "thin.jsonl", ThinConfig(keep=keep, seed=2))
    full, left = load(source), load(tmp_path / "thin.jsonl")
    assert about["kept"] == sum(len(e.keyphrases) for e in left) == round(keep * 1800)
    assert about["share_kept"] == pytest.approx(keep, abs=1e-3)
    for whole, part in zip(full, left, strict=True):
        assert part.extra["complete"] == whole.keyphrases and part.id == whole.id
        assert part.keyphrases and set(part.keyphrases) <= set(whole.keyphrases)
        assert len(part.counts) == len(part.keyphrases) and min(part.counts) >= 1


def test_popular_items_keep_more(tmp_path, source):
    with gzip.open(tmp_path / "downloads.tsv.gz", "wt") as stream:
        stream.write("name\tdownloads\n")
        stream.writelines(f"i{n}\t{1000 if n < 100 else 1}\n" for n in range(300))
    config = ThinConfig(keep=0.5, popularity=str(tmp_path / "downloads.tsv.gz"))
    thin(source, tmp_path / "thin.jsonl", config)
    shares = [len(e.keyphrases) / len(e.extra["complete"]) for e in load(tmp_path / "thin.jsonl")]
    assert np.mean(shares[:100]) > 0.95 and np.mean(shares[100:300]) < 0.7
    assert abs(np.mean(shares[100:300]) - np.mean(shares[300:])) < 0.15  # an unknown id counts as least popular


def test_ranks_are_popularity_upside_down(tmp_path, source):
    (tmp_path / "ranks.tsv").write_text("".join(f"i{n}\t{n + 1}\n" for n in range(400)))
    config = ThinConfig(keep=0.5, popularity=str(tmp_path / "ranks.tsv"), popularity_is_rank=True)
    thin(source, tmp_path / "thin.jsonl", config)
    shares = [len(e.keyphrases) / len(e.extra["complete"]) for e in load(tmp_path / "thin.jsonl")]
    assert np.mean(shares[:100]) > np.mean(shares[-100:]) + 0.2


def test_counts_of_the_file_are_the_rates(tmp_path):
    rows = [Example(f"i{n}", f"t{n}", ["common", "seldom"], [100, 1]) for n in range(1000)]
    write_examples(tmp_path / "a.jsonl", rows)
    thin(tmp_path / "a.jsonl", tmp_path / "b.jsonl", ThinConfig(keep=0.55))
    left = load(tmp_path / "b.jsonl")
    common = sum("common" in e.keyphrases for e in left)
    seldom = sum("seldom" in e.keyphrases for e in left)
    assert common + seldom == 1100 and common > 950 and seldom > 90


def test_the_race_matches_the_formula():
    """P(seen) = 1 - exp(-rate · time), so the share of first rings before the stop follows it."""
    rates = np.tile([0.2, 1.0, 5.0], 20_000)
    sizes = np.full(20_000, 3)
    found = Labels(sizes, np.tile([0, 1, 2], 20_000), np.full(3, 20_000), rates, None)
    numbers = self_selection(np.random.default_rng(0), found, ThinConfig(keep=0.5), at_least_one=False)
    seen = (numbers.reshape(-1, 3) > 0).mean(axis=0)
    time = -np.log(1 - seen[1])
    assert seen[0] == pytest.approx(1 - np.exp(-0.2 * time), abs=0.01)
    assert seen[2] == pytest.approx(1 - np.exp(-5.0 * time), abs=0.01)
    assert numbers.reshape(-1, 3).mean(axis=0) == pytest.approx(time * np.array([0.2, 1.0, 5.0]), rel=0.03)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [("jpv", "a=0.55,b=1.5"), ("power", "beta=1,gamma=0.5"), ("richards", "c=0.1,d=0.9,e=1,f=3,g=4,h=1")],
)
def test_propensity_models_keep_labels_by_their_frequency(tmp_path, model, parameters):
    frequency = [10, 100, 1000, 4000]
    rows = [Example(f"i{n}", f"t{n}", [f"l{j}" for j, most in enumerate(frequency) if n < most]) for n in range(4000)]
    write_examples(tmp_path / "a.jsonl", rows)
    config = ThinConfig(by=model, propensity_parameters=parameters, empty="none", seed=1)
    thin(tmp_path / "a.jsonl", tmp_path / "b.jsonl", config)
    left = load(tmp_path / "b.jsonl")
    values = dict(part.split("=") for part in parameters.split(","))
    p = propensities(frequency, 4000, model, {name: float(value) for name, value in values.items()})
    for label, most in ((1, 100), (2, 1000), (3, 4000)):
        kept = sum(f"l{label}" in e.keyphrases for e in left) / most
        assert kept == pytest.approx(p[label], abs=4 * (p[label] * (1 - p[label]) / most) ** 0.5 + 1e-9)
    assert len(left) == 4000 and all(e.counts is None for e in left)


def test_propensities_can_be_scaled_to_a_share(tmp_path, source):
    about = thin(source, tmp_path / "b.jsonl", ThinConfig(by="jpv", keep=0.25, seed=3))
    assert about["share_kept"] == pytest.approx(0.25, abs=0.04)
    assert about["items_written"] < 400  # items that lost everything are dropped


@pytest.mark.parametrize("by", ["self-selection", "jpv"])
def test_what_happens_to_items_that_lose_everything(tmp_path, source, by):
    sizes = {}
    for empty in ("one", "drop", "none"):
        thin(source, tmp_path / f"{empty}.jsonl", ThinConfig(by=by, keep=0.3, empty=empty))
        sizes[empty] = [len(e.keyphrases) for e in load(tmp_path / f"{empty}.jsonl")]
    assert len(sizes["one"]) == len(sizes["none"]) == 400 > len(sizes["drop"])
    assert min(sizes["one"]) == min(sizes["drop"]) == 1 and min(sizes["none"]) == 0


def test_same_seed_same_bytes(tmp_path, source):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        thin(source, tmp_path / f"{name}.jsonl", ThinConfig(seed=seed))
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert (tmp_path / "a.jsonl").read_bytes() != (tmp_path / "c.jsonl").read_bytes()


def test_repeats_collapse_and_an_earlier_complete_stays(tmp_path):
    row = {"id": "1", "text": "t", "keyphrases": ["a", "A ", "b"], "counts": [1, 2, 3], "complete": ["a", "b", "c"]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    about = thin(tmp_path / "a.jsonl", tmp_path / "b.jsonl", ThinConfig(keep=1.0))
    [left] = load(tmp_path / "b.jsonl")
    assert left.keyphrases == ["a", "b"] and left.extra["complete"] == ["a", "b", "c"] and about["occurrences"] == 2


BAD = {
    "--keep 0": "expected a share above 0 and at most 1",
    "--keep 1.1": "expected a share above 0 and at most 1",
    "--keep nan": "'keep' is nan; it must be a finite number",
    "--keep 0.1": "--keep 0.1 is less than one label per item (0.222); raise it",
    "--by power": "--by power needs --propensity-parameters beta=NUMBER gamma=NUMBER",
    "--by jpv --propensity-parameters a": "--propensity-parameters a: expected NAME=NUMBER",
    "--by jpv --propensity-parameters z=1": "has no parameter 'z'",
    "--propensity-parameters a=1": "belongs to a propensity model",
    "--by jpv --popularity x.tsv": "--popularity belongs to --by self-selection",
    "--popularity nothing.tsv": "nothing.tsv: no such file",
    "--seed -1": "'seed' is -1",
    "--out full.jsonl --force": "is the input file; name another output",
}


@pytest.mark.parametrize("flags", BAD)
def test_bad_flags(tmp_path, source, capsys, monkeypatch, flags):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "thin", "full.jsonl", "--out", "thin.jsonl", *flags.split()]) == 2
    error = capsys.readouterr().err
    assert BAD[flags] in error and error.count("\n") <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["full.jsonl"]


@pytest.mark.parametrize("line", ["i1 5", "i1\t-2", "i1\tnan", "i1\tfive"])
def test_bad_popularity_lines(tmp_path, source, capsys, line):
    (tmp_path / "p.tsv").write_text(f"id\tn\ni0\t3\n{line}\n")
    command = ["data", "thin", str(source), "--out", str(tmp_path / "o.jsonl"), "--popularity", str(tmp_path / "p.tsv")]
    assert main(command) == 2
    assert "p.tsv:3: expected `id TAB number >= 0`" in capsys.readouterr().err


def test_popularity_of_other_items(tmp_path, source, capsys):
    (tmp_path / "p.tsv").write_text("other\t3\n")
    command = ["data", "thin", str(source), "--out", str(tmp_path / "o.jsonl"), "--popularity", str(tmp_path / "p.tsv")]
    assert main(command) == 2
    assert "holds no id of the input" in capsys.readouterr().err
