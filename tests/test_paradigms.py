"""Targets of the four paradigms, allowed sets, and the way back from ids to keyphrases."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pusl.paradigms import get
from pusl.tokenizer import TokenIds, encode_keyphrases, token_ids, train_tokenizer
from pusl_eval.normalize import distinct

IDS = TokenIds(pad=0, eos=1, bok=7, eok=8, sep=9, start=0)
BUILT_IN = ("one2one", "one2seq", "groov", "pusl")
SEQUENCES = [paradigm for paradigm in BUILT_IN if paradigm != "one2one"]
phrases = st.lists(st.lists(st.integers(10, 14), min_size=1, max_size=4), min_size=1, max_size=6, unique_by=tuple)


@pytest.fixture(scope="module")
def tokenizer():
    words = ["boat, rowing", "river / tamar", "townscape: distant", "red shoe", "boot", "a longer line about red boats"]
    return train_tokenizer(words * 20, 320)


def test_distinct_compares_normalized_and_keeps_the_first_spelling():
    assert distinct(["Café", "café", "CAFE\u0301", "x", "", "  "]) == ["Café", "x"]


@pytest.mark.parametrize("paradigm", BUILT_IN)
@pytest.mark.parametrize(
    "words", [["boat, rowing", "river / tamar", "townscape: distant"], ["one"], ["日本", "a|b", "x  y"]]
)
def test_round_trip_of_every_paradigm(tokenizer, paradigm, words):
    tokens = token_ids(tokenizer)
    encoded = encode_keyphrases(tokenizer, words, tokens)
    expected = [" ".join(word.split()) for word in words]
    if paradigm == "one2one":
        rows = [row for row, _ in get(paradigm).sequences(encoded, tokens, 256)]
        assert [get(paradigm).decode(tokenizer, row, tokens) for row in rows] == [[word] for word in expected]
    else:
        target, fitted = get(paradigm).target(encoded, tokens)
        assert fitted == len(words)
        assert get(paradigm).decode(tokenizer, [tokens.start, *target], tokens) == expected


def test_each_keyphrase_is_tokenized_alone(tokenizer):
    tokens = token_ids(tokenizer)
    alone = [encode_keyphrases(tokenizer, [word], tokens)[0] for word in ("red shoe", "boot")]
    target, _ = get("pusl").target(encode_keyphrases(tokenizer, ["red shoe", "boot"], tokens), tokens)
    assert target == [tokens.bok, *alone[0], tokens.eok, tokens.bok, *alone[1], tokens.eok]


def test_marks_written_in_a_keyphrase_are_text(tokenizer):
    tokens = token_ids(tokenizer)
    (ids,) = encode_keyphrases(tokenizer, ["a <eok> b </s> c"], tokens)
    assert not set(ids) & tokens.control


def test_pusl_never_ends_by_itself():
    target, _ = get("pusl").target([[10], [11, 12]], IDS)
    assert IDS.eos not in target and target[-1] == IDS.eok


def test_hand_example_of_allowed_sets():
    # gold: "10 11", "10 12", "10"; teacher forcing in this order
    gold = [[10, 11], [10, 12], [10]]
    assert [set(ids) for ids in get("groov").allowed_sets(gold, IDS)] == [
        {10}, {11, 12, 9}, {9},  # "10" itself is gold, so SEP is right after 10, too
        {10}, {12, 9}, {9},  # "10 11" is completed
        {10}, {1},  # the last one: EOS instead of SEP
    ]  # fmt: skip
    assert [set(ids) for ids in get("pusl").allowed_sets(gold, IDS)] == [
        {7}, {10}, {11, 12, 8}, {8}, {7}, {10}, {12, 8}, {8}, {7}, {10}, {8},
    ]  # fmt: skip


@pytest.mark.parametrize("paradigm", SEQUENCES)
@settings(max_examples=40, deadline=None)
@given(gold=phrases, limit=st.integers(6, 40))
def test_allowed_sets_contain_the_target_and_match_the_definition(paradigm, gold, limit):
    target, fitted = get(paradigm).target(gold, IDS, limit)
    sets = get(paradigm).allowed_sets(gold, IDS, fitted)
    assert len(sets) == len(target) <= limit
    assert all(token in ids for token, ids in zip(target, sets, strict=True))
    # the definition, written the slow way
    remaining, prefix = [tuple(phrase) for phrase in gold], ()
    for token, ids in zip(target, sets, strict=True):
        if paradigm == "pusl" and token == IDS.bok:
            expected = {IDS.bok}
        else:
            expected = {y[len(prefix)] for y in remaining if y[: len(prefix)] == prefix and len(y) > len(prefix)}
            if prefix in remaining:
                close = IDS.eok if paradigm == "pusl" else IDS.sep if len(remaining) > 1 else IDS.eos
                expected.add(close)
        assert set(ids) == expected
        assert len(ids) == len(set(ids))
        if token in (IDS.sep, IDS.eok, IDS.eos):
            remaining.remove(prefix)
            prefix = ()
        elif token != IDS.bok:
            prefix = (*prefix, token)


@pytest.mark.parametrize("paradigm", SEQUENCES)
@settings(max_examples=40, deadline=None)
@given(gold=phrases, limit=st.integers(6, 30))
def test_targets_are_cut_between_keyphrases(paradigm, gold, limit):
    target, fitted = get(paradigm).target(gold, IDS, limit)
    assert len(target) <= limit
    assert get(paradigm).split(target, IDS)[:fitted] == gold[:fitted]
    whole, _ = get(paradigm).target(gold, IDS)
    if fitted < len(gold):
        assert IDS.eos not in target, "a cut target does not teach the model to stop"
        assert target == whole[: len(target)]
    else:
        assert target == whole


def test_split_drops_unclosed_pusl_phrases_and_junk_after_eos():
    assert get("pusl").split([0, 7, 10, 8, 7, 11], IDS) == [[10]]
    assert get("pusl").split([0, 7, 10, 8, 1, 7, 11, 8], IDS) == [[10]]
    assert get("one2seq").split([0, 10, 9, 9, 11, 1, 12], IDS) == [[10], [], [11]]
    assert get("one2seq").split([0, 1, 0, 0], IDS) == []


def test_multi_softmax_of_a_uniform_model_is_what_the_hand_says():
    import torch

    from pusl.training.losses import multi_softmax_loss

    sets = get("groov").allowed_sets([[10, 11], [10, 12]], IDS)  # sizes 1 2 1 1 1 1
    table = torch.tensor([ids + [-1] * (2 - len(ids)) for ids in sets])
    loss = multi_softmax_loss(torch.zeros(6, 16), table)
    assert math.isclose(loss.item(), 6 * math.log(16) - math.log(2), rel_tol=1e-6)


def test_what_the_decoder_reads_first_and_what_closes_a_keyphrase():
    assert get("pusl").prefix(IDS, [[10, 11], [12]]) == [0, 7, 10, 11, 8, 7, 12, 8, 7]
    assert get("pusl").prefix(IDS) == [0, 7] and get("one2seq").prefix(IDS) == get("one2one").prefix(IDS) == [0]
    assert get("pusl").ends(IDS) == [8] and get("one2one").ends(IDS) == [1] and get("groov").ends(IDS) == [9, 1]
