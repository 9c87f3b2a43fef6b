"""Metrics against values computed by hand, against plain Python, and their own docstrings."""

from __future__ import annotations

import doctest
import importlib
import math
import random
from pathlib import Path

import naive_metrics
import numpy as np
import pytest

from pusl_eval import inputs, matching, metrics
from pusl_eval.evaluation import evaluate
from pusl_eval.files import InputError
from pusl_eval.normalize import normalize

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(path.stem for path in (ROOT / "eval" / "pusl_eval").glob("*.py") if not path.stem.startswith("_"))


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(f"pusl_eval.{name}")
    assert doctest.testmod(module).failed == 0


def test_every_public_metric_has_a_hand_example():
    finder = doctest.DocTestFinder()
    declared = [metric for metric in metrics.REGISTRY if metric.needs != "judge"]
    for metric in declared:
        examples = [e for test in finder.find(metric) for e in test.examples]
        assert examples, f"{metric.names[0]} has no example"
        assert metric.__name__ in metrics.__all__, f"{metric.names[0]} is not public"
    assert len(declared) == len(set(metrics.__all__) - {"mean", "REGISTRY"})


# One item with |Y| = 3 and one with |Y| = 1; the first list has a repeat (place 2), a blank (4) and a late hit (5).
REFERENCES = {"x": ["Red Shoe", "hat", "scarf", "hat "], "y": ["coat"], "z": []}
PREDICTIONS = {"x": ["red  shoe", "RED SHOE", "boot", " ", "hat"], "y": ["cap", "coat"], "z": ["cap"]}
HAND = {
    # cut at O: x -> {red shoe, boot} of 3 places, 1 hit; y -> {cap}, 0 hits
    "P@O": (1 / 2 + 0) / 2,
    "R@O": (1 / 3 + 0) / 2,
    "F1@O": (2 * (1 / 2) * (1 / 3) / (5 / 6) + 0) / 2,
    # cut at 2: x -> {red shoe}, 1 hit at rank 1; y -> {cap, coat}, 1 hit at rank 2; z -> {cap}
    "B@2": (1 / 2 + 1 / 2) / 2,
    "B@2_max": (1 + 1 / 2) / 2,
    "K@2": (1 + 2 + 1) / 3,
    "P@2": (1 + 1 / 2) / 2,
    "R@2": (1 / 3 + 1) / 2,
    "F1@2": (1 / 2 + 2 / 3) / 2,
    "nDCG@2": (1 / (1 + 1 / math.log2(3)) + 1 / math.log2(3)) / 2,
    "Success@2": 1.0,
    "Abandonment@2": 0.0,
    "Diversity@2": 1.0,  # only y has two phrases, and they share no word
    # labels: red shoe TP 1, coat TP 1, hat 0, scarf 0; predicted: red shoe 1, coat 1 (z has no references)
    "MacroP@2": 2 / 4,
    "MacroR@2": 2 / 4,
    "MacroF1@2": 2 / 4,
    "Cov@2": 2 / 4,
    "Cov@2 (3 items)": (2 * (1 - (1 - 1 / 2) ** 3)) / 4,
    "αCov@2": 2 / 4,
    "Entropy@2": math.log(2),
    # cut at 5: x -> {red shoe, boot, hat}, hits at ranks 1 and 5
    "B@5": (2 / 5 + 1 / 5) / 2,
    "B@5_max": (3 / 5 + 1 / 5) / 2,
    "K@5": (3 + 2 + 1) / 3,
    "P@5": (2 / 3 + 1 / 2) / 2,
    "R@5": (2 / 3 + 1) / 2,
    "F1@5": (2 / 3 + 2 / 3) / 2,
    "nDCG@5": ((1 + 1 / math.log2(6)) / (1 + 1 / math.log2(3) + 1 / 2) + 1 / math.log2(3)) / 2,
    "Cov@5": 3 / 4,
    "Entropy@5": math.log(3),
}


def test_hand_computed_table():
    result = evaluate(REFERENCES, PREDICTIONS, k=[2, 5], coverage_items=[3], bootstrap=0)
    for name, expected in HAND.items():
        assert result["scores"]["all"][name] == pytest.approx(expected), name
    assert result["counts"] == {"n_items": 3, "n_without_references": 1, "n_missing_predictions": 0}
    assert result["mu"] is None


# Training: 10 items, "hat" in 4, "coat" in 1, "red shoe" never; 20 phrases in all -> μ = 2.
TRAIN = {str(i): [] for i in range(10)}
TRAIN |= {str(i): ["hat", f"a{i}", f"b{i}", f"c{i}"] for i in range(4)}
TRAIN |= {"9": ["coat", "COAT ", "d", "e", "f"]}


