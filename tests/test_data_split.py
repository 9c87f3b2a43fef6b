"""Algorithm 2: merge, group by text, cut; texts never cross splits."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pusl.cli import main
from pusl.data.simulate import SimulateConfig, simulate
from pusl.data.splits import SplitConfig, merge, parse_time, split, split_uniformly
from pusl.examples import Example, read_examples, write_examples
from pusl_eval.files import InputError
from pusl_eval.normalize import normalize


def digest(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def make_file(path, items, first=0):
    """Items whose n-th has n % 7 + 1 keyphrases; every fifth text is there twice with other labels."""
    examples = []
    for n in range(first, first + items):
        labels = [f"label {n % 11}-{j}" for j in range(n % 7 + 1)]
        examples.append(Example(f"i{n}", f"text {n}", labels, [1] * len(labels)))
        if n % 5 == 0:
            examples.append(Example(f"again{n}", f"text {n}", [labels[0].upper(), f"extra {n}"], [4, 2]))
    write_examples(path, examples)
    return path


@pytest.fixture
def source(tmp_path):
    return make_file(tmp_path / "all.jsonl", 200)


def load(folder, name):
    path = folder / f"{name}.jsonl"
    return list(read_examples(path)) if path.stat().st_size else []


def test_sizes_merging_and_disjoint_texts(tmp_path, source):
    about = split([source], tmp_path / "out", SplitConfig(seed=4))
    parts = {name: load(tmp_path / "out", name) for name in ("train", "dev", "test")}
    assert [len(part) for part in parts.values()] == [160, 20, 20]
    texts = [example.text for part in parts.values() for example in part]
    assert len(set(texts)) == len(texts) == 200
    merged = next(example for part in parts.values() for example in part if example.text == "text 5")
    assert merged.keyphrases == [f"label 5-{j}" for j in range(6)] + ["extra 5"]
    assert merged.counts == [5, 1, 1, 1, 1, 1, 2] and merged.extra["merged_ids"] == ["i5", "again5"]
    assert about["rows"] == 240 and about["items"] == 200


def test_narrow_diverse_and_count_files_partition_the_test_file(tmp_path, source):
    about = split([source], tmp_path / "out", SplitConfig(seed=4, test=0.4, max_count=5))
    mu = sum(len(e.keyphrases) for e in load(tmp_path / "out", "train")) / about["sizes"]["train"]
    assert about["mu"] == pytest.approx(mu)
    test = {e.id: len(e.keyphrases) for e in load(tmp_path / "out", "test")}
    narrow, diverse = ({e.id for e in load(tmp_path / "out", f"test_{kind}")} for kind in ("narrow", "diverse"))
    assert narrow == {name for name, size in test.items() if size <= 2 * mu}
    assert diverse == {name for name, size in test.items() if size > 2 * mu}
    by_count = {}
    for path in (tmp_path / "out").glob("test_count_*.jsonl"):
        for example in read_examples(path):
            by_count[example.id] = path.stem
    assert set(by_count) == set(test)
    assert all(
        by_count[name] == ("test_count_5_plus" if size >= 5 else f"test_count_{size}") for name, size in test.items()
    )


def test_same_seed_same_bytes_other_seed_other_split(tmp_path, source):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        split([source], tmp_path / name, SplitConfig(seed=seed))
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert digest(tmp_path / "a")["test.jsonl"] != digest(tmp_path / "c")["test.jsonl"]


def test_several_files_of_several_kinds(tmp_path, source):
    other = make_file(tmp_path / "more.parquet", 50, first=180)  # texts 180..199 are in both
    about = split([source, other], tmp_path / "out", SplitConfig())
    assert about["items"] == 230 and about["rows"] == 300
    ids = [e.id for name in ("train", "dev", "test") for e in load(tmp_path / "out", name)]
    assert len(set(ids)) == 230


def test_one_id_for_two_texts_gets_a_new_name():
    merged = merge([Example("1", "a", ["x"]), Example("1", "b", ["y"]), Example("1", "a", ["z"])])
    assert [(e.id, e.text, e.keyphrases) for e in merged] == [("1", "a", ["x", "z"]), ("1~2", "b", ["y"])]


def test_counts_stay_only_where_all_rows_have_them():
    assert merge([Example("1", "a", ["x"], [2]), Example("2", "a", ["y"])])[0].counts is None


texts = st.lists(
    st.sampled_from(["a", "A", " a", "b", "B", "c", "d", "e f", "E  F", "g", "h", "i"]), min_size=12, max_size=60
)


@settings(max_examples=60, deadline=None)
@given(texts, st.integers(0, 5))
def test_near_equal_texts_share_a_split_and_nothing_is_lost(values, seed):
    rows = [Example(str(n), text, [f"k{n}"]) for n, text in enumerate(values)]
    try:
        parts = split_uniformly(rows, SplitConfig(seed=seed, dev=1, test=1))
    except InputError:
        assert len({normalize(text) for text in values}) < 3
        return
    homes = {}
    for name, part in parts.items():
        for example in part:
            assert homes.setdefault(normalize(example.text), name) == name
    assert sorted(k for part in parts.values() for e in part for k in e.keyphrases) == sorted(
        k for row in rows for k in row.keyphrases
    )


def test_items_without_keyphrases_are_kept_apart(tmp_path):
    write_examples(tmp_path / "a.jsonl", [Example(str(n), f"t{n}", ["x"] if n else []) for n in range(20)])
    about = split([tmp_path / "a.jsonl"], tmp_path / "out", SplitConfig())
    assert about["sizes"]["unlabeled"] == 1 and about["sizes"]["train"] == 15


def test_split_by_time(tmp_path):
    rows = [Example(f"p{n}", f"text {n}", [f"old {n}"], timestamp=f"2025-01-{n + 1:02d}") for n in range(20)]
    rows += [Example(f"f{n}", f"text {n}", [f"new {n}"], timestamp="2025-03-01") for n in range(10)]
    rows += [Example(f"u{n}", f"unseen {n}", ["x"], timestamp="2025-03-02") for n in range(5)]
    write_examples(tmp_path / "log.jsonl", rows)
    command = ["data", "split", str(tmp_path / "log.jsonl"), "--out", str(tmp_path / "out"), "--by-time", "--dev", "4"]
    command += ["--uniform", "3"]
    assert main([*command, "--cutoff", "2025-02-01"]) == 0
    out = tmp_path / "out"
    train, dev, test = (load(out, name) for name in ("train", "dev", "test"))
    uniform = load(out, "uniform_unseen")
    assert [len(train), len(dev), len(uniform)] == [13, 4, 3] and [e.id for e in test] == [f"u{n}" for n in range(5)]
    assert test == load(out, "future_unseen")
    known = {e.text for e in train}
    assert all(known.isdisjoint(e.text for e in part) for part in (test, dev, uniform))
    seen = load(out, "future_seen")
    assert {e.text for e in seen} == known & {f"text {n}" for n in range(10)}
    assert all(phrase.startswith("new") for e in seen for phrase in e.keyphrases)
    assert all(phrase.startswith("old") for e in train for phrase in e.keyphrases)
    # Without --cutoff the latest rows make up the test share.
    assert main([*command, "--test", "5", "--force"]) == 0
    assert [e.id for e in load(out, "test")] == [f"u{n}" for n in range(5)]


def test_what_later_sets_share_with_training(tmp_path, capsys):
    past = [Example(f"p{n}", f"text {n}", ["a", f"b{n}"], timestamp=1) for n in range(10)]
    later = [Example(f"s{n}", f"Text {n}", ["A", f"b{n}"] if n % 2 else ["a", "new"], timestamp=2) for n in range(10)]
    write_examples(tmp_path / "log.jsonl", [*past, *later, Example("u", "other", ["a", "c"], timestamp=2)])
    command = ["data", "split", str(tmp_path / "log.jsonl"), "--out", str(tmp_path / "out"), "--by-time"]
    assert main([*command, "--cutoff", "2", "--dev", "0"]) == 0
    found = json.loads((tmp_path / "out" / "split.json").read_text())["out_of_time"]
    assert found["uniform_unseen"]["items"] == 0
    assert found["future_seen"] == {
        "items": 10, "keyphrases_per_item": 2.0, "texts_shared": 1.0, "items_unchanged": 0.5,
        "labels_unchanged": 0.75, "labels_known": 0.75,
    }  # fmt: skip
    assert found["future_unseen"]["texts_shared"] == 0 and found["future_unseen"]["labels_known"] == 0.5
    assert found["future_unseen"]["items_unchanged"] is None
    table = capsys.readouterr().out
    assert "labels unchanged" in table and "75.0" in table and "–" in table


def test_count_sets_out_of_the_training_part(tmp_path, source):
    plain = split([source], tmp_path / "plain", SplitConfig(seed=4))
    about = split([source], tmp_path / "out", SplitConfig(seed=4, count_sets="train", count_size=3, every_count=True))
    train, test = (load(tmp_path / "out", name) for name in ("train", "test"))
    assert test == load(tmp_path / "plain", "test"), "the test file stays"
    taken = {}
    for path in (tmp_path / "out").glob("test_count_*.jsonl"):
        examples = list(read_examples(path))
        assert {len(e.keyphrases) for e in examples} == {int(path.stem.split("_")[-1])}
        taken[path.stem] = {e.text for e in examples}
    assert all(len(texts) == 3 for texts in taken.values()) and len(taken) == 8
    out = set().union(*taken.values())
    assert out.isdisjoint(e.text for e in [*train, *test, *load(tmp_path / "out", "dev")])
    assert out | {e.text for e in train} == {e.text for e in load(tmp_path / "plain", "train")}
    assert about["sizes"]["train"] == plain["sizes"]["train"] - 24
    few = SplitConfig(seed=4, count_sets="train", count_size=0.001, every_count=True)
    assert split([source], tmp_path / "few", few)["sizes"]["train"] == plain["sizes"]["train"] - 8, "one of each"
    with pytest.raises(InputError, match="leaves nothing to train on"):
        split([source], tmp_path / "none", SplitConfig(count_sets="train", count_size=1000))


def test_splitting_a_simulated_file_by_its_own_seed_is_a_fair_draw(tmp_path):
    simulate(tmp_path / "shop", SimulateConfig(items=600, seed=5))
    split([tmp_path / "shop" / "train.jsonl"], tmp_path / "out", SplitConfig(seed=5, test=0.3))
    test, train = (load(tmp_path / "out", name) for name in ("test", "train"))
    several = [sum(len(e.keyphrases) > 1 for e in part) / len(part) for part in (test, train)]
    assert abs(several[0] - several[1]) < 0.12, "the same random numbers decide popularity and the split"


def test_times_of_several_kinds():
    assert parse_time(12) == parse_time("12") == 12.0
    assert parse_time("1970-01-01T00:01:00Z") == parse_time("1970-01-01 01:01:00+01:00") == 60.0
    for bad in ("yesterday", "nan", ""):
        with pytest.raises(ValueError):
            parse_time(bad)


BAD = {
    "--dev 0.5 --test 0.5": "none is left for train",
    "--dev 150 --test 100": "none is left for train",
    "--test 0": "a split needs test items",
    "--test 1.5": "expected a share below 1 or a number",
    "--dev nan": "it must be a finite number",
    "--dev -1": "it must be at least 0",
    "--seed -3": "'seed' is -3",
    "--max-count 0": "'max_count' is 0",
    "--cutoff 3": "--cutoff needs --by-time",
    "--uniform 3": "--uniform needs --by-time",
    "--count-size 3": "--count-size needs --count-sets train",
    "--count-sets train --count-size 2.5": "--count-size 2.5: expected a share below 1",
    "--by-time": "has no timestamp. Name the column with --timestamp-column",
    "--by-time --timestamp-column text": "expected a number or a date",
    "--text-column title": "no field 'title'",
    "--text-template {title": "--text-template",
}


@pytest.mark.parametrize("flags", BAD)
def test_bad_flags_leave_nothing_behind(tmp_path, source, capsys, flags):
    assert main(["data", "split", str(source), "--out", str(tmp_path / "out"), *flags.split()]) == 2
    error = capsys.readouterr().err
    assert BAD[flags] in error and error.count("\n") <= 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.jsonl"]


def test_bad_cutoffs(tmp_path, capsys):
    write_examples(tmp_path / "a.jsonl", [Example(str(n), f"t{n}", ["x"], timestamp=n) for n in range(9)])
    for cutoff, words in (("soon", "expected a number or a date"), ("100", "9 rows before it and 0 from it on")):
        command = ["data", "split", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "out"), "--by-time"]
        assert main([*command, "--cutoff", cutoff]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_blank_text_is_refused(tmp_path, capsys):
    write_examples(tmp_path / "a.jsonl", [Example("x9", "  ", ["a"])])
    assert main(["data", "split", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "out")]) == 2
    assert "id 'x9' has a blank text" in capsys.readouterr().err


def test_force_removes_the_files_of_the_earlier_split_only(tmp_path, source):
    out = tmp_path / "out"
    split([source], out, SplitConfig())
    (out / "predictions.jsonl").write_text("mine")
    assert (out / "test_count_05.jsonl").exists()
    with pytest.raises(InputError, match="pass --force"):
        split([source], out, SplitConfig())
    split([source], out, SplitConfig(max_count=3), force=True)
    assert not (out / "test_count_05.jsonl").exists() and (out / "predictions.jsonl").read_text() == "mine"
    assert json.loads((out / "split.json").read_text())["config"]["max_count"] == 3


def test_an_input_is_neither_replaced_nor_removed(tmp_path, source):
    """Splitting the parts of an earlier split again, into the same folder, would lose them."""
    out = tmp_path / "out"
    split([source], out, SplitConfig(max_count=3))
    before = digest(out)
    for name in ("train.jsonl", max(out.glob("test_count_*")).name):  # one would be replaced, one removed
        with pytest.raises(InputError, match=f"{name}: is the input file; name another output"):
            split([out / name], out, SplitConfig(every_count=True, max_count=1), force=True)
        assert digest(out) == before
    (out / "split.json").unlink()
    foreign = digest(out)
    with pytest.raises(InputError, match=r"train\.jsonl: is the input file"):
        split([source, out / "train.jsonl"], out, SplitConfig(duplicates="first"), force=True)
    assert digest(out) == foreign
    (out / "mine.jsonl").write_bytes(source.read_bytes())
    split([out / "mine.jsonl"], out, SplitConfig(), force=True)  # an input beside them is fine
    assert (out / "mine.jsonl").read_bytes() == source.read_bytes()


def test_a_foreign_train_file_is_not_overwritten(tmp_path, source):
    out = tmp_path / "out"
    out.mkdir()
    (out / "train.jsonl").write_text("precious")
    with pytest.raises(InputError, match=r"train\.jsonl: exists already"):
        split([source], out, SplitConfig())
    assert [path.name for path in out.iterdir()] == ["train.jsonl"] and (out / "train.jsonl").read_text() == "precious"


def test_rows_with_one_id(tmp_path, capsys):
    rows = [Example(f"i{n % 20}", f"text {n % 20}", [f"label {n}"], [1]) for n in range(40)]
    rows.append(Example("i3", "another text", ["late"], [2]))
    source, out = tmp_path / "long.jsonl", tmp_path / "out"
    write_examples(source, rows)
    command = ["data", "split", str(source), "--out", str(out)]
    assert main(command) == 2
    shown = capsys.readouterr().err
    assert "id 'i0' occurs twice (first in line 1)" in shown and "--duplicates merge" in shown and not out.exists()
    assert main([*command, "--duplicates", "merge"]) == 0
    assert "1 rows whose text differs" in capsys.readouterr().out
    items = {e.id: e for name in ("train", "dev", "test") for e in load(out, name)}
    assert len(items) == 20 and items["i3"].text == "text 3"
    assert items["i3"].keyphrases == ["label 3", "label 23", "late"] and items["i3"].counts == [1, 1, 2]
    assert items["i3"].extra["merged_ids"] == ["i3"]
    assert main([*command, "--duplicates", "first", "--force"]) == 0
    assert "21 rows left out" in capsys.readouterr().out
    items = {e.id: e for name in ("train", "dev", "test") for e in load(out, name)}
    assert len(items) == 20 and items["i3"].keyphrases == ["label 3"]
