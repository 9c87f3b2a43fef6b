"""Our numbers against napkinXC's and scikit-learn's."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

from pusl_eval.evaluation import evaluate
from pusl_eval.propensity import propensities

napkinxc = pytest.importorskip("napkinxc.metrics")
sklearn_metrics = pytest.importorskip("sklearn.metrics")
from sklearn.preprocessing import MultiLabelBinarizer  # noqa: E402

LABELS = [f"label {i}" for i in range(40)]


def case(seed, items=150):
    """Every item has references, every prediction is different, lists may be short: what napkinXC can score."""
    rng = random.Random(seed)
    references = [rng.sample(LABELS, rng.randint(1, 8)) for _ in range(items)]
    predictions = [rng.sample(LABELS, rng.randint(0, 12)) for _ in range(items)]
    train = [rng.sample(LABELS[:30], rng.randint(1, 8)) for _ in range(300)]
    return references, predictions, train


def as_dict(lists):
    return {str(i): phrases for i, phrases in enumerate(lists)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [1, 3, 10])
def test_napkinxc(seed, k):
    references, predictions, train = case(seed)
    counts = {label: sum(label in item for item in train) for label in LABELS}
    inverse = dict(zip(LABELS, 1 / propensities([counts[label] for label in LABELS], len(train)), strict=True))
    scores = evaluate(as_dict(references), as_dict(predictions), [k], train=as_dict(train), bootstrap=0)["scores"][
        "all"
    ]
    expected = {
        f"B@{k}": napkinxc.precision_at_k(references, predictions, k=k),
        f"R@{k}": napkinxc.recall_at_k(references, predictions, k=k),
        f"nDCG@{k}": napkinxc.ndcg_at_k(references, predictions, k=k),
        f"Cov@{k}": napkinxc.coverage_at_k(references, predictions, k=k),
        f"Success@{k}": napkinxc.abandonment_at_k(references, predictions, k=k),  # their name for our Success
        f"PSP@{k}": napkinxc.psprecision_at_k(references, predictions, inverse, k=k, normalize=False),
        f"PSP@{k}_norm": napkinxc.psprecision_at_k(references, predictions, inverse, k=k, normalize=True),
        f"PSR@{k}": napkinxc.psrecall_at_k(references, predictions, inverse, k=k, normalize=False),
    }
    for name, values in expected.items():
        assert scores[name] == pytest.approx(values[-1], abs=1e-9), name


def test_napkinxc_propensities():
    """The jpv model is the one the XMC literature computes from a label matrix."""
    _, _, train = case(0)
    ids = {label: number for number, label in enumerate(LABELS)}
    rows = [[ids[label] for label in item] for item in train]
    counts = np.bincount([label for row in rows for label in row], minlength=len(LABELS))
    theirs = napkinxc.Jain_et_al_inverse_propensity(rows, A=0.55, B=1.5)
    ours = 1 / propensities(counts, len(train))
    seen = counts > 0
    assert ours[: len(theirs)][seen[: len(theirs)]] == pytest.approx(np.asarray(theirs)[seen[: len(theirs)]])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("k", [1, 4, 12])
def test_scikit_learn_macro_scores(seed, k):
    references, predictions, _ = case(seed)
    used = sorted({label for item in references for label in item})
    binarizer = MultiLabelBinarizer(classes=used)
    truth = binarizer.fit_transform(references)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # predictions outside the references' labels are no columns there
        guess = binarizer.transform([item[:k] for item in predictions])
    scores = evaluate(as_dict(references), as_dict(predictions), [k], bootstrap=0)["scores"]["all"]
    precision, recall, f1, _ = sklearn_metrics.precision_recall_fscore_support(
        truth, guess, average="macro", zero_division=0
    )
    assert scores[f"MacroP@{k}"] == pytest.approx(precision)
    assert scores[f"MacroR@{k}"] == pytest.approx(recall)
    assert scores[f"MacroF1@{k}"] == pytest.approx(f1)
    beta = sklearn_metrics.fbeta_score(truth, guess, beta=2, average="macro", zero_division=0)
    assert scores[f"MacroF_β@{k}"] == pytest.approx(beta)
    whole = MultiLabelBinarizer(classes=LABELS)
    truth, guess = whole.fit_transform(references), whole.transform([item[:k] for item in predictions])
    f1 = sklearn_metrics.f1_score(truth, guess, average="macro", zero_division=0)
    scores = evaluate(as_dict(references), as_dict(predictions), [k], label_space=LABELS, bootstrap=0)["scores"]["all"]
    assert scores[f"MacroF1@{k}"] == pytest.approx(f1)
    precision, recall, f1, _ = sklearn_metrics.precision_recall_fscore_support(truth, guess, average="micro")
    assert scores[f"MicroP@{k}"] == pytest.approx(precision)
    assert scores[f"MicroR@{k}"] == pytest.approx(recall)
    assert scores[f"MicroF1@{k}"] == pytest.approx(f1)
