"""Bootstrap intervals, paired differences, propensities, laziness."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pusl_eval import significance
from pusl_eval.evaluation import compare, evaluate
from pusl_eval.files import InputError
from pusl_eval.laziness import laziness
from pusl_eval.propensity import SMALLEST, direct, fit, propensities


@pytest.mark.parametrize("items", [400, 30_000])  # by weights, and by cells
def test_interval_is_the_normal_one_for_many_items(items):
    values = (np.random.default_rng(1).random(items) < 0.3).astype(float)
    low, high = significance.intervals({"m": values}, samples=4000, seed=2)["m"]
    half = 1.96 * values.std() / math.sqrt(items)
    assert low == pytest.approx(values.mean() - half, abs=half * 0.12)
    assert high == pytest.approx(values.mean() + half, abs=half * 0.12)


def test_cells_and_weights_agree(monkeypatch):
    rng = np.random.default_rng(3)
    values = {"skewed": rng.exponential(size=5000), "holes": np.where(rng.random(5000) < 0.4, np.nan, rng.random(5000))}
    exact = significance.intervals(values, 4000, 1)
    monkeypatch.setattr(significance, "EXACT_ITEMS", 100)
    cells = significance.intervals(values, 4000, 1)
    for name in values:
        width = exact[name][1] - exact[name][0]
        assert cells[name] == pytest.approx(exact[name], abs=0.06 * width)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng, covered = np.random.default_rng(5), 0
    for trial in range(200):
        low, high = significance.intervals({"m": rng.random(60)}, 300, trial)["m"]
        covered += low <= 0.5 <= high
    assert 175 <= covered <= 200  # 95% of 200 is 190, minus what 60 items and chance take


def test_intervals_do_not_depend_on_order_and_repeat_with_the_seed():
    values = np.random.default_rng(0).random(500)
    holes = np.where(values > 0.8, np.nan, values)
    first = significance.intervals({"a": values, "b": holes}, seed=4)
    assert significance.intervals({"a": values[::-1], "b": holes[::-1]}, seed=4) == first
    assert significance.intervals({"a": values, "b": holes}, seed=5) != first


def test_paired_finds_small_steady_differences_that_intervals_cannot():
    rng = np.random.default_rng(0)
    left = rng.random(2000)
    right = left - 0.01 + 0.01 * rng.standard_normal(2000)
    gap = significance.paired({"m": left}, {"m": right})["m"]
    assert gap.difference == pytest.approx(0.01, abs=0.001)
    assert gap.interval[0] > 0 and gap.p < 0.01
    spans = significance.intervals({"l": left, "r": right})
    assert spans["l"][0] < spans["r"][1], "the two intervals overlap"


def test_paired_p_is_uniform_when_there_is_no_difference():
    rng = np.random.default_rng(1)
    found = [
        significance.paired({"m": rng.random(80)}, {"m": rng.random(80)}, 300, trial)["m"].p for trial in range(200)
    ]
    assert 0.35 < float(np.mean(found)) < 0.65
    assert np.mean(np.array(found) < 0.05) < 0.12


def test_no_draws_no_intervals():
    result = evaluate({"1": ["a"]}, {"1": ["a"]}, [1], bootstrap=0)
    assert result["intervals"]["all"]["B@1"] is None and result["scores"]["all"]["B@1"] == 1


def test_compare_three_systems():
    truth = {str(i): [f"l{i % 5}", f"m{i % 3}"] for i in range(60)}
    good = {name: labels for name, labels in truth.items()}
    half = {name: [labels[0], "wrong"] for name, labels in truth.items()}
    result = compare(truth, {"good": good, "half": half, "none": {"0": []}}, [2], train=truth)
    assert [(pair["a"], pair["b"]) for pair in result["comparisons"]] == [
        ("good", "half"), ("good", "none"), ("half", "none"),
    ]  # fmt: skip
    gap = result["comparisons"][0]["scores"]["all"]["B@2"]
    assert gap["difference"] == pytest.approx(0.5) and gap["interval"] == [0.5, 0.5] and gap["p"] < 0.01
    assert result["systems"]["none"]["counts"]["n_missing_predictions"] == 59
    alone = evaluate(truth, half, [2], train=truth)
    assert result["systems"]["half"] == dict(alone), "company changes nothing"
    assert "good - half" in result.table() and "\033[1m" in result.table(color=True)


def test_models_by_hand():
    assert propensities([3], 100, "power", {"beta": 4, "gamma": 0.5})[0] == pytest.approx(math.sqrt(0.12))
    assert propensities([99], 100, "power", {"beta": 4, "gamma": 0.5})[0] == 1
    c, d, e, f, g, h = 0.1, 0.9, 1.0, 3.0, 5.0, 2.0
    expected = c + (d - c) / (e + f * math.exp(-g * 0.2)) ** (1 / h)
    richards = dict(zip("cdefgh", (c, d, e, f, g, h), strict=True))
    assert propensities([20], 100, "richards", richards)[0] == pytest.approx(expected)
    assert propensities([0, 5], 100, "none").tolist() == [1, 1]
    assert propensities([0], 100, "power", {"beta": 1, "gamma": 1})[0] == SMALLEST
    assert propensities([0], 100, "power", {"beta": 1, "gamma": 1}, prior=2)[0] == pytest.approx(2 / 102)
    assert direct([5], 100, [4], 40, control=0.5)[0] == pytest.approx(0.05 * 0.5 / 0.1)
    assert direct([5, 0], 100, [0, 0], 40).tolist() == [1, 1]
    with pytest.raises(InputError, match="beta=NUMBER"):
        propensities([1], 10, "power")


TRUE = {
    "jpv": {"a": 0.7, "b": 2.5},
    "power": {"beta": 3.0, "gamma": 0.35},
    "richards": {"c": 0.05, "d": 0.95, "e": 1.0, "f": 20.0, "g": 12.0, "h": 1.5},
}


@pytest.mark.parametrize("model", TRUE)
def test_fitting_finds_the_curve_again(model):
    counts = np.unique(np.geomspace(1, 9000, 60).astype(int))
    truth = propensities(counts, 10_000, model, TRUE[model])
    found = fit(counts, 10_000, truth, model)
    again = propensities(counts, 10_000, model, found)
    assert 1 / again == pytest.approx(1 / truth, rel=1e-3)
    if model != "richards":  # its parameters are not unique, its curve is
        assert found == pytest.approx(TRUE[model], rel=1e-3)


def test_fitting_with_noise_beats_the_defaults():
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 2000, 300)
    truth = propensities(counts, 5000, "jpv", {"a": 0.9, "b": 4.0})
    noisy = np.clip(truth * rng.lognormal(0, 0.1, 300), 0.01, 1)
    found = propensities(counts, 5000, "jpv", fit(counts, 5000, noisy, "jpv"))

    def error(p):
        return float(np.sum((1 / p - 1 / truth) ** 2))

    assert error(found) < 0.1 * error(propensities(counts, 5000, "jpv"))


def test_fitting_needs_enough_labels():
    with pytest.raises(InputError, match="at least 6 labels"):
        fit([1, 2], 10, [0.1, 0.2], "richards")
    with pytest.raises(InputError, match="no parameters to fit"):
        fit([1, 2], 10, [0.1, 0.2], "none")


def test_direct_and_fitted_propensities_in_evaluate():
    train = {str(i): (["often"] if i < 40 else []) + (["seldom"] if i < 5 else []) for i in range(100)}
    unbiased = {str(i): (["often"] if i < 20 else []) + (["seldom"] if i < 10 else []) for i in range(50)}
    truth = {"1": ["often", "seldom"]}
    scores = evaluate(truth, truth, [2], train=train, unbiased=unbiased, propensity="direct", bootstrap=0)
    assert scores["scores"]["all"]["PSP@2"] == pytest.approx((1 / (0.4 / 0.4) + 1 / (0.05 / 0.2)) / 2)
    fitted = evaluate(truth, truth, [2], train=train, unbiased=unbiased, propensity="power", bootstrap=0)
    assert fitted["scores"]["all"]["PSP@2"] == pytest.approx((1 + 4) / 2, rel=1e-3)
    assert fitted["provenance"]["propensity"]["fitted"] is True
    none = evaluate(truth, truth, [2], propensity="none", bootstrap=0)["scores"]["all"]
    assert none["PSP@2"] == none["B@2"] == 1


def test_a_propensity_of_zero_is_reported():
    parameters = {"beta": 1.0, "gamma": 1.0}
    result = evaluate(
        {"1": ["new"]}, {"1": ["x"]}, [1], train={"1": ["old"]}, propensity="power", propensity_parameters=parameters
    )
    assert any("'power'" in note and "--prior" in note for note in result["provenance"]["warnings"])


def test_laziness_of_a_data_set():
    references = [
        {"id": "1", "keyphrases": ["a"], "counts": [9]},
        {"id": "2", "keyphrases": list("abcdef"), "counts": [1] * 6},
        {"id": "3", "keyphrases": ["a", "b"], "counts": [1, 1]},
    ]
    data = evaluate(references, {"1": ["a"]}, [1])["provenance"]["data"]["references"]
    assert data["mu"] == 3 and data["cv"] == pytest.approx(np.std([1, 6, 2]) / 3)
    assert data["quadrants"] == {"hot_diverse": 1, "hot_narrow": 1, "rare_diverse": 0, "rare_narrow": 1}
    assert laziness([])["cv"] is None and laziness([0])["cv"] is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_start_leaves_a_richards_fit_in_a_bad_valley(seed):
    """The fit's error is no larger than that of the curve the data came from, with and without noise."""
    rng = np.random.default_rng(seed)
    counts = np.unique(np.concatenate([rng.integers(1, 50, 60), (20_000 * rng.beta(0.3, 6, 120)).astype(int) + 1]))
    truth = {"c": rng.uniform(0, 0.05), "d": rng.uniform(0.6, 1), "e": 1.0, "f": rng.uniform(2, 60)}
    truth |= {"g": rng.uniform(5, 400), "h": rng.uniform(0.5, 3)}
    curve = propensities(counts, 20_000, "richards", truth)
    for noise in (0.0, 0.1):
        target = np.clip(curve * np.exp(noise * rng.normal(size=len(counts))), 1e-3, 1)
        found = propensities(counts, 20_000, "richards", fit(counts, 20_000, target, "richards"))
        assert np.mean((1 / found - 1 / target) ** 2) <= np.mean((1 / curve - 1 / target) ** 2) + 1e-9
