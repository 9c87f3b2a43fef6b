"""Precision against coverage: the balance a user names, and COV-PLT's search of the tree."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_baselines_linear import texts_and_labels

from pusl import balance
from pusl.baselines.plt import Plt, PltConfig
from pusl.baselines.tree_coverage import TreeCoverage
from pusl.cli import main
from pusl_eval.files import InputError, write_rows


def candidates(items: int = 60, labels: int = 30) -> balance.Candidates:
    draw = np.random.default_rng(0)
    weight = 1 / np.arange(1, labels + 1)
    rows = []
    for _ in range(items):
        names = draw.choice(labels, 10, replace=False, p=weight / weight.sum())
        rows.append(([f"l{name}" for name in names], np.sort(draw.random(10))[::-1]))
    return balance.gather(rows)


def test_a_least_precision_is_kept_and_no_more() -> None:
    found = candidates()
    free, bound = balance.expected(found, 2, 0.0)[0], balance.expected(found, 2, 1e6)[0]
    wanted = (free + bound) / 2
    beta = balance.least_precision(found, 2, wanted)
    precision, coverage = balance.expected(found, 2, beta)
    assert precision >= wanted > free
    assert coverage > balance.expected(found, 2, 1e6)[1]
    assert balance.expected(found, 2, 0.9 * beta)[0] < wanted + 0.02  # a smaller beta gives it up
    assert balance.least_precision(found, 2, free / 2) == 0
    with pytest.raises(InputError, match=r"promise at most 0\.\d+ at k = 2"):
        balance.least_precision(found, 2, 1.0)


def test_more_weight_on_precision_gives_more_of_it() -> None:
    found = candidates()
    values = [balance.expected(found, 2, balance.weighted(found, 2, weight)) for weight in (0.0, 0.5, 0.95)]
    assert values[0][0] < values[1][0] < values[2][0]
    assert values[0][1] > values[2][1]


def test_harmonic_is_the_best_of_the_tried() -> None:
    found = candidates()

    def mean(beta: float) -> float:
        p, c = balance.expected(found, 2, beta)
        return 2 * p * c / (p + c)

    assert mean(balance.harmonic(found, 2)) == max(mean(beta) for beta in balance.BETAS)


def test_rerank_takes_a_balance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(1)
    rows = []
    for number in range(30):
        names, scores = draw.permutation(9), np.sort(draw.random(9))[::-1].tolist()
        rows.append({"id": f"i{number}", "keyphrases": [f"l{name}" for name in names], "scores": scores})
    write_rows(tmp_path / "p.jsonl", rows)
    base = ["rerank", "--predictions", str(tmp_path / "p.jsonl"), "--objective", "coverage", "-k", "2", "--output"]

    def precision(name: str, *flags: str) -> float:
        assert main([*base, str(tmp_path / name), *flags]) == 0
        return float(np.mean([json.loads(line)["scores"] for line in (tmp_path / name).read_text().splitlines()]))

    assert precision("a.jsonl", "--min-precision", "0.8") >= 0.8
    assert precision("b.jsonl") < 0.8  # pure coverage
    assert precision("c.jsonl", "--harmonic") > 0
    assert precision("d.jsonl", "--precision-weight", "0.9") >= precision("e.jsonl", "--precision-weight", "0.1")
    assert "rerank: beta" in capsys.readouterr().err
    for flags, says in (
        (["--min-precision", "0.8", "--beta", "1"], "give one of"),
        (["--harmonic", "--state", "s.json"], "fixed --beta"),
        (["--min-precision", "1.5"], "promise at most"),
        (["--precision-weight", "1"], "--precision-weight is 1"),
    ):
        assert main([*base, str(tmp_path / "x.jsonl"), *flags]) == 2
        assert says in capsys.readouterr().err
        assert not (tmp_path / "x.jsonl").exists()


def test_the_search_goes_on_until_no_other_label_can_win() -> None:
    """Against the rule on ALL labels, item by item, with few candidates fetched where few are enough."""
    draw = np.random.default_rng(0)
    chances = np.sort(draw.random((50, 400)) ** 8, axis=1)[:, ::-1]
    names = np.array([draw.permutation(400) for _ in range(50)])
    for beta in (0.0, 0.5):
        rule, f = TreeCoverage(400, beta), np.ones(400)

        def fetch(item: int, count: int) -> list[tuple[int, float]]:
            return list(zip(names[item, :count].tolist(), chances[item, :count].tolist(), strict=True))

        for item in range(50):
            gains = (f[names[item]] + beta) * chances[item]
            best = names[item][np.argsort(-gains, kind="stable")[:3]]
            found, probability = rule.choose(fetch, item, 3)
            assert found.tolist() == best.tolist()
            f[found] *= 1 - probability
        assert rule.fetched < 50 * 400 / 4


def test_cov_plt_continues_over_calls_and_equals_the_rule_on_all_labels() -> None:
    pytest.importorskip("napkinxc")
    data = texts_and_labels(300, 5)
    model = Plt(PltConfig(jobs=1, coverage_beta=0.25))
    model.fit(data)
    first, _ = model.rank(data.texts[:20], 2)
    second, _ = model.rank(data.texts[20:40], 2)
    rule, features = TreeCoverage(len(data.labels), 0.25), model.tfidf.transform(data.texts[:40])
    everything = model._tree.predict_proba(features, top_k=len(data.labels))
    for row, numbers in enumerate([*first, *second]):
        wanted, _ = rule.choose(lambda item, count: everything[item], row, 2)
        assert numbers.tolist() == wanted.tolist()
    for flags, says in (
        ({"coverage_beta": -1.0}, "0 or more"),
        ({"coverage_beta": 1.0, "propensity": "jpv"}, "one of"),
    ):
        with pytest.raises(InputError, match=says):
            Plt(PltConfig(**flags)).fit(data)
