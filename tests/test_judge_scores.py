"""G, Uni, Rel and agreement: values computed by hand, and scikit-learn as an oracle."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from pusl_eval.files import InputError
from pusl_eval.judge import JudgedItem, agreement, first_distinct, judge_scores, read_gold
from pusl_eval.judge_table import judge_table, read_summaries


def item(name, verdicts, ranks=None, inside=None, groups=()):
    count = len(verdicts)
    return JudgedItem(
        name, [f"p{i}" for i in range(count)], ranks or list(range(1, count + 1)), verdicts, inside, list(groups)
    )


def test_scores_by_hand():
    items = [
        item(
            "a",
            [True, True, False, None],
            ranks=[1, 2, 4, 6],
            inside=[True, False, True, True],
            groups=["narrow", "group:x"],
        ),
        item("b", [False], inside=[True], groups=["diverse", "group:x"]),
        item("c", [], inside=[], groups=["narrow"]),
    ]
    found = judge_scores(items, [2, 4, None])
    # @2: a gives 2 phrases (ranks 1, 2), b one: N = 3. @4: a gives 3, N = 4. all: N = 5.
    assert found["counts"]["all"] == {
        "n_items": 3, "n@2": 3, "yes@2": 2, "unanswered@2": 0, "n@4": 4, "yes@4": 2, "unanswered@4": 0,
        "n@all": 5, "yes@all": 2, "unanswered@all": 1,
    }  # fmt: skip
    scores = found["scores"]["all"]
    assert scores["G@2"] == pytest.approx(2 / 3)
    assert scores["G@4"] == 0.5
    assert scores["G@all"] == pytest.approx(2 / 5)
    assert scores["G@all_max"] == pytest.approx(3 / 5)
    assert scores["Uni@2"] == pytest.approx(2 / 3)
    assert scores["Rel@2"] == pytest.approx(1 / 3)
    assert scores["Uni@all"] == pytest.approx(4 / 5)
    assert scores["Rel@all"] == pytest.approx(1 / 5)
    assert scores["Rel@all_max"] == pytest.approx(2 / 5)
    assert found["scores"]["diverse"]["G@2"] == 0.0
    assert found["scores"]["narrow"]["G@2"] == 1.0
    assert found["scores"]["group:x"]["G@2"] == scores["G@2"]
    assert found["intervals"]["diverse"]["G@2"] is None  # one item


def test_nothing_to_average_is_null_and_no_universe_is_null():
    empty = judge_scores([item("a", [])], [3])
    assert empty["scores"]["all"]["G@3"] is None
    assert judge_scores([], [3])["scores"]["all"]["G@3"] is None
    plain = judge_scores([item("a", [True]), item("b", [False])], [3])["scores"]["all"]
    assert plain["G@3"] == 0.5 and plain["Uni@3"] is None and plain["Rel@3"] is None


def test_interval_draws_items_not_keyphrases():
    """Ten verdicts that always agree inside an item carry one item's worth of information."""
    together = [item(str(i), [i % 2 == 0] * 10) for i in range(50)]
    apart = [item(str(i), [i % 2 == 0]) for i in range(500)]
    wide, narrow = (judge_scores(items, [None])["intervals"]["all"]["G@all"] for items in (together, apart))
    # Standard error of a share of 1/2: 1/(2 sqrt(n)), so about 0.139 either side for 50 and 0.044 for 500.
    assert wide[1] - wide[0] == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(50), rel=0.15)
    assert narrow[1] - narrow[0] == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(500), rel=0.15)
    assert judge_scores(together, [None]) == judge_scores(together, [None])


def test_interval_covers_the_truth_about_19_times_of_20():
    generator, covered = np.random.default_rng(3), 0
    for trial in range(80):
        rates = generator.beta(2, 2, size=60)  # mean 1/2, different for every item
        items = [item(str(i), list(map(bool, generator.random(5) < rate))) for i, rate in enumerate(rates)]
        low, high = judge_scores(items, [None], resamples=200, seed=trial)["intervals"]["all"]["G@all"]
        covered += low <= 0.5 <= high
    assert 0.87 <= covered / 80 <= 1.0


@given(st.lists(st.lists(st.sampled_from([True, False, None]), max_size=4), min_size=1, max_size=8), st.integers(1, 5))
def test_scores_equal_plain_counting(verdicts, k):
    items = [item(str(i), values, inside=[i % 2 == 0] * len(values)) for i, values in enumerate(verdicts)]
    flat = [(value, i % 2 == 0) for i, values in enumerate(verdicts) for value in values[:k]]
    scores = judge_scores(items, [k], resamples=2)["scores"]["all"]
    if flat:
        assert scores[f"G@{k}"] == pytest.approx(sum(value is True for value, _ in flat) / len(flat))
        assert scores[f"Rel@{k}"] == pytest.approx(sum(value is True and known for value, known in flat) / len(flat))
        assert scores[f"Rel@{k}"] <= min(scores[f"G@{k}"], scores[f"Uni@{k}"])
    else:
        assert scores[f"G@{k}"] is None


