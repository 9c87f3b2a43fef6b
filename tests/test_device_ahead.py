"""Texts are tokenized in a thread while the device works: same results, and nobody waits while there is work."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from decoding_models import IDS, checkpoint, documents, random_t5, random_texts

from pusl.catalog.recipes import ModelRecipe
from pusl.checkpoint import save_checkpoint
from pusl.decoding.device import text_queue
from pusl.decoding.device.device_engine import DeviceEngine
from pusl.decoding.device.slots import Slots
from pusl.decoding.device.text_queue import TextQueue, TokensAhead
from pusl.decoding.engines import warm_up
from pusl.decoding.generator import KeyphraseGenerator
from pusl.decoding.plans import Ranked, Sequential
from pusl.decoding.rules import Phrase, Rules

RULES = Rules(IDS, True, 3, 4)


def numbered(texts: list[str]) -> list[list[int]]:
    """A tokenizer: one id a character."""
    return [[ord(char) - 95 for char in text] for text in texts]


def test_texts_come_in_their_places_and_the_longest_first() -> None:
    texts = ["c", "bbbb", "", "aaa", "dd", "e"]
    with TokensAhead(texts, numbered, part=2) as ahead:
        assert list(ahead) == numbered(texts) and len(ahead) == 6
        queue = TextQueue(ahead, room=3)
        assert queue.late == [1]
        assert queue.take(4, wait=True) == [3, 4, 5, 0]
        assert queue.take(4, wait=True) == [2] and not queue
    with TokensAhead([], numbered) as nothing:
        assert len(nothing) == 0 and not TextQueue(nothing, 9)


def test_a_part_that_is_not_there_is_waited_for_only_without_other_work() -> None:
    gate = threading.Event()

    def slow(texts: list[str]) -> list[list[int]]:
        assert len(texts) != 2 or gate.wait(10)
        return numbered(texts)

    with TokensAhead(["aaaa", "bbb", "ccc", "d", "e"], slow, part=3) as ahead:
        queue = TextQueue(ahead, 9)
        assert queue.take(5, wait=False) == [0, 2, 1]
        assert queue.take(5, wait=False) == [] and queue  # two are still being tokenized
        threading.Timer(0.1, gate.set).start()
        assert queue.take(5, wait=True) == [4, 3] and not queue


def test_what_goes_wrong_in_the_thread_is_raised_here() -> None:
    def broken(texts: list[str]) -> list[list[int]]:
        if texts == ["b"]:
            raise ValueError("not a text")
        return numbered(texts)

    with TokensAhead(["aa", "b"], broken, part=1) as ahead:
        queue = TextQueue(ahead, 9)
        assert queue.take(1, wait=True) == [0]
        with pytest.raises(ValueError, match="not a text"):
            queue.take(1, wait=True)


def ids_of(found: list[list[Phrase]]) -> list[list[tuple[int, ...]]]:
    return [[one.ids for one in phrases] for phrases in found]


@pytest.mark.parametrize("way", ["sequences", "beam", "sequential"])
def test_late_and_long_texts_change_no_result(way: str) -> None:
    """The number of characters is a guess at the number of tokens: here it is a wrong one."""
    rows = random_texts(2, 30, longest=60)
    names = [chr(200 + number) * (61 - len(row)) for number, row in enumerate(rows)]  # the shortest look longest
    table = dict(zip(names, rows, strict=True))

    def found(texts: Any) -> Any:
        engine = DeviceEngine(random_t5(2))
        if way == "sequences":
            return ids_of(engine.decode_sequences(texts, RULES, slots=1))
        plan = Ranked if way == "beam" else Sequential
        plans: Any = engine.search_phrases(texts, RULES, lambda _: plan(3, str, 12.0), beams=4, slots=4)
        return ids_of([one.phrases() for one in plans])

    with TokensAhead(names, lambda texts: [table[text] for text in texts], part=7) as ahead:
        assert text_queue.longest_now(ahead) < max(map(len, rows)) // 2
        assert found(ahead) == found(rows)


@pytest.mark.parametrize(
    "options", [{}, {"strategy": "sequence"}, {"temperature": 0.7}, {"known": [["red shoe"]] * 40}]
)
def test_the_generator_gives_the_same(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    generator = KeyphraseGenerator(checkpoint("pusl"))
    generator.engine = DeviceEngine(checkpoint("pusl").model)
    texts = [*documents(39, seed=4), " "]
    expected = generator.generate(texts, 3, **options)
    monkeypatch.setattr(TokensAhead.__init__, "__defaults__", (4,))
    found = generator.generate(texts, 3, **options)
    assert [one.keyphrases for one in found] == [one.keyphrases for one in expected]
    assert not [one for one in threading.enumerate() if one.name.startswith("tokenize")]


def test_the_device_works_while_the_thread_tokenizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow tokenizer: steps run before its last text is there, and finished sequences are spelled between steps."""
    events: list[str] = []
    run = Slots.run

    def watched(slots: Slots, key: Any, step: Any) -> None:
        events.append("step")
        run(slots, key, step)

    def slow(texts: list[str]) -> list[list[int]]:
        time.sleep(0.15 if events else 0.0)
        events.append("tokens")
        return [[5 + len(text) % 50, 1] for text in texts]

    def spell(phrases: list[Phrase]) -> list[Phrase]:
        events.append("spelled")
        return phrases

    monkeypatch.setattr(Slots, "run", watched)
    engine, texts = DeviceEngine(random_t5(0)), ["a" * (1 + number) for number in range(24)]
    with TokensAhead(texts, slow, part=8) as ahead:
        engine.decode_sequences(ahead, RULES, slots=2, finish=spell)
    tokens, steps = [i for i, one in enumerate(events) if one == "tokens"], events.index("step")
    assert len(tokens) == 3 and steps < tokens[1] < tokens[2]
    assert events[tokens[0] : tokens[2]].count("step") >= 8
    assert events.index("spelled") < len(events) - 1 - events[::-1].index("step")
    assert events.count("spelled") == 24