def jpv(count, n=10, a=0.55, b=1.5):
    return 1 / (1 + (math.log(n) - 1) * (b + 1) ** a * math.exp(-a * math.log(count + b)))


def test_hand_computed_with_training_and_universe():
    result = evaluate(
        REFERENCES, PREDICTIONS, k=["mu", 5], train=TRAIN, universe=["Boot", "CAP", "other"],
        weights={"red shoe": 2.0, "hat": 0.5, "coat": 4.0, "scarf": 0.0}, bootstrap=0,
    )  # fmt: skip
    assert result["mu"] == 2.0 and result["k"] == [2, 5]
    hat, coat, shoe, scarf = 1 / jpv(4), 1 / jpv(1), 1 / jpv(0), 1 / jpv(0)
    best_x = sorted([hat, shoe, scarf], reverse=True)
    full = 1 + 1 / math.log2(3)
    scores = result["scores"]["all"]
    expected = {
        "PSP@2": (shoe / 2 + coat / 2) / 2,
        "PSP@2_norm": (shoe + coat) / (best_x[0] + best_x[1] + coat),
        "PSnDCG@2": (shoe / full + coat / math.log2(3) / full) / 2,
        "PSP@5": ((shoe + hat) / 5 + coat / 5) / 2,
        "PSP@5_norm": (shoe + hat + coat) / (hat + shoe + scarf + coat),
        "weighted P@2": (2 / 2 + 4 / 2) / 2,
        "weighted P@5": (2.5 / 5 + 4 / 5) / 2,
        "R_seen@2": 1 / 2,  # hat missed, coat found
        "R_unseen@2": 1 / 2,  # red shoe found, scarf missed
        "R_seen@5": 1.0,
        "Uni@2": 2 / 4,  # of red shoe, cap, coat, cap
        "New@2": 3 / 4,  # all but coat
        "Uni@5": 3 / 6,
        "New@5": 4 / 6,
    }
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value), name
    # 2μ = 4: both items with references are narrow; the one without is in neither group.
    assert result["provenance"]["group_sizes"] == {"narrow": 2, "diverse": 0}
    assert result["scores"]["narrow"]["B@2"] == pytest.approx(0.5)
    assert result["scores"]["narrow"]["K@2"] == pytest.approx(3 / 2)
    assert set(result["scores"]["diverse"].values()) == {None}
    assert {name: row["n_labels"] for name, row in result["bins"].items()} == {
        "0": 2, "1-9": 2, "10-99": 0, "100-999": 0, "1000+": 0,
    }  # fmt: skip
    assert result["bins"]["0"]["MacroF1@2"] == pytest.approx(1 / 2)
    assert result["bins"]["10-99"]["MacroF1@2"] is None
    assert result["bins"]["1-9"]["narrow"]["MacroF1@5"] == pytest.approx(1.0)


def test_narrow_and_diverse_split_at_two_mu():
    train = {"1": ["a"], "2": ["b", "c"]}  # μ = 1.5, 2μ = 3
    references = {"four": list("abcd"), "three": list("abc"), "none": [" "]}
    predictions = {"four": ["a"], "three": ["x"], "none": ["a"]}
    scores = evaluate(references, predictions, k=["2mu", "mu"], train=train, bootstrap=0)["scores"]
    assert scores["narrow"]["B@3"] == 0 and scores["diverse"]["B@3"] == pytest.approx(1 / 3)
    assert scores["all"]["B@2"] == pytest.approx(1 / 4)  # μ = 1.5 is rounded to 2


def test_own_cut_is_capped_at_100():
    labels = [f"l{i}" for i in range(150)]
    result = evaluate({"a": labels}, {"a": labels}, k=[1], bootstrap=0)["scores"]["all"]
    assert result["P@O"] == 1 and result["R@O"] == pytest.approx(100 / 150)


def test_groups_and_group_names():
    references = [
        {"id": "1", "keyphrases": ["a"], "group": "all"},
        {"id": "2", "keyphrases": ["b"], "group": "narrow"},
        {"id": "3", "keyphrases": ["c"]},
    ]
    result = evaluate(references, {"1": ["a"], "2": ["x"]}, k=[1])
    assert result["groups"]["all"]["B@1"] == 1 and result["groups"]["narrow"]["B@1"] == 0
    assert result["groups"]["all"]["Cov@1"] == 1  # the label space of a group is its own labels
    assert result["intervals"]["groups"]["all"]["B@1"] == [1, 1]
    assert result["scores"]["all"]["B@1"] == pytest.approx(1 / 3)
    assert result["counts"]["n_missing_predictions"] == 1