def test_the_cut_comes_before_the_repeats():
    assert first_distinct(["a", "A", " ", "b"], 3) == (["a"], [1])
    assert first_distinct(["a", "A", " ", "b"]) == (["a", "b"], [1, 4])


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_kappa_equals_scikit_learn(pairs):
    first = {(str(i // 3), str(i)): one for i, (one, _) in enumerate(pairs)}
    second = {(str(i // 3), str(i)): other for i, (_, other) in enumerate(pairs)}
    found = agreement(first, second, resamples=5)
    ones, others = zip(*pairs, strict=True)
    assert found["accuracy"] == pytest.approx(np.mean([one == other for one, other in pairs]))
    if len(set(ones)) == 1 and ones == others:
        assert found["kappa"] is None
    else:
        assert found["kappa"] == pytest.approx(cohen_kappa_score(ones, others))


def test_agreement_leaves_out_what_one_side_has_not():
    first = {("a", "x"): True, ("a", "y"): None, ("b", "x"): False, ("c", "only"): True}
    second = {("a", "x"): True, ("a", "y"): True, ("b", "x"): False, ("d", "only"): True}
    found = agreement(first, second)
    assert (found["n_pairs"], found["n_items"], found["n_unanswered"]) == (2, 2, 1)
    assert found["accuracy"] == 1.0 and found["kappa"] == 1.0
    assert found["table"] == {"yes_yes": 1, "yes_no": 0, "no_yes": 0, "no_no": 1}
    nothing = agreement({}, {})
    assert nothing["accuracy"] is None and nothing["kappa"] is None and nothing["n_pairs"] == 0
    assert agreement({("a", "x"): True}, {("a", "x"): True})["accuracy_interval"] is None


def test_kappa_interval_contains_kappa_and_shrinks():
    generator = np.random.default_rng(0)
    widths = []
    for count in (30, 300):
        gold = {(str(i), "x"): bool(generator.random() < 0.5) for i in range(count)}
        said = {pair: value if generator.random() < 0.8 else not value for pair, value in gold.items()}
        found = agreement(gold, said)
        low, high = found["kappa_interval"]
        assert low <= found["kappa"] <= high
        widths.append(high - low)
    assert widths[1] < widths[0] / 2


def test_gold_forms(tmp_path):
    rows = tmp_path / "gold.csv"
    rows.write_text('id,keyphrase,verdict\na,Red  Shoe,yes\na,boot,0\nb,"x, y",True\n')
    expected = {("a", "red shoe"): True, ("a", "boot"): False, ("b", "x, y"): True}
    assert read_gold(str(rows)) == expected
    lists = tmp_path / "gold.jsonl"
    lists.write_text(
        '{"id": "a", "keyphrases": ["Red Shoe", "boot", "hat"], "verdicts": ["yes", "no", "unanswered"]}\n'
        '{"id": "b", "keyphrase": "x, y", "verdict": true}\n'
    )
    assert read_gold(str(lists)) == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id": "a", "keyphrase": "x"}', "expected 'keyphrase' and 'verdict'"),
        ('{"id": "a", "keyphrase": "x", "verdict": "maybe"}', "expected yes or no"),
        ('{"id": "a", "keyphrase": " ", "verdict": "yes"}', "blank"),
        ('{"id": "a", "keyphrase": 3, "verdict": "yes"}', "a number"),
        ('{"keyphrase": "x", "verdict": "yes"}', "no field 'id'"),
        ('{"id": "a", "keyphrases": ["x", "y"], "verdicts": ["yes"]}', "1 verdicts for 2 keyphrases"),
        ('{"id": "a", "keyphrases": ["x", "X"], "verdicts": ["yes", "no"]}', "both a yes and a no"),
        ("", "no verdicts found"),
    ],
)
def test_gold_that_is_wrong_is_named(tmp_path, line, words):
    path = tmp_path / "gold.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=r"gold\.jsonl") as error:
        read_gold(str(path))
    assert words in str(error.value)


def test_peoples_verdicts_from_a_file_of_their_own_stand_beside_the_models(tmp_path):
    judged = {"k": [3], "scores": {"all": {"G@3": 0.5}}, "sizes": {"all": {"n_items": 2, "n@3": 6}}}
    people = {"k": [3], "human": {"scores": {"all": {"Hum@3": 0.75}}, "intervals": {}, "sizes": {"all": {"n@3": 4}}}}
    files = {"v": judged, "p": {"systems": {"v": people}}, "other": {"systems": {"v": {**people, "k": [5]}}}}
    for name, content in files.items():
        (tmp_path / f"{name}.summary.json").write_text(json.dumps(content))
    model, persons, other = (tmp_path / f"{name}.summary.json" for name in files)
    for order in ([model, persons], [persons, model]):
        assert "50.0   75.0" in judge_table(read_summaries(order))
    for wrong, says in (([model, model], "second summary"), ([persons, persons], "second"), ([model, other], "k = 3")):
        with pytest.raises(InputError, match=says):
            read_summaries(wrong)
