"""A model and its precision -> the engine that decodes it, and one way to call either engine.

The CPU engine computes in fp32 and int8 on a CPU; the device engine does everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pusl.decoding.cpu.engine import Engine
from pusl.decoding.device.device_engine import DeviceEngine
from pusl.decoding.device.text_queue import TokensAhead
from pusl.decoding.device.token_steps import Finish
from pusl.decoding.greedy import decode_sequences
from pusl.decoding.plans import Plan
from pusl.decoding.rules import Phrase, Rules
from pusl.decoding.search import search_phrases
from pusl_eval.files import InputError

AnyEngine = Engine | DeviceEngine
RELATIVES = ("umt5", "longt5")  # their position biases and attention are not those of the device engine


def make_engine(model: Any, precision: str) -> AnyEngine:
    """The engine for a model where it is."""
    if model.config.model_type in RELATIVES:
        if precision not in ("fp32", "int8"):
            raise InputError(f"precision {precision}: umT5 and LongT5 are decoded in fp32 (on a CPU also int8)")
        return Engine(model, precision)
    if model.device.type == "cpu" and precision in ("fp32", "int8"):
        return Engine(model, precision)
    return DeviceEngine(model, precision)


def refreshed(engine: AnyEngine, model: Any, precision: str) -> AnyEngine:
    """The engine with the weights of another model of the same shape."""
    if isinstance(engine, DeviceEngine):
        engine.refresh(model)
        return engine
    return Engine(model, precision)


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
