"""Propensities learned with the model (PEJL): found from an uninformed start where the data show them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit, logit

from pusl.baselines.label_matrix import TrainingData
from pusl.baselines.label_propensities import ancestor_propensities, ancestors, label_propensities
from pusl.baselines.logistic import LogisticConfig, fit_logistic, loss_value
from pusl.baselines.model import load_baseline
from pusl.baselines.pejl import fit_law, joint_loss, learn_propensities, pull
from pusl.cli import main
from pusl.data.hyperballs import hide, make_hyperballs, uniform_in_ball
from pusl_eval.files import InputError, write_rows
from pusl_eval.propensity import propensities

LAWS = {"jpv": ("jpv", {}), "power law": ("power", {"beta": 1.0, "gamma": 0.5})}


def balls(law: str, points: int = 8000, labels: int = 24) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates and squared length, labels with gaps, and the true propensities."""
    made = make_hyperballs(labels, 4, seed=3, head=0.3, tail=0.01)
    draw = np.random.default_rng(1)
    found = uniform_in_ball(points, 4, draw)
    complete = made.labels(found)
    model, parameters = LAWS[law]
    p = propensities(complete.sum(axis=0), points, model, parameters)
    features = np.column_stack([found, (found**2).sum(1)])
    return (features - features.mean(0)) / features.std(0), hide(complete, p, draw), p


@pytest.mark.parametrize("law", LAWS)
def test_the_joint_loss_finds_the_propensities_under_both_laws(law: str) -> None:
    features, observed, p = balls(law)
    learned = learn_propensities(features, sparse.csr_matrix(observed), labels=24)
    assert np.corrcoef(learned.p, p)[0, 1] > 0.95
    assert np.sqrt(np.mean((learned.p - p) ** 2)) < 0.06
    assert learned.loss < 0.98 * learned.loss_complete  # the data show it, and the summary says so
    assert "do not read" not in learned.summary()


def test_the_law_helps_the_labels_with_few_items() -> None:
    """Under the power law the rarest labels have some ten observed items: too few for a propensity of their own."""
    features, observed, p = balls("power law")
    learned = learn_propensities(features, sparse.csr_matrix(observed), labels=24)
    assert np.abs(learned.p - p)[learned.measured].max() < np.abs(learned.own - p[learned.measured]).max()


def test_labels_that_no_feature_explains_say_nothing_about_propensities() -> None:
    draw = np.random.default_rng(0)
    observed = (draw.random((2000, 6)) < 0.1).astype(np.float32)
    learned = learn_propensities(draw.normal(size=(2000, 3)), sparse.csr_matrix(observed))
    assert "do not read the propensities as facts" in learned.summary()


@pytest.mark.parametrize("items", [1, 2, 12])
def test_few_items_are_no_trouble(items: int) -> None:
    observed = sparse.csr_matrix(np.eye(items, 2, dtype=np.float32) + np.eye(items, 2, 1, dtype=np.float32))
    learned = learn_propensities(np.ones((items, 2)), observed)
    assert ((learned.p > 0) & (learned.p < 1)).all()
    assert "do not read" in learned.summary()


def test_the_alternating_form_cannot_find_them_here() -> None:
    """The mean of ỹ/f is p only if f is nowhere 0. In balls it is p times the label's share."""
    features, observed, p = balls("power law", 4000, 8)
    learned = learn_propensities(features, sparse.csr_matrix(observed), "alternating", labels=8)
    assert (learned.own < 0.7 * p[learned.measured]).all()


def test_joint_slopes_are_the_derivatives() -> None:
    draw = np.random.default_rng(0)
    observed, logits, hidden = (draw.random(7) < 0.4).astype(float), draw.normal(size=7), 0.3
    _, by_logits, by_hidden = joint_loss(observed, logits, float(expit(hidden)))
    step = 1e-6

    def value(logits: np.ndarray, hidden: float) -> float:
        return joint_loss(observed, logits, float(expit(hidden)))[0]

    for place in range(7):
        nudge = step * np.eye(7)[place]
        slope = (value(logits + nudge, hidden) - value(logits - nudge, hidden)) / (2 * step)
        assert by_logits[place] == pytest.approx(slope, abs=1e-7)
    slope = (value(logits, hidden + step) - value(logits, hidden - step)) / (2 * step)
    assert by_hidden == pytest.approx(slope, abs=1e-7)


