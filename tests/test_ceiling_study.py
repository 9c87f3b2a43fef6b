"""scripts/studies/ceiling.py: the enumeration agrees with draws, nobody passes the ceiling, the table comes out."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from script_runs import run_here

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "scripts" / "studies" / "ceiling.py"


@pytest.fixture(scope="module")
def study() -> Any:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def test_chances_by_hand(study):
    """Two outcomes: {a} with chance 1/4, {a, b} with 3/4, where a or b is the known one with equal chance."""
    text = study.Text("t", ["a", "b"], np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([0.25, 0.75]))
    assert text.marginals().tolist() == [1.0, 0.75]
    assert text.joint().tolist() == [[0.0, 0.375], [0.375, 0.0]]
    assert study.ceilings([text], 1) == {
        "nothing known": 1.0,
        "one known, not told": 0.75,
        "one known, told": 0.75,
    }


def test_the_enumeration_agrees_with_draws(study):
    texts = study.world(0)[:2]
    items = study.draw(texts, 40_000, seed=0)
    for text in texts:
        mine = [set(item.keyphrases) for item in items if item.text == text.text]
        found = np.array([np.mean([label in given for given in mine]) for label in text.labels])
        assert found == pytest.approx(text.marginals(), abs=0.015)  # 20,000 draws: a standard error of .0035
        known = np.zeros((len(text.labels), len(text.labels)))
        for given in mine:
            places = [text.labels.index(label) for label in given]
            for c in places:  # each of them is the known one with equal chance
                known[c, [i for i in places if i != c]] += 1 / len(places)
        assert known / len(mine) == pytest.approx(text.joint(), abs=0.01)


def test_no_ranking_passes_the_ceiling_and_what_is_known_helps(study):
    texts, random = study.world(1)[:20], np.random.default_rng(0)
    top = study.ceilings(texts, 5)
    assert top["one known, not told"] < top["one known, told"]
    for _ in range(50):
        ranks = [random.permutation(len(text.labels))[:5] for text in texts]
        given = np.mean([text.marginals()[rank].sum() / 5 for text, rank in zip(texts, ranks, strict=True)])
        assert given <= top["nothing known"]


def test_the_ceiling_of_one_ranking_is_the_best_of_all_rankings(study):
    """All ordered pairs of a small text, k = 1: the first label, or the second where the first is the known one."""
    random = np.random.default_rng(2)
    sets = np.array([[a, b, c, d] for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)][1:], dtype=float)
    for _ in range(20):
        text = study.Text("t", list("abcd"), sets, random.dirichlet(np.full(len(sets), 0.3)))
        joint = text.joint()
        best = max(joint[:, i].sum() + joint[i, j] for i in range(4) for j in range(4) if i != j)
        assert study.ceilings([text], 1)["one known, not told"] == pytest.approx(best)


def test_the_table_and_a_second_call(tmp_path):
    words = ["--out", str(tmp_path), "--seeds", "0", "--items", "300", "--steps", "4"]
    first = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=300)
    second = run_here(SCRIPT, *words)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert "train" not in second.stderr  # the models are there
    rows = [line.strip("| ").split(" | ") for line in first.stdout.splitlines()]
    assert [row[0] for row in rows[2:]] == ["ceiling", "One2One", "PUSL", "PUSL, restarts .2"]
    assert rows[3][3] == "cannot be told"
    assert float(rows[2][1]) > float(rows[4][1].split()[0]) >= 0  # four steps are far from the ceiling
