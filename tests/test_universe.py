"""A universe: membership, prefixes, saving, and decoding that stays inside."""

from __future__ import annotations

import itertools
import json
import os

import numpy as np
import pytest
from decoding_models import WORDS, checkpoint, documents, tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from pusl import KeyphraseGenerator
from pusl.decoding.universe import Universe
from pusl.tokenizer import encode_keyphrases, token_ids
from pusl_eval.files import InputError
from pusl_eval.normalize import normalize

PHRASES = [" ".join(pair) for pair in itertools.permutations(WORDS, 2)] + list(WORDS)


def paths(universe: Universe) -> set[tuple[int, ...]]:
    """Every phrase of the tree, by walking it."""
    found, stack = set(), [(0, ())]
    while stack:
        node, prefix = stack.pop()
        if universe.terminal[node]:
            found.add(prefix)
        for child in range(int(universe.first[node]), int(universe.first[node + 1])):
            stack.append((child, (*prefix, int(universe.tokens[child]))))
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join), min_size=1, max_size=30))
def test_the_tree_holds_exactly_the_phrases(phrases):
    universe = Universe.build(phrases, tokenizer())
    rows = encode_keyphrases(tokenizer(), sorted(set(phrases)), token_ids(tokenizer()))
    assert paths(universe) == {tuple(row) for row in rows}
    assert len(universe) == len(set(phrases))
    for row in rows:
        node = np.zeros(1, dtype=np.int64)
        for token in row:
            node = universe.descend(node, np.array([token]))
            assert node[0] > 0
        assert universe.terminal[node[0]]
        assert universe.descend(node, np.array([10**6]))[0] == -1
        assert universe.descend(np.array([-1]), np.array([row[0]]))[0] == -1


def test_membership_is_in_normalized_form():
    universe = Universe.build(["Red Shoe", "boot", "boot", ""], tokenizer())
    assert len(universe) == 2
    assert universe.contains("red  shoe") and universe.contains("BOOT")
    assert not universe.contains("red") and not universe.contains("")


def test_the_index_is_saved_mapped_and_renewed(tmp_path):
    path = tmp_path / "queries.txt"
    path.write_text("red shoe\nboot\n", encoding="utf-8")
    built = Universe.open(path, tokenizer())
    mapped = Universe.open(path, tokenizer())
    assert isinstance(mapped.tokens, np.memmap)
    assert paths(built) == paths(mapped)
    stamp = os.stat(tmp_path / "queries.txt.index" / "meta.json").st_mtime_ns
    Universe.open(path, tokenizer())
    assert os.stat(tmp_path / "queries.txt.index" / "meta.json").st_mtime_ns == stamp  # used again, not made again
    path.write_text("red shoe\nboot\nlamp\n", encoding="utf-8")
    assert len(Universe.open(path, tokenizer())) == 3
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(InputError, match=r"empty.txt: holds no phrases"):
        Universe.open(tmp_path / "empty.txt", tokenizer())
    with pytest.raises(InputError, match="no such file"):
        Universe.open(tmp_path / "none.txt", tokenizer())


@pytest.mark.parametrize("paradigm", ["pusl", "one2one", "one2seq"])
@pytest.mark.parametrize("strategy", ["sequence", "beam"])
def test_closed_gives_only_phrases_of_the_universe(paradigm, strategy):
    universe = Universe.build(PHRASES, tokenizer())
    generator = KeyphraseGenerator(checkpoint(paradigm))
    found = generator.generate(documents(4), 6, vocabulary="closed", universe=universe, strategy=strategy)
    given = [phrase for one in found for phrase in one.keyphrases]
    assert {normalize(phrase) for phrase in given} <= set(PHRASES)
    if paradigm != "one2seq":  # its sequence is its own; the universe only drops from it
        assert len(given) == 24


@pytest.mark.parametrize("strategy", ["sequence", "beam"])
def test_a_used_up_universe_is_said(strategy):
    universe = Universe.build(["red shoe", "boot", "table lamp"], tokenizer())
    generator = KeyphraseGenerator(checkpoint("pusl"), universe=universe)
    for one in generator.generate(documents(3), 6, vocabulary="closed", strategy=strategy):
        assert sorted(one.keyphrases) == ["boot", "red shoe", "table lamp"]
        assert one.exhausted


def test_prefer_moves_phrases_in_without_forbidding_others():
    universe = Universe.build(PHRASES, tokenizer())
    generator = KeyphraseGenerator(checkpoint("pusl"), universe=universe)

    def inside(**options):
        found = generator.generate(documents(4), 5, strategy="beam", **options)
        return sum(universe.contains(phrase) for one in found for phrase in one.keyphrases)

    assert inside() == inside(vocabulary="prefer", bonus=0.0)
    assert inside() < inside(vocabulary="prefer", bonus=20.0)


def test_closed_agrees_with_scoring_every_phrase():
    """The best phrase of a small universe, found by search, is the best of all by brute force."""
    phrases = [*WORDS]
    universe = Universe.build(phrases, tokenizer())
    generator = KeyphraseGenerator(checkpoint("one2one"), universe=universe)
    one = generator.generate(["red shoe with a lamp"], len(phrases), vocabulary="closed", num_beams=40)[0]
    assert sorted(one.keyphrases) == sorted(phrases)
    assert one.scores == sorted(one.scores, reverse=True)


@pytest.mark.parametrize("name", ["tokens", "first", "terminal", "digests", "meta"])
def test_a_damaged_index_is_refused_and_made_again(name, tmp_path):
    source, words = tmp_path / "universe.txt", checkpoint("pusl").tokenizer
    source.write_text("red shoe\nboot\nlamp\n")
    Universe.open(source, words)
    index = tmp_path / "universe.txt.index"
    if name == "meta":
        meta = json.loads((index / "meta.json").read_text())
        (index / "meta.json").write_text(json.dumps({"stamp": meta["stamp"]}))
    else:
        np.save(index / f"{name}.npy", np.load(index / f"{name}.npy")[:1].astype(np.float64))
    with pytest.raises(InputError, match="the universe index is damaged"):
        Universe.load(index)
    assert Universe.open(source, words).contains("Red shoe")
    assert len(Universe.load(index)) == 3
