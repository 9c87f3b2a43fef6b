"""The device engine gives what the CPU engine gives, with everything on the device."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from decoding_models import IDS, random_t5, random_texts

from pusl.decoding.cpu.engine import Engine
from pusl.decoding.device.device_engine import DeviceEngine
from pusl.decoding.greedy import decode_sequences
from pusl.decoding.plans import Plan, Ranked, Sequential
from pusl.decoding.rules import Phrase, Rules, Sampling
from pusl.decoding.search import search_phrases


def tie_at_first_difference(model: Any, text: list[int], found: list[Phrase], expected: list[Phrase]) -> float:
    """How far apart the logits of the first two tokens that differ are, inside a phrase behind equal ones."""
    before = next(i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0].ids != pair[1].ids)
    one, other = found[before].ids, expected[before].ids
    at = next(i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    earlier = [token for phrase in found[:before] for token in (IDS.bok, *phrase.ids, IDS.eok)]
    prefix = torch.tensor([[IDS.start, *earlier, IDS.bok, *one[:at]]])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([text]), decoder_input_ids=prefix).logits[0, -1]  # (V,)
    return float((logits[one[at]] - logits[other[at]]).abs())


def assert_same(found: list[list[Phrase]], expected: list[list[Phrase]]) -> None:
    assert [[one.ids for one in phrases] for phrases in found] == [[one.ids for one in phrases] for phrases in expected]
    for one, other in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize(("feed_forward", "tied"), [("relu", True), ("gated-gelu", False), ("gated-silu", True)])
def test_sequences_are_those_of_the_cpu_engine(seed: int, feed_forward: str, tied: bool) -> None:
    model, texts = random_t5(seed, feed_forward, tied), random_texts(seed, 11)
    for rules in (Rules(IDS, True, 4, 5, (50, 51)), Rules(IDS, False, 6, 4)):
        for sampling in (Sampling(), Sampling(0.8, 0.9, seed=3)):
            keys = list(range(11))
            found = DeviceEngine(model).decode_sequences(texts, rules, slots=1, sampling=sampling, keys=keys)
            expected = decode_sequences(Engine(model), texts, rules, slots=3, sampling=sampling, keys=keys)
            pairs = list(zip(found, expected, strict=True))
            if sampling != Sampling():  # a draw goes by rank: two tokens that are alike to the last bit may swap places
                same = [[one.ids for one in first] == [one.ids for one in second] for first, second in pairs]
                for number in (i for i, equal in enumerate(same) if not equal):
                    assert tie_at_first_difference(model, texts[number], *pairs[number]) < 1e-5
                pairs = [pair for pair, equal in zip(pairs, same, strict=True) if equal]
            assert_same([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def searched(model: Any, plan: Any, rules: Rules, beams: int, known: Any = None) -> None:
    texts = random_texts(beams, 11)
    mine: Any = DeviceEngine(model).search_phrases(texts, rules, plan, beams=beams, slots=4, known=known)
    theirs: Any = search_phrases(Engine(model), texts, rules, plan, beams=beams, slots=4, known=known)
    assert_same([one.phrases() for one in mine], [one.phrases() for one in theirs])
    for one, other in zip(mine, theirs, strict=True):  # whether junk was met matters where k were not found
        assert one.floored == other.floored or len(one.phrases()) == one.k


@pytest.mark.parametrize("beams", [1, 3, 8, 60])
@pytest.mark.parametrize("marks", [True, False])
def test_beams_are_those_of_the_cpu_engine(beams: int, marks: bool) -> None:
    searched(random_t5(beams), lambda _: Ranked(max(1, beams - 2), str, 12.0), Rules(IDS, marks, 3, 4), beams)


@pytest.mark.parametrize("beams", [1, 4, 12])
def test_searches_go_on_behind_what_they_found(beams: int) -> None:
    searched(random_t5(beams, "gated-gelu"), lambda _: Sequential(5, str, 12.0), Rules(IDS, True, 5, 4), beams)


def test_a_plan_may_see_two_spellings_of_one_phrase() -> None:
    def form(ids: tuple[int, ...]) -> str:
        return str([token // 2 for token in ids]) if ids[0] % 7 else ""

    def ranked(_: int) -> Plan:
        return Ranked(4, form, 12.0)

    def sequential(_: int) -> Plan:
        return Sequential(4, form, 12.0)

    for plan in (ranked, sequential):
        searched(random_t5(7), plan, Rules(IDS, True, 4, 3), 6)


@pytest.mark.parametrize("beams", [3, 9])
@pytest.mark.parametrize("plan", [Ranked, Sequential])
def test_searches_stand_behind_known_phrases(beams: int, plan: Any) -> None:
    known = [[[5 + i, 6, 7][: 1 + i % 3] for i in range(count)] for count in (0, 1, 2, 3, 9, 0, 1, 2, 3, 9, 4)]
    searched(random_t5(1), lambda _: plan(3, str, 12.0), Rules(IDS, True, 3, 4), beams, known)


def test_whole_sequences_by_beam_search() -> None:
    searched(random_t5(2), lambda _: Ranked(4, str), Rules(IDS, False, 4, 12, (), whole=True), 4)


@pytest.mark.slow
def test_long_texts_and_outputs() -> None:
    model, texts = random_t5(3), random_texts(3, 5, longest=300)
    rules = Rules(IDS, True, 30, 16)
    assert_same(DeviceEngine(model).decode_sequences(texts, rules), decode_sequences(Engine(model), texts, rules))


def test_a_pool_is_used_again() -> None:
    engine, texts, rules = DeviceEngine(random_t5(4)), random_texts(4, 9), Rules(IDS, True, 3, 4)
    first = engine.decode_sequences(texts, rules)
    plans: list[Any] = [engine.search_phrases(texts, rules, lambda _: Ranked(3, str), beams=5) for _ in range(2)]
    assert [one.phrases() for one in plans[0]] == [one.phrases() for one in plans[1]]
    assert engine.decode_sequences(texts, rules) == first
    assert len(engine.pools) == 2
    assert engine.decode_sequences([], rules) == []
    assert not torch.is_inference_mode_enabled()
