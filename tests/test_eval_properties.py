"""What must hold for any input (hypothesis)."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pusl_eval.evaluation import compare, evaluate
from pusl_eval.files import InputError, write_rows
from pusl_eval.normalize import normalize
from pusl_eval.records import read_predictions, read_references

pytestmark = pytest.mark.slow  # hundreds of drawn cases each

phrases = st.lists(
    st.sampled_from(["red shoe", "Red  shoe", "hat", "HAT", "blue hat", "", " ", "ﬁn", "fin"]), max_size=9
)
items = st.lists(st.tuples(phrases, phrases), min_size=1, max_size=8)
some = settings(max_examples=60, deadline=None)


def sources(pairs):
    return {str(i): y for i, (y, _) in enumerate(pairs)}, {str(i): p for i, (_, p) in enumerate(pairs)}


@some
@given(items, st.randoms(use_true_random=False), st.integers(1, 6))
def test_order_of_items_changes_nothing(pairs, rng, k):
    references, predictions = sources(pairs)
    train = {"1": ["hat"], "2": ["red shoe", "fin"]}
    before = evaluate(references, predictions, [k], train=train, universe=["hat"], bootstrap=20)
    names = list(references)
    rng.shuffle(names)
    others = list(references)
    rng.shuffle(others)
    after = evaluate(
        {name: references[name] for name in names}, {name: predictions[name] for name in others}, [k], train=train,
        universe=["hat"], bootstrap=20,
    )  # fmt: skip
    for part in ("scores", "intervals"):
        for group in ("all", "narrow", "diverse"):
            for name, value in before[part][group].items():
                assert after[part][group][name] == pytest.approx(value, abs=1e-12), (part, group, name)
    assert after["counts"] == before["counts"]


@some
@given(items, st.integers(1, 10))
def test_bounds(pairs, k):
    references, predictions = sources(pairs)
    result = evaluate(references, predictions, [k], bootstrap=0)
    scores, rows = result["scores"]["all"], result.per_item
    assert (rows[f"K@{k}"] <= k).all()
    known = rows[f"B@{k}"] == rows[f"B@{k}"]
    assert (rows[f"B@{k}"][known] <= rows[f"B@{k}_max"][known] + 1e-12).all()
    assert (rows[f"P@{k}"][known] >= rows[f"B@{k}"][known] - 1e-12).all()  # P divides by at most k
    for name, value in scores.items():
        if value is not None and not name.startswith(("K@", "Entropy@")):
            assert -1e-12 <= value <= 1 + 1e-12, name


@some
@given(items, st.integers(1, 10))
def test_a_right_phrase_at_the_end_never_lowers_b(pairs, k):
    references, predictions = sources(pairs)
    longer = {name: [*guess, *references[name][:1]] for name, guess in predictions.items()}
    before = evaluate(references, predictions, [k], bootstrap=0).per_item[f"B@{k}"]
    after = evaluate(references, longer, [k], bootstrap=0).per_item[f"B@{k}"]
    known = before == before
    assert (after[known] >= before[known]).all()


@some
@given(items)
def test_perfect_lists(pairs):
    references, _ = sources(pairs)
    clean = {name: list(dict.fromkeys(filter(None, map(normalize, y)))) for name, y in references.items()}
    result = evaluate(references, clean, [3], bootstrap=0)
    rows = result.per_item
    known = rows["F1@O"] == rows["F1@O"]
    for name in ("P@O", "R@O", "F1@O", "nDCG@3"):
        assert rows[name][known] == pytest.approx(1), name
    assert rows["B@3"][known] == pytest.approx(rows["B@3_max"][known])


@some
@given(items, st.integers(1, 5))
def test_repeats_at_the_end_change_only_what_they_waste(pairs, k):
    """A repeat adds nothing: K@k stays when the repeated phrase stood inside the cut."""
    references, predictions = sources(pairs)
    doubled = {name: [*guess[:k], *guess[:k]] for name, guess in predictions.items()}
    short = {name: guess[:k] for name, guess in predictions.items()}
    before, after = (evaluate(references, p, [2 * k], bootstrap=0)["scores"]["all"] for p in (short, doubled))
    for name in before:
        assert after[name] == pytest.approx(before[name]), name


@some
@given(items)
def test_a_system_compared_with_itself_differs_by_nothing(pairs):
    references, predictions = sources(pairs)
    pair = compare(references, {"a": predictions, "b": predictions}, [2], bootstrap=20)["comparisons"][0]
    for gap in pair["scores"]["all"].values():
        assert gap["difference"] in (0, None) and gap["p"] in (1, None)


@some
@given(st.text(max_size=40))
def test_normalization_is_case_and_space_blind(text):
    form = normalize(text)
    assert form == form.strip() and "  " not in form
    assert normalize(f"\t{text}\n") == form
    assert normalize(form, "stem") == normalize(text, "stem")


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(words, max_size=5), min_size=1, max_size=6),
    st.sampled_from(["jsonl", "jsonl.gz", "parquet", "csv", "tsv"]),
)
def test_every_file_kind_gives_the_same_records(lists, ending):
    rows = [{"id": f"i{i}", "keyphrases": list(x), "scores": [0.5] * len(x)} for i, x in enumerate(lists)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows.{ending}"
        if ending == "parquet":
            pytest.importorskip("pyarrow")
        write_rows(path, rows)
        found = list(read_predictions(path))
        assert [(p.id, p.keyphrases, p.scores) for p in found] == [
            (r["id"], r["keyphrases"], r["scores"]) for r in rows
        ]
        assert [r.keyphrases for r in read_references(path)] == [r["keyphrases"] for r in rows]


FIELDS = st.sampled_from(["id", "keyphrases", "scores", "counts", "group", "text", "exhausted", "x"])
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=5), max_leaves=8
)


@settings(max_examples=150, deadline=None)
@given(anything)
def test_any_json_line_is_a_record_or_a_clear_error(value):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.jsonl"
        path.write_text(json.dumps(value) + "\n", encoding="utf-8")
        for read in (read_references, read_predictions):
            try:
                records = list(read(path))
            except InputError as error:
                assert f"{path}:1:" in str(error) and len(str(error).splitlines()) <= 2
            else:
                assert len(records) == 1 and isinstance(records[0].id, str)
