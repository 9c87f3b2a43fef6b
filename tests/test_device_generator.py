"""On a GPU the generator gives what it gives on the CPU: every strategy, paradigm and constraint."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from decoding_models import WORDS, checkpoint, documents, tokenizer
from simulated_device import on_device, simulated_device

from pusl.decoding.device.device_engine import DeviceEngine
from pusl.decoding.generator import KeyphraseGenerator, Prediction
from pusl.decoding.universe import Universe

PHRASES = [f"{one} {other}" for one in WORDS[:6] for other in WORDS[6:]] + list(WORDS[:4])
KNOWN = [["red shoe", "boot"], [], ["drone"], ["lamp", "table", "blue case"], ["zeto"], []]
WAYS: list[dict[str, Any]] = [
    {},
    {"strategy": "sequence"},
    {"allow_repeats": True},
    {"temperature": 0.9, "top_p": 0.8, "seed": 5},
    {"vocabulary": "closed"},
    {"vocabulary": "prefer", "bonus": 1.5},
    {"vocabulary": "closed", "strategy": "sequence"},
    {"known": KNOWN},
    {"known": KNOWN, "strategy": "sequence"},
    {"known": KNOWN, "vocabulary": "prefer"},
]


def assert_close(found: list[Prediction], expected: list[Prediction]) -> None:
    assert [one.keyphrases for one in found] == [one.keyphrases for one in expected]
    assert [one.exhausted for one in found] == [one.exhausted for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


CASES = [("pusl", way) for way in WAYS]
CASES += [("one2one", way) for way in (WAYS[0], WAYS[4], WAYS[5], WAYS[7])]
CASES += [("one2seq", way) for way in (WAYS[0], WAYS[1], WAYS[3], WAYS[7])]
CASES += [("groov", way) for way in (WAYS[0], WAYS[6])]


@pytest.mark.slow
@pytest.mark.parametrize(("paradigm", "way"), CASES, ids=str)
def test_a_device_gives_what_the_cpu_gives(paradigm: str, way: dict[str, Any]) -> None:
    trained, texts = checkpoint(paradigm), documents(6)
    universe = Universe.build(PHRASES, tokenizer())
    if paradigm in ("one2seq", "groov") and way.get("strategy") == "sequence":
        way = {**way, "strategy": "beam"}  # the other one is their default
    expected = KeyphraseGenerator(trained, universe=universe).generate(texts, 3, **way)
    with simulated_device() as log:
        there = dataclasses.replace(trained, model=on_device(trained.model))
        generator = KeyphraseGenerator(there, universe=universe)
        assert isinstance(generator.engine, DeviceEngine)
        log.clear()
        found = generator.generate(texts, 3, batch_size=4, **way)
        assert log.copies["to host"] == 0 and set(log.waits) <= {"copy"}, log.places  # tables are copied once
    assert_close(found, expected)


def test_batches_change_nothing_but_last_digits() -> None:
    trained, texts = checkpoint("pusl"), documents(12)
    generator = KeyphraseGenerator(trained)
    generator.engine = DeviceEngine(trained.model)
    whole = generator.generate(texts, 4, batch_size=16)
    assert_close(generator.generate(texts, 4, batch_size=4), whole)
    assert_close([generator.generate([text], 4)[0] for text in texts], whole)


SCORED = [["red shoe", "boot", "red", "", "boot"], ["zeto drone camera"], [], ["red shoe"] * 2, ["lamp"], list(WORDS)]


@pytest.mark.parametrize("paradigm", ["pusl", "one2one", "one2seq", "groov"])
@pytest.mark.parametrize("known", [None, [["red boot", "blue shoe", "table lamp", "green case"], *[[]] * 5]])
def test_given_phrases_are_scored_on_a_device(paradigm: str, known: Any) -> None:
    trained, texts = checkpoint(paradigm), documents(6)
    expected = KeyphraseGenerator(trained).score(texts, SCORED, known=known)
    with simulated_device():
        there = dataclasses.replace(trained, model=on_device(trained.model))
        found = KeyphraseGenerator(there).score(texts, SCORED, known=known, batch_size=4)
    for one, other in zip(found, expected, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


@pytest.mark.parametrize("count", [3, 4])
def test_a_batch_of_scores_is_one_copy_in_and_one_out(count: int) -> None:
    """However many items and phrases there are: its trees, its texts (one length here), and the numbers."""
    phrases = [f"{one} {other}" for one in WORDS for other in WORDS]  # several blocks of tokens
    trained, texts = checkpoint("pusl"), ["red shoe"] * 4 * count
    with simulated_device() as log:
        generator = KeyphraseGenerator(dataclasses.replace(trained, model=on_device(trained.model)))
        log.clear()
        generator.score(texts, phrases, batch_size=4)
    assert not log.waits, log.places
    assert log.copies == {"to device, asynchronous": 1 + 2 * count, "to host, asynchronous": count}, log.places


def test_scores_and_generated_scores_agree_in_bfloat16() -> None:
    """Both come from one engine, so that what is fused is comparable."""
    universe = Universe.build(PHRASES, tokenizer())  # spelled by the ids that the tokenizer chooses
    generator = KeyphraseGenerator(checkpoint("pusl"), precision="bf16", universe=universe)
    found = generator.generate(documents(4), 5, vocabulary="closed")
    for one, again in zip(found, generator.score(documents(4), [one.keyphrases for one in found]), strict=True):
        assert len(one.keyphrases) == 5 and again.scores == pytest.approx(one.scores, abs=0.1)
