"""FastXML's split against every possible split of tiny data, and its trees as a whole."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import sparse

from pusl.baselines.fastxml import (
    FastXmlConfig,
    Pairs,
    grow_tree,
    ndcg_split,
    ndcg_weights,
    separate,
    split_values,
    with_bias,
)


def naive_value(labels: np.ndarray, right: np.ndarray) -> float:
    """Sum of nDCG by the definition, with the best single ranking per side found by trying all orders."""
    total = 0.0
    for side in (right, ~right):
        rows = labels[side]
        if not len(rows):
            continue
        best = 0.0
        for order in itertools.permutations(range(labels.shape[1])):
            value = 0.0
            for row in rows:
                count = int(row.sum())
                gain = sum(1 / math.log2(2 + place) for place, label in enumerate(order) if row[label])
                value += gain / sum(1 / math.log2(2 + place) for place in range(count)) if count else 0.0
            best = max(best, value)
        total += best
    return total


def tiny(seed: int, rows: int = 6, labels: int = 4) -> np.ndarray:
    draw = np.random.default_rng(seed)
    found = (draw.random((rows, labels)) < 0.45).astype(float)
    found[found.sum(1) == 0, 0] = 1
    return found


def all_sides(rows: int) -> list[np.ndarray]:
    return [np.array(bits, bool) for bits in itertools.product((False, True), repeat=rows)]


@pytest.mark.parametrize("seed", range(3))
def test_split_value_is_ndcg_under_the_best_rankings(seed: int) -> None:
    labels = tiny(seed, rows=5)
    node = np.zeros(5, int)
    pairs = Pairs.of(ndcg_weights(sparse.csr_matrix(labels)), node)
    for right in all_sides(5)[1:-1]:
        assert split_values(pairs, right, node)[0] == pytest.approx(naive_value(labels, right))


@pytest.mark.parametrize("seed", range(8))
def test_alternation_against_every_split(seed: int) -> None:
    """From any start it never gets worse, never beats the best split, and some start reaches the best."""
    labels = tiny(seed, rows=8, labels=5)
    node = np.zeros(8, int)
    pairs = Pairs.of(ndcg_weights(sparse.csr_matrix(labels)), node)
    values = {tuple(right): split_values(pairs, right, node)[0] for right in all_sides(8)}
    best = max(values.values())
    reached = []
    for start in all_sides(8)[1:-1]:
        end = ndcg_split(pairs, start)
        assert values[tuple(end)] >= values[tuple(start)] - 1e-9
        reached.append(values[tuple(end)])
    assert max(reached) == pytest.approx(best)
    assert np.mean(reached) > 0.85 * best  # and a random start is already close


def test_each_round_of_the_alternation_climbs() -> None:
    labels = (np.random.default_rng(3).random((200, 40)) < 0.1).astype(float)
    labels[labels.sum(1) == 0, 0] = 1
    node = np.zeros(200, int)
    pairs = Pairs.of(ndcg_weights(sparse.csr_matrix(labels)), node)
    start = np.random.default_rng(4).random(200) < 0.5
    values = [split_values(pairs, ndcg_split(pairs, start, rounds=count), node)[0] for count in range(8)]
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(values))
    assert values[-1] > values[0] + 1


def test_nodes_of_a_level_do_not_disturb_each_other() -> None:
    first, second = tiny(1, rows=8, labels=5), tiny(2, rows=8, labels=5)
    start = np.random.default_rng(0).random(16) < 0.5
    node = np.repeat([0, 1], 8)
    both = Pairs.of(ndcg_weights(sparse.csr_matrix(np.vstack([first, second]))), node)
    together = ndcg_split(both, start)
    for labels, part in ((first, slice(0, 8)), (second, slice(8, 16))):
        alone = Pairs.of(ndcg_weights(sparse.csr_matrix(labels)), np.zeros(8, int))
        assert (ndcg_split(alone, start[part]) == together[part]).all()


def test_separator_is_the_l1_logistic_optimum() -> None:
    """Against the optimality conditions: |slope| <= 1 where w = 0, slope = -sign(w) elsewhere."""
    draw = np.random.default_rng(0)
    words = sparse.csr_matrix((draw.random((150, 30)) < 0.2) * draw.random((150, 30)))
    right = np.asarray(words[:, :3].sum(axis=1)).ravel() > 0.5
    weights = separate(words, right, 4.0, 3000)
    sign = np.where(right, 1.0, -1.0)
    slope = words.T @ (-4.0 * sign / (1 + np.exp(sign * (words @ weights))))
    assert np.abs(slope[weights == 0]).max() <= 1 + 1e-3
    assert np.abs(slope[weights != 0] + np.sign(weights[weights != 0])).max() < 1e-2
    assert 0 < (weights != 0).sum() < 30


def test_tree_routes_training_rows_to_their_own_leaves() -> None:
    draw = np.random.default_rng(0)
    kind = draw.integers(0, 8, 400)
    words = np.zeros((400, 24))
    words[np.arange(400), kind] = 1
    words[np.arange(400), 8 + draw.integers(0, 16, 400)] = 0.5
    labels = sparse.csr_matrix(np.eye(8)[kind])
    features = with_bias(sparse.csr_matrix(words))
    tree = grow_tree(features, labels, FastXmlConfig(leaf_size=20, cost=8.0), seed=1)
    shares = tree.shares[tree.leaves(features)].toarray()
    assert np.allclose(shares.sum(1), 1, atol=1e-5)
    # Every kind is told by one word, so (nearly) pure leaves can be found.
    assert shares[np.arange(400), kind].mean() > 0.8
    assert (tree.left >= 0).sum() == (tree.leaf >= 0).sum() - 1  # a binary tree


def test_trees_are_the_same_for_the_same_seed() -> None:
    labels = sparse.csr_matrix(tiny(5, rows=60, labels=6))
    features = with_bias(sparse.csr_matrix(np.random.default_rng(0).random((60, 10)) * (tiny(6, 60, 10))))
    trees = [grow_tree(features, labels, FastXmlConfig(cost=8.0), seed) for seed in (3, 3, 4)]
    assert (trees[0].leaves(features) == trees[1].leaves(features)).all()
    assert (trees[0].weights != trees[1].weights).nnz == 0