def test_label_space_given_by_the_user():
    references, predictions = {"1": ["a", "b"]}, {"1": ["A", "c"]}
    scores = evaluate(references, predictions, k=[2], label_space=["a", "c", "never", "A"], bootstrap=0)["scores"][
        "all"
    ]
    # a: TP. c: FP. never: nothing. b is outside.
    assert scores["MacroP@2"] == pytest.approx(1 / 3)
    assert scores["MacroR@2"] == pytest.approx(1 / 3)
    assert scores["Cov@2"] == pytest.approx(1 / 3)
    assert scores["R@2"] == pytest.approx(1 / 2)  # per item nothing changes


def test_alpha_coverage():
    references = {"1": ["a", "b"], "2": ["a"], "3": ["a"]}
    predictions = {"1": ["a", "b"], "2": ["x"], "3": ["x"]}
    for alpha, expected in ((0, 1.0), (1 / 3, 1.0), (0.5, 0.5), (1, 0.5)):
        scores = evaluate(references, predictions, k=[2], alpha=alpha, bootstrap=0)["scores"]["all"]
        assert scores["αCov@2"] == expected, alpha


def test_nothing_to_average_is_null_never_zero():
    result = evaluate({"1": [], "2": [" "]}, {"1": ["a"]}, k=[3])
    scores = result["scores"]["all"]
    assert scores["K@3"] == 0.5
    assert {name for name, value in scores.items() if value is not None} == {"K@3"}
    assert result["intervals"]["all"]["B@3"] is None
    nothing = evaluate({"1": ["a"]}, {"1": []}, k=[3], universe=["a"], train={"1": ["a"]})["scores"]["all"]
    assert nothing["B@3"] == 0 and nothing["P@3"] == 0
    for name in ("Uni@3", "New@3", "Diversity@3", "Entropy@3", "R_unseen@3"):
        assert nothing[name] is None, name


def test_implausible_psp_names_the_model(caplog):
    references = {str(i): [f"rare {i}"] for i in range(20)}
    result = evaluate(references, references, k=[1], train={str(i): ["x"] for i in range(1000)})
    assert result["scores"]["all"]["PSP@1"] > 1
    assert any("PSP@1" in note and "'jpv'" in note for note in result["provenance"]["warnings"])
    assert "'jpv'" in caplog.text


def random_case(seed, items=200):
    rng = random.Random(seed)
    vocabulary = [f"{a} {b}" for a in ("red", "Blue", "ﬁne", "tall") for b in ("shoe", "HAT", "coat", "sock")] + [
        "",
        " ",
    ]

    def draw(low, high):
        return [rng.choice(vocabulary) for _ in range(rng.randint(low, high))]

    references = {str(i): draw(0, 7) for i in range(items)}
    predictions = {i: draw(0, 12) for i in references}
    train = {str(i): [p for p in draw(0, 7) if "tall" not in p] for i in range(100)}
    weights = {phrase.casefold().replace("ﬁ", "fi"): rng.random() for phrase in vocabulary if phrase.strip()}
    return references, predictions, train, vocabulary[:7], weights


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_plain_python(seed):
    references, predictions, train, universe, weights = random_case(seed)
    rng = random.Random(seed)
    choices = ["", "No.", "A RED  shoe, a blue-hat", "ﬁne coat; Red hat. Tall", "SOCK, blue shoe?"]
    texts = {i: rng.choice(choices) for i in references}
    rows = [{"id": i, "text": texts[i], "keyphrases": y} for i, y in references.items()]
    by_rank = {phrase: [rng.random() for _ in range(rng.randint(1, 6))] for phrase in list(weights)[::2]}
    ks = [1, 3, 5, 15]
    ours = evaluate(
        rows, predictions, ks, train=train, universe=universe, weights=weights, rank_weights=by_rank, beta=0.5,
        bootstrap=0,
    )["scores"]["all"]  # fmt: skip
    theirs = naive_metrics.scores(
        list(references.values()), list(predictions.values()), ks, list(train.values()), universe, weights=weights,
        rank_weights=by_rank, texts=list(texts.values()), beta=0.5,
    )  # fmt: skip
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, abs=1e-12), name


def test_blocks_do_not_show(monkeypatch):
    references, predictions, train, universe, _ = random_case(7)
    whole = evaluate(references, predictions, [2, 9], train=train, universe=universe)
    monkeypatch.setattr(matching.match, "__defaults__", (7,))
    monkeypatch.setattr(matching, "BLOCK", 7)
    monkeypatch.setattr(inputs, "CHUNK", 11)
    assert dict(evaluate(references, predictions, [2, 9], train=train, universe=universe)) == dict(whole)