def test_a_label_without_information_takes_the_law() -> None:
    shares = np.exp(np.linspace(-1, -6, 20))
    truth = 2 + 0.5 * np.log(shares)
    weight = np.full(20, 100.0)
    weight[-1] = 0.0
    noisy = truth + np.random.default_rng(0).normal(0, 0.1, 20)
    noisy[-1] = 5.0
    law = fit_law(noisy, weight, shares)
    assert law.slope == pytest.approx(0.5, abs=0.05)
    assert pull(noisy, weight, shares, law)[-1] == pytest.approx(truth[-1], abs=0.2)


def data(lists: list[list[int]], labels: list[str]) -> TrainingData:
    matrix = sparse.csr_matrix(np.array(lists, np.float32))
    return TrainingData([f"text {number}" for number in range(len(lists))], labels, matrix)


def test_ancestors_follow_parents_upward_and_survive_a_circle(tmp_path) -> None:
    path = tmp_path / "tree.tsv"
    path.write_text("cat\tanimal\nanimal\tthing\nthing\tcat\n\nAtom\tthing\n")
    assert ancestors(path, ["Animal", "cat", "thing", "atom"]) == [{1, 2}, {0, 2}, {0, 1}, {0, 1, 2}]
    path.write_text("cat animal\n")
    with pytest.raises(InputError, match=r"tree\.tsv:1: expected"):
        ancestors(path, ["cat"])
    path.write_text("x\ty\n")
    with pytest.raises(InputError, match="no training label has an ancestor"):
        ancestors(path, ["cat"])


def test_hierarchy_finds_what_was_hidden() -> None:
    draw = np.random.default_rng(0)
    children = (draw.random((20_000, 6)) < 0.2).astype(np.float32)
    parents = np.column_stack([children[:, 2 * i : 2 * i + 2].max(axis=1) for i in range(3)])
    p = np.array([0.8, 0.5, 0.2])
    matrix = sparse.csr_matrix(np.hstack([hide(parents, p, draw), hide(children, np.full(6, 0.6), draw)]))
    above = [set(), set(), set(), {0}, {0}, {1}, {1}, {2}, {2}]
    found, items = ancestor_propensities(matrix, above)
    assert found[:3] == pytest.approx(p, abs=0.02)
    assert (items[3:] == 0).all()


