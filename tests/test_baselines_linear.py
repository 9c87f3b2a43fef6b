"""Linear baselines against outside oracles: liblinear, napkinXC, and derivatives by finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit

from pusl.baselines.label_matrix import TrainingData
from pusl.baselines.logistic import LogisticConfig, fit_logistic, loss_slopes
from pusl.baselines.plt import Plt, PltConfig
from pusl.baselines.sampled import BIAS, RareLabelSettings, solve_labels
from pusl.baselines.svm import Svm, SvmConfig, fit_platt
from pusl.data.hyperballs import hide, make_hyperballs, uniform_in_ball
from pusl_eval.propensity import propensities

pytestmark = pytest.mark.slow  # solvers run to their end


def texts_and_labels(count: int, seed: int) -> TrainingData:
    """Texts of random words; label l belongs to texts that hold word l, with some noise."""
    draw = np.random.default_rng(seed)
    words = draw.zipf(1.5, (count, 8)) % 60
    matrix = np.zeros((count, 30), np.float32)
    for row, found in enumerate(words):
        matrix[row, found[found < 30]] = 1
    matrix *= draw.random(matrix.shape) < 0.9
    matrix = matrix[:, matrix.sum(0) > 0]
    return TrainingData(
        [" ".join(f"w{word}" for word in row) for row in words],
        [f"l{number}" for number in range(matrix.shape[1])],
        sparse.csr_matrix(matrix),
    )


def test_working_sets_reach_the_objective_of_the_whole_problem() -> None:
    """With the bias fixed, the working-set solution must be as good on ALL rows as a long run over all rows."""
    data = texts_and_labels(600, 0)
    svm = Svm(SvmConfig(jobs=1, calibrate=False))
    svm.fit(data)
    features = svm.tfidf.transform(data.texts).astype(np.float64)
    matrix = data.matrix.tocsc()

    def objective(weights: np.ndarray) -> np.ndarray:
        margins = features @ weights + BIAS
        sign = np.where(matrix.toarray() > 0, 1, -1)
        return 0.5 * (weights**2).sum(0) + (np.maximum(0, 1 - sign * margins) ** 2).sum(0)

    small = solve_labels(features, matrix, RareLabelSettings(1.0, 0.0, hard=20, rounds=8, iterations=300)).toarray()
    best = np.zeros_like(small)
    transposed, sign = features.T.tocsr(), np.where(matrix.toarray() > 0, 1, -1)
    step = 1 / (1 + 2 * 600)
    for _ in range(3000):
        short = np.maximum(0, 1 - sign * (features @ best + BIAS))
        best -= step * (best - transposed @ (2 * sign * short))
    assert (objective(small) <= 1.01 * objective(best) + 1e-6).all()


def test_rare_label_solver_ranks_like_liblinear() -> None:
    data = texts_and_labels(800, 1)
    test = texts_and_labels(200, 2)
    found = []
    for exact_from in (0, 10_000):
        svm = Svm(SvmConfig(jobs=1, exact_from=exact_from))
        svm.fit(data)
        numbers, _ = svm.rank(test.texts, 3)
        found.append([set(row) for row in numbers.tolist()])
    same = np.mean([len(a & b) / 3 for a, b in zip(*found, strict=True)])
    assert same > 0.9


def test_liblinear_weights_are_those_of_scikit_learn() -> None:
    from sklearn.svm import LinearSVC

    data = texts_and_labels(300, 3)
    svm = Svm(SvmConfig(jobs=1, exact_from=0, prune=0.0, calibrate=False, tolerance=1e-5))
    svm.fit(data)
    features = svm.tfidf.transform(data.texts).astype(np.float64)
    label = data.matrix[:, [4]].toarray().ravel()
    machine = LinearSVC(C=1.0, dual=False, tol=1e-5).fit(features, label)
    assert np.allclose(svm.weights[:, [4]].toarray().ravel(), machine.coef_.ravel(), atol=1e-3)
    assert svm.bias[4] == pytest.approx(float(machine.intercept_[0]), abs=1e-3)


def test_pruning_makes_weights_sparse() -> None:
    data = texts_and_labels(300, 4)
    full, pruned = (Svm(SvmConfig(jobs=1, prune=prune, calibrate=False)) for prune in (0.0, 0.1))
    full.fit(data)
    pruned.fit(data)
    assert pruned.weights.nnz < full.weights.nnz
    assert np.abs(pruned.weights.data).min() >= 0.1


def test_platt_finds_the_sigmoid_that_made_the_labels() -> None:
    draw = np.random.default_rng(0)
    margins = draw.normal(size=20_000)
    targets = (draw.random(20_000) < expit(3 * margins - 1)).astype(float)
    a, b = fit_platt(margins, targets)
    assert a == pytest.approx(3, abs=0.15) and b == pytest.approx(-1, abs=0.1)


def test_plt_gives_what_napkinxc_gives(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from napkinxc.models import PLT

    data = texts_and_labels(300, 5)
    ours = Plt(PltConfig(jobs=1, seed=7))
    ours.fit(data)
    numbers, scores = ours.rank(data.texts[:40], 5)
    features = ours.tfidf.transform(data.texts)
    theirs = PLT(str(tmp_path / "plt"), seed=7, threads=1)
    theirs.fit(features, [row.indices.tolist() for row in data.matrix])
    # napkinXC's solver shuffles: two runs with one seed differ in the third decimal.
    for row, pairs in enumerate(theirs.predict_proba(features[:40], top_k=5)):
        mine = dict(zip(numbers[row].tolist(), scores[row].tolist(), strict=True))
        shared = [number for number, _ in pairs if number in mine]
        assert len(shared) >= 4
        assert [mine[number] for number in shared] == pytest.approx(
            [dict(pairs)[number] for number in shared], abs=0.03
        )


def test_ps_plt_is_the_exact_weighted_top_k() -> None:
    """Against the ranking of ALL labels by probability / propensity."""
    data = texts_and_labels(300, 6)
    weighted = Plt(PltConfig(jobs=1, propensity="jpv"))
    weighted.fit(data)
    plain = Plt(PltConfig(jobs=1))
    plain.tfidf, plain.labels, plain._tree = weighted.tfidf, weighted.labels, weighted._tree
    plain.propensities = np.ones(len(data.labels))
    everything, chances = plain.rank(data.texts[:30], len(data.labels))
    p = propensities(data.frequencies, len(data.texts), "jpv")
    numbers, _ = weighted.rank(data.texts[:30], 2)
    for row in range(30):
        gains = chances[row] / p[everything[row]]
        best = sorted(gains, reverse=True)[:2]
        mine = [gains[everything[row].tolist().index(number)] for number in numbers[row]]
        assert mine == pytest.approx(best)


@pytest.mark.parametrize("loss", ["plain", "unbiased", "pejl"])
def test_slopes_are_the_derivatives_of_the_loss(loss: str) -> None:
    draw = np.random.default_rng(0)
    logits, hidden = draw.normal(size=(5, 3)), draw.normal(size=3)
    observed = (draw.random((5, 3)) < 0.4).astype(float)

    def value(logits: np.ndarray, hidden: np.ndarray) -> float:
        f, p = expit(logits), expit(hidden)
        if loss == "pejl":
            return float(-(observed * np.log(p * f) + (1 - observed) * np.log(1 - p * f)).sum())
        share = observed / p if loss == "unbiased" else observed
        return float(-(share * np.log(f) + (1 - share) * np.log(1 - f)).sum())

    by_logits, by_hidden = loss_slopes(loss, logits, observed, expit(hidden))
    for place in np.ndindex(5, 3):
        nudge = np.zeros((5, 3))
        nudge[place] = 1e-5
        slope = (value(logits + nudge, hidden) - value(logits - nudge, hidden)) / 2e-5
        assert by_logits[place] == pytest.approx(slope, abs=1e-5)
    if loss == "pejl":
        assert by_hidden is not None
        for place in range(3):
            nudge = np.zeros(3)
            nudge[place] = 1e-5
            slope = (value(logits, hidden + nudge) - value(logits, hidden - nudge)) / 2e-5
            assert by_hidden[place] == pytest.approx(slope, abs=1e-4)


def test_unbiased_loss_finds_the_complete_share() -> None:
    """Without features the model can only learn each label's share; despite the gaps it must be the true one."""
    draw = np.random.default_rng(0)
    complete = (draw.random((8000, 3)) < np.array([0.6, 0.3, 0.1])).astype(np.float32)
    p = np.array([0.9, 0.5, 0.3])
    observed = sparse.csr_matrix(hide(complete, p, draw))
    nothing = sparse.csr_matrix((8000, 1), dtype=np.float32)
    config = LogisticConfig(loss="unbiased", epochs=20, batch=200)
    assert expit(fit_logistic(nothing, observed, p, config).bias) == pytest.approx(complete.mean(0), abs=0.05)
    plain = LogisticConfig(loss="plain", epochs=20, batch=200)
    assert expit(fit_logistic(nothing, observed, p, plain).bias) == pytest.approx(complete.mean(0) * p, abs=0.05)


def test_hyperballs_have_the_frequencies_asked_for() -> None:
    balls = make_hyperballs(20, 5, seed=1, head=0.3, tail=0.01)
    points = uniform_in_ball(20_000, 5, np.random.default_rng(9))
    assert np.linalg.norm(points, axis=1).max() <= 1
    shares = balls.labels(points).mean(0)
    assert np.allclose(shares, np.geomspace(0.3, 0.01, 20), rtol=0.25)
    inside = np.linalg.norm(points[:50, None] - balls.centers[None], axis=2) <= balls.radii
    assert (balls.labels(points[:50]) == inside).all()
    kept = hide(balls.labels(points), np.full(20, 0.25), np.random.default_rng(2))
    assert kept.sum() / balls.labels(points).sum() == pytest.approx(0.25, abs=0.01)