def test_after_the_warm_up_no_request_meets_a_new_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = KeyphraseGenerator(checkpoint("pusl"))
    generator.engine, generator.max_source_length = DeviceEngine(checkpoint("pusl").model), 40
    seen: set[tuple[int, int]] = set()
    run = Slots.run

    def watched(slots: Slots, key: Any, step: Any) -> None:
        seen.add((slots.count, key[1]))  # cache lengths follow from how long the search takes
        run(slots, key, step)

    monkeypatch.setattr(Slots, "run", watched)
    warm_up(generator, 2, 6)
    pools, warm = set(generator.engine.pools), set(seen)
    assert {count for count, _ in warm} == {4, 8} and {length for _, length in warm} == {16, 32, 64}
    for count in (1, 2, 6):
        for words in (1, 12, 30, 90):
            generator.generate(["red " * words] * count, 2, batch_size=6)
    assert seen == warm and set(generator.engine.pools) == pools


def test_the_shards_of_a_catalog_share_their_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long their texts are. So a run captures few steps, each once, and `generate` needs no warm-up."""
    made = checkpoint("pusl")
    save_checkpoint(tmp_path, made.model, made.tokenizer, {"paradigm": "pusl", **made.meta})
    generator: Any = ModelRecipe(str(tmp_path), "bf16", device="cpu").load()
    keys: list[Any] = []
    run = Slots.run

    def watched(slots: Slots, key: Any, step: Any) -> None:
        keys.append((id(slots), key))
        run(slots, key, step)

    monkeypatch.setattr(Slots, "run", watched)
    for shard, words in enumerate((2, 30, 9, 90)):
        generator.generate([f"red {'boot ' * words}{shard} {i}" for i in range(16)], 3)
    print(f"\n{len(set(keys))} steps to capture, {len(keys)} run")
    shapes = [shape for _, shape, *_ in generator.engine.pools]
    assert [count for count, *_ in shapes].count(16) == 1  # what was not exhausted is searched again in a smaller one
    assert {length for _, length, *_ in shapes} == {256}
    assert 2 * len(set(keys)) < len(keys)
