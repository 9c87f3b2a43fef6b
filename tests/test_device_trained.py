"""Trained models on a GPU give what they give on the CPU: every paradigm, strategy and constraint; bf16 nearly so."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from decoding_models import tokenizer
from simulated_device import on_device, simulated_device
from trained_models import shop_items, trained

from pusl.checkpoint import Checkpoint
from pusl.decoding.device import slots as slots_module
from pusl.decoding.device.device_engine import DeviceEngine
from pusl.decoding.generator import KeyphraseGenerator, Prediction
from pusl.decoding.universe import Universe
from pusl_eval.metrics import budget_accuracy

pytestmark = pytest.mark.slow

ITEMS, K = shop_items(12, seed=7), 4
TEXTS = [item.text for item in ITEMS]
KNOWN = [item.keyphrases[: number % 3] for number, item in enumerate(ITEMS)]
UNIVERSE = sorted({phrase for item in shop_items(60, seed=8) for phrase in item.keyphrases})
SEARCHES = [
    {"strategy": strategy, "vocabulary": vocabulary, **({"known": KNOWN} if known else {})}
    for strategy, vocabulary, known in itertools.product(
        ("beam", "sequence"), ("open", "prefer", "closed"), (False, True)
    )
]
SAMPLED = [
    {"temperature": 0.8, "top_p": top_p, "seed": 3, "vocabulary": vocabulary}
    for top_p, vocabulary in ((1.0, "open"), (0.9, "prefer"), (0.9, "closed"))
]
REPEATED: list[dict[str, Any]] = [{"allow_repeats": True}, {"allow_repeats": True, "temperature": 0.8, "top_p": 0.9}]
CASES = [
    (paradigm, way)
    for paradigm in ("pusl", "one2one", "one2seq", "groov", "pusl gated")
    for way in (SEARCHES + SAMPLED + REPEATED if "gated" not in paradigm else SEARCHES[:1] + REPEATED[:1])
    if way.get("strategy") != "sequence" or paradigm != "one2one"
]


@pytest.fixture(scope="session")
def universe() -> Universe:
    return Universe.build(UNIVERSE, tokenizer())


@pytest.fixture(scope="session")
def models() -> Callable[[str], Checkpoint]:
    """One trained model for each paradigm, shared by all tests of the session."""

    def get(name: str) -> Checkpoint:
        paradigm, _, kind = name.partition(" ")
        return trained(paradigm, "gated-gelu" if kind else "relu")

    return get


def name_of(way: dict[str, Any]) -> str:
    return " ".join(f"{key}" if key == "known" else f"{key}={value}" for key, value in way.items())


@pytest.mark.parametrize(("paradigm", "way"), CASES, ids=[f"{paradigm} {name_of(way)}" for paradigm, way in CASES])
def test_the_device_gives_what_the_cpu_gives(
    paradigm: str, way: dict[str, Any], models: Any, universe: Universe
) -> None:
    model = models(paradigm)
    expected = KeyphraseGenerator(model, universe=universe).generate(TEXTS, K, **way)
    with simulated_device() as log:
        generator = KeyphraseGenerator(dataclasses.replace(model, model=on_device(model.model)), universe=universe)
        assert isinstance(generator.engine, DeviceEngine) and generator.precision == "fp32"
        log.clear()
        found = generator.generate(TEXTS, K, batch_size=8, **way)
        assert log.operations > 0 and log.copies["to host"] == 0, log.places
    assert [one.keyphrases for one in found] == [one.keyphrases for one in expected]
    assert [one.exhausted for one in found] == [one.exhausted for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)
    assert any(one.keyphrases for one in found)


@pytest.mark.parametrize("way", [*SEARCHES[:4:2], *SEARCHES[6::5], SAMPLED[1]], ids=name_of)
def test_devices_without_float64_never_see_it(
    way: dict[str, Any], models: Any, universe: Universe, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, texts = models("pusl"), TEXTS[:5]
    expected = KeyphraseGenerator(model, universe=universe)
    options = {**way, "known": KNOWN[:5]} if "known" in way else way
    monkeypatch.setattr(slots_module, "NO_FLOAT64", ("mps", "sim"))
    with simulated_device() as log:
        generator = KeyphraseGenerator(dataclasses.replace(model, model=on_device(model.model)), universe=universe)
        found = generator.generate(texts, K, batch_size=8, **options)
        scores = generator.score(texts, ["shoe", "red lamp"])
        assert log.types[torch.float32] and not log.types[torch.float64], log.types
    if "temperature" not in way:
        given = expected.generate(texts, K, **options)
        assert [one.keyphrases for one in found] == [one.keyphrases for one in given]
    for one, other in zip(scores, expected.score(texts, ["shoe", "red lamp"]), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


def first_equal(one: list[Prediction], other: list[Prediction]) -> float:
    return sum(a.keyphrases[:1] == b.keyphrases[:1] for a, b in zip(one, other, strict=True)) / len(one)


def overlap(one: list[Prediction], other: list[Prediction]) -> float:
    shares = [
        len({*a.keyphrases} & {*b.keyphrases}) / max(len(a.keyphrases), len(b.keyphrases), 1)
        for a, b in zip(one, other, strict=True)
    ]
    return sum(shares) / len(shares)


@pytest.mark.parametrize("strategy", ["beam", "sequence"])
@pytest.mark.parametrize("paradigm", ["pusl", "one2one", "one2seq", "groov"])
def test_bf16_keeps_the_results(paradigm: str, strategy: str, models: Any) -> None:
    if paradigm == "one2one" and strategy == "sequence":
        pytest.skip("a One2One model has no sequence")
    items = shop_items(200, seed=9)
    texts, gold = [item.text for item in items], [item.keyphrases for item in items]
    model = models(paradigm)
    generator = KeyphraseGenerator(model)
    whole = generator.generate(texts, 10, strategy=strategy)
    half = KeyphraseGenerator(model, precision="bf16").generate(texts, 10, strategy=strategy)
    double = round(2 * sum(map(len, gold)) / len(gold))
    scores = [100 * budget_accuracy(gold, [one.keyphrases for one in given], double).mean() for given in (whole, half)]
    print(f"first equal {first_equal(whole, half):.3f}, overlap {overlap(whole, half):.3f}, B@{double} {scores}")
    assert first_equal(whole, half) >= 0.97
    assert overlap(whole, half) >= 0.97
    assert abs(scores[0] - scores[1]) <= 0.3
    if paradigm in ("pusl", "one2one"):  # another phrase comes first only where the two are about as likely
        firsts = [[one.keyphrases[0], other.keyphrases[0]] for one, other in zip(whole, half, strict=True)]
        for one, other in (found.scores for found in generator.score(texts, firsts)):
            assert abs(one - other) <= 0.05
