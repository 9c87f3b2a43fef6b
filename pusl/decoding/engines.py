"""A model and its precision -> the engine that decodes it, and one way to call either engine.

The CPU engine computes in fp32 and int8 on a CPU; the device engine does everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pusl.decoding.cpu.engine import Engine
from pusl.decoding.deadline import check_time
from pusl.decoding.device.device_engine import DeviceEngine
from pusl.decoding.device.slots import LENGTHS, bucket, slot_bucket
from pusl.decoding.device.text_queue import TokensAhead
from pusl.decoding.device.token_steps import Finish
from pusl.decoding.greedy import decode_sequences
from pusl.decoding.plans import Plan
from pusl.decoding.rules import Phrase, Rules
from pusl.decoding.search import search_phrases
from pusl.tokenizer import encode_texts, encode_whole

if TYPE_CHECKING:
    from pusl.decoding.generator import KeyphraseGenerator

AnyEngine = Engine | DeviceEngine
ENCODED_AT_ONCE = 1 << 16  # characters of texts


def make_engine(model: Any, precision: str) -> AnyEngine:
    """The engine for a model where it is."""
    if model.device.type == "cpu" and precision in ("fp32", "int8"):
        return Engine(model, precision)
    return DeviceEngine(model, precision)


def refreshed(engine: AnyEngine, model: Any, precision: str) -> AnyEngine:
    """The engine with the weights of another model of the same shape."""
    if isinstance(engine, DeviceEngine):
        engine.refresh(model)
        return engine
    return Engine(model, precision)


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The texts' ids, a part at a time: long texts in some scripts take a second each, and a time limit has to hold."""
    rows: list[list[int]] = []
    start = size = 0
    for number, text in enumerate(texts, 1):
        size += len(text)
        if size >= ENCODED_AT_ONCE or number == len(texts):
            check_time()
            rows += encode_whole(tokenizer, texts[start:number])
            start, size = number, 0
    return rows


@contextmanager
def token_rows(
    engine: AnyEngine, texts: Sequence[str], encode: Callable[[Sequence[str]], list[list[int]]]
) -> Iterator[Any]:
    """The texts' ids. For a device a thread goes on with them while the first are decoded."""
    if isinstance(engine, DeviceEngine):
        with TokensAhead(texts, encode) as ahead:
            yield ahead
    else:
        yield encode(texts)


def decode(engine: AnyEngine, source: Any, rules: Rules, finish: Finish, **options: Any) -> list[list[Phrase]]:
    """What `finish` makes of each text's sequence. See `greedy.decode_sequences`."""
    if isinstance(engine, DeviceEngine):
        return engine.decode_sequences(source, rules, finish=finish, **options)
    return [finish(phrases) for phrases in decode_sequences(engine, source, rules, **options)]


def find(engine: AnyEngine, source: Any, rules: Rules, plan: Callable[[int], Plan], **options: Any) -> list[Any]:
    """Every text's plan after its searches. See `search.search_phrases`."""
    if isinstance(engine, DeviceEngine):
        return engine.search_phrases(source, rules, plan, **options)
    return list(search_phrases(engine, source, rules, plan, **options))


def expect_any_length(generator: KeyphraseGenerator) -> None:
    """Gives pools on a device room for the longest text, so that one pool and its CUDA graphs serve every call."""
    if isinstance(generator.engine, DeviceEngine):
        generator.engine.text_room = generator.max_source_length


def warm_up(generator: KeyphraseGenerator, k: int, batch_size: int) -> None:
    """Runs every size of batch and length of text that requests may have, so that none of them waits for it.

    On CUDA the second run of a shape captures it as a graph. All pools get room for the longest text: what is prepared
    here serves every request with this k.
    """
    engine, longest = generator.engine, generator.max_source_length
    generator.generate(["warm up"], 1)
    if not isinstance(engine, DeviceEngine):
        return
    expect_any_length(generator)
    per_word = len(encode_texts(generator.tokenizer, ["a " * 32], 1 << 10)[0]) / 32
    counts = sorted({slot_bucket(count) for count in range(1, batch_size)} | {slot_bucket(batch_size)})
    for count in counts:
        for length in [size for size in LENGTHS if size < bucket(longest)] + [longest]:
            for _ in range(2):
                generator.generate(
                    ["a " * max(1, int((length - 1) / per_word))] * min(count, batch_size), k, batch_size=batch_size
                )