def test_single_metrics_agree_with_evaluate():
    references, predictions, *_ = random_case(3)
    truth, guess = list(references.values()), list(predictions.values())
    scores = evaluate(references, predictions, [4], bootstrap=0)["scores"]["all"]
    functions = {
        "B": metrics.budget_accuracy, "K": metrics.unique_count, "P": metrics.precision, "R": metrics.recall,
        "F1": metrics.f1, "nDCG": metrics.ndcg, "Success": metrics.success, "Abandonment": metrics.abandonment,
        "Diversity": metrics.diversity,
    }  # fmt: skip
    for name, function in functions.items():
        per_item = function(truth, guess, 4)
        assert per_item.shape == (len(truth),)
        assert metrics.mean(per_item) == pytest.approx(scores[f"{name}@4"]), name
    assert metrics.mean(metrics.f1(truth, guess)) == pytest.approx(scores["F1@O"])
    assert metrics.macro_f1(truth, guess, 4) == pytest.approx(scores["MacroF1@4"])
    assert metrics.micro_f1(truth, guess, 4) == pytest.approx(scores["MicroF1@4"])
    assert metrics.coverage(truth, guess, 4) == pytest.approx(scores["Cov@4"])


def test_single_metrics_refuse_what_cannot_be_meant():
    with pytest.raises(InputError, match="1 references, 2 predictions"):
        metrics.recall([["a"]], [["a"], ["b"]], 1)
    with pytest.raises(InputError, match="k is 0"):
        metrics.budget_accuracy([["a"]], [["a"]], 0)
    with pytest.raises(InputError, match="expected a list of phrases"):
        metrics.budget_accuracy(["ab"], [["a"]], 1)
    assert metrics.budget_accuracy([], [], 3).shape == (0,)
    assert np.isnan(metrics.recall([[]], [["a"]], 1)).all()


def test_stem_and_none_normalization():
    references, predictions = {"1": ["Running Shoes"]}, {"1": ["running-shoe"]}
    assert evaluate(references, predictions, [1], normalization="stem")["scores"]["all"]["B@1"] == 1
    assert evaluate(references, predictions, [1])["scores"]["all"]["B@1"] == 0
    assert evaluate({"1": ["A"]}, {"1": ["a"]}, [1], normalization="none")["scores"]["all"]["B@1"] == 0


def test_many_phrases_go_through_arrow_and_nothing_changes(monkeypatch):
    pytest.importorskip("pyarrow")
    references, predictions, train, universe, _ = random_case(11)
    plain = evaluate(references, predictions, [2, 9], train=train, universe=universe)
    monkeypatch.setattr(matching, "MANY", 10)
    assert matching.Vocabulary()._encode_many([["a", "b"], ["A"]]).tolist() == [0, 1, 0]
    assert dict(evaluate(references, predictions, [2, 9], train=train, universe=universe)) == dict(plain)
    for bad in (None, 7):
        with pytest.raises(InputError, match="id '3'"):
            evaluate(references, {**predictions, "3": ["x", bad]}, [2])
    odd = ["\ud800", "x"] * 10  # half a surrogate pair, which Arrow cannot hold
    assert evaluate({"1": odd}, {"1": odd}, [2])["scores"]["all"]["B@2"] == 1


NLTK_STEMS = {  # of nltk 3.9.1's PorterStemmer, which differs from the published algorithm here
    "skies": "sky", "dying": "die", "dies": "die", "spied": "spi", "tied": "tie", "enjoy": "enjoy", "news": "news",
    "radically": "radic", "hopefully": "hope", "happy": "happi", "by": "by", "relational": "relat", "using": "use",
    "geology": "geolog",
}  # fmt: skip


@pytest.mark.parametrize("word", NLTK_STEMS)
def test_the_stemmer_of_keyphrase_papers(word):
    assert normalize(word, "nltk-stem") == NLTK_STEMS[word]


def test_present_and_absent_scores_with_the_stemmer_of_keyphrase_papers():
    texts, references = ["The skies of enjoyment."], [["sky", "blue sky"]]
    found = metrics.present_f1(references, [["skies", "sea"]], k=5, normalization="nltk-stem", texts=texts)
    assert found.tolist() == [1.0]  # `sea` is absent
    assert metrics.present_f1(references, [["skies"]], k=5, texts=texts).tolist() != [1.0]
    assert metrics.absent_recall(references, [["sky", "blue skies"]], k=10, normalization="nltk-stem", texts=texts) == [
        1.0
    ]


@pytest.mark.parametrize("how", ["stem", "nltk-stem"])
def test_a_phrase_with_a_dot_that_stands_in_the_text_is_present_when_stemmed_too(how):
    texts, references = ["chartist.js: simple charts for Node.js"], [["chartist.js", "node.js", "chart", "d3.js"]]
    assert metrics.present_f1(references, [["Node.js", "charts"]], k=5, normalization=how, texts=texts) == [0.8]
    assert metrics.absent_recall(references, [["d3.js"]], k=5, normalization=how, texts=texts) == [1.0]
