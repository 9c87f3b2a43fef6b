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


def test_given_phrases_are_scored_on_a_device() -> None:
    trained, texts = checkpoint("pusl"), documents(3)
    expected = KeyphraseGenerator(trained).score(texts, ["red shoe", "boot"])
    with simulated_device():
        there = dataclasses.replace(trained, model=on_device(trained.model))
        found = KeyphraseGenerator(there).score(texts, ["red shoe", "boot"])
    for one, other in zip(found, expected, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)