def test_propensities_from_an_unbiased_file(tmp_path) -> None:
    lists = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    train = data(lists, ["a", "b", "c", "d"])
    unbiased = tmp_path / "complete.jsonl"
    unbiased.write_text('{"id": "1", "keyphrases": ["A", "b", "c"]}\n{"id": "2", "keyphrases": ["a", "b", "d"]}\n')
    found = label_propensities(train, "direct", {}, str(unbiased))
    assert found.tolist() == [0.5, 0.5, 0.5, 0.5]
    fitted = label_propensities(train, "power", {}, str(unbiased))
    assert fitted == pytest.approx(np.full(4, 0.5), abs=0.05)
    given = label_propensities(train, "power", {"beta": 1.0, "gamma": 1.0})
    assert given.tolist() == [0.5, 0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    "model, options, says",
    [
        ("direct", {}, "needs --unbiased"),
        ("hierarchy", {}, "needs --hierarchy"),
        ("jpv", {"hierarchy": "x"}, "--hierarchy is for"),
        ("none", {"unbiased": "x"}, "--unbiased is for"),
        ("power", {}, "beta=NUMBER"),
    ],
)
def test_choices_that_do_not_fit_together(model: str, options: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        label_propensities(data([[1]], ["a"]), model, {}, **options)


@pytest.mark.parametrize("loss", ["plain", "unbiased", "pejl"])
def test_early_stopping_keeps_the_best_epoch(loss: str) -> None:
    """Labels by coin: every epoch makes the weights worse, so the first epoch has to be kept."""
    draw = np.random.default_rng(0)
    features = sparse.random(400, 300, 0.1, "csr", random_state=0, dtype=np.float32)
    observed = sparse.csr_matrix((draw.random((400, 3)) < 0.3).astype(np.float32))
    p = np.full(3, 0.6)
    config = LogisticConfig(loss=loss, epochs=12, batch=50)
    longest = fit_logistic(features, observed, p, config)
    stopped = fit_logistic(features, observed, p, LogisticConfig(loss=loss, epochs=12, batch=50, early_stopping=True))
    assert np.abs(stopped.weights).sum() < 0.7 * np.abs(longest.weights).sum()
    logits = logit(np.full((400, 3), 0.3))
    assert np.isfinite(loss_value(loss, logits, observed.toarray(), p))


@pytest.fixture
def shop(tmp_path):
    """Texts, labels with a parent, and files that say more about them."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(90):
        kinds = draw.choice(["cat", "dog", "oak", "elm"], 2, replace=False)
        parents = ["animal" if kind in ("cat", "dog") else "tree" for kind in kinds if draw.random() < 0.7]
        rows.append({"id": str(number), "text": " ".join(kinds), "keyphrases": [*kinds, *parents]})
    write_rows(tmp_path / "train.jsonl", rows)
    write_rows(tmp_path / "complete.jsonl", rows[:40])
    (tmp_path / "tree.tsv").write_text("cat\tanimal\ndog\tanimal\noak\ttree\nelm\ttree\n")
    return tmp_path


@pytest.mark.parametrize(
    "flags",
    [
        "--loss unbiased --propensity power --propensity-parameters beta=2,gamma=0.4",
        "--loss unbiased --propensity direct --unbiased complete.jsonl",
        "--loss unbiased --propensity jpv --unbiased complete.jsonl --early-stopping",
        "--loss unbiased --propensity hierarchy --hierarchy tree.tsv",
        "--loss pejl",
        "--loss pejl-alternating --pejl-labels 3",
    ],
)
def test_every_source_of_propensities_by_command(shop, monkeypatch, flags: str, capsys) -> None:
    monkeypatch.chdir(shop)
    files = ["--train", "train.jsonl", "--save", "model", "--input", "train.jsonl", "--output", "out.jsonl"]
    files += ["-k", "3", "--jobs", "1", "--epochs", "2"]
    assert main(["baseline", "logistic", *files, *flags.split()]) == 0
    said = capsys.readouterr().err
    model = load_baseline("model", "logistic")
    p = dict(zip(model.labels, model.propensities.tolist(), strict=True))
    assert all(0 < value <= 1 for value in p.values())
    if "hierarchy" in flags:
        assert p["animal"] == pytest.approx(0.7, abs=0.15)
    assert ("propensities learned from" in said) == ("pejl" in flags)


@pytest.mark.parametrize(
    "flags, says",
    [
        ("--unbiased complete.jsonl", "--unbiased gives propensities to --loss unbiased"),
        ("--loss pejl --hierarchy tree.tsv", "--hierarchy gives propensities"),
        ("--propensity power", "--propensity gives propensities to --loss unbiased; --loss is 'plain'"),
        ("--loss pejl --propensity-parameters a=1", "--propensity-parameters gives propensities"),
        ("--loss unbiased --propensity direct", "needs --unbiased FILE"),
        ("--loss unbiased --propensity power", "beta=NUMBER"),
        ("--loss unbiased --propensity direct --unbiased nowhere.jsonl", "nowhere.jsonl"),
        ("--loss unbiased --propensity hierarchy --hierarchy nowhere.tsv", "nowhere.tsv"),
    ],
)
def test_wrong_choices_are_one_line(shop, monkeypatch, flags: str, says: str, capsys) -> None:
    monkeypatch.chdir(shop)
    assert main(["baseline", "logistic", "--train", "train.jsonl", "--save", "model", *flags.split()]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") <= 2
    assert not (shop / "model").exists()
