"""A T5 model on a GPU -> decoded sequences, phrase searches and phrase scores, as the CPU engine gives them.

The engine keeps the memory of its last pools together with their CUDA graphs, so that the next call with the same
settings starts at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from pusl.decoding.device.phrase_books import run_searches
from pusl.decoding.device.phrase_scores import TreeSlots, run_scores
from pusl.decoding.device.phrase_steps import BeamSlots, beam_length
from pusl.decoding.device.slots import Slots, bucket, slot_bucket
from pusl.decoding.device.text_queue import TokenRows, longest_now
from pusl.decoding.device.token_steps import SequenceSlots, run_sequences, sequence_length
from pusl.decoding.device.transformer import DeviceT5
from pusl.decoding.plans import Plan, Ranked
from pusl.decoding.rules import Phrase, Rules, Sampling
from pusl.decoding.universe import UniverseRule

if TYPE_CHECKING:
    from pusl.decoding.scoring import PhraseTree

POOLS = 8  # kept with their graphs
POOL_BYTES = 4 << 30  # of one pool, where the device does not say how much memory is free
SHARE = 0.15  # of the device's memory for one pool
SEQUENCES = 4  # sequences per slot asked for: a row is little work

SomeSlots = TypeVar("SomeSlots", bound=Slots)
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


class DeviceEngine:
    """A T5 prepared for decoding on its model's device."""

    def __init__(self, model: Any, precision: str = "fp32") -> None:
        self.precision = precision
        self.t5 = DeviceT5(model, DTYPES[precision])
        self.device, self.vocab_size = self.t5.device, self.t5.vocab_size
        self.pools: OrderedDict[Hashable, Slots] = OrderedDict()
        self.text_room = 0  # tokens that a pool has room for at least; a service has one size for all its requests

    def refresh(self, model: Any) -> None:
        """Takes over new weights of the same shape. They go where the old ones are, so CUDA graphs stay valid."""
        self.t5.refresh(model)
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            if free < total // 4:  # a model in training needs the room
                self.pools.clear()

    @torch.inference_mode()
    def decode_sequences(
        self,
        texts: TokenRows,
        rules: Rules,
        *,
        slots: int = 32,
        sampling: Sampling | None = None,
        keys: Sequence[int] | None = None,
        finish: Callable[[list[Phrase]], list[Phrase]] = list,
    ) -> list[list[Phrase]]:
        """The phrases of each text's sequence, in order, repeats included. See `greedy.decode_sequences`.

        `finish` gets the phrases of every text that has ended, while the device works on others.
        """
        if not len(texts):
            return []
        sampling, keys = sampling or Sampling(), keys or [0] * len(texts)
        length = bucket(sequence_length(rules))
        text_length = bucket(max(longest_now(texts), self.text_room))
        count = self._count(SEQUENCES * slots, len(texts), text_length, length)
        settings = (sampling.temperature, sampling.top_p, sampling.seed)
        pool = self._pool(
            ("sequence", count, text_length, length, rules, settings),
            lambda: SequenceSlots(self.t5, count, text_length, length, rules, sampling),
        )
        found: list[list[Phrase]] = [[] for _ in range(len(texts))]
        with self._current():
            late = run_sequences(pool, texts, keys, found, finish)
        more = self.decode_sequences(
            [texts[i] for i in late], rules, slots=slots, sampling=sampling, keys=[keys[i] for i in late], finish=finish
        )
        for i, phrases in zip(late, more, strict=True):
            found[i] = phrases
        return found

    @torch.inference_mode()
    def search_phrases(
        self,
        texts: TokenRows,
        rules: Rules,
        plan: Callable[[int], Plan],
        *,
        beams: int,
        slots: int = 32,
        constraint: UniverseRule | None = None,
        known: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> list[Plan]:
        """Runs every text's plan to its end and returns the plans. See `search.search_phrases`."""
        plans = [plan(i) for i in range(len(texts))]
        if not plans:
            return plans
        opening = 2 + max((sum(len(one) + 2 for one in phrases) for phrases in known or ()), default=0)
        follows = not all(isinstance(one, Ranked) for one in plans)  # a search may go on behind what it found
        length = bucket(beam_length(rules, beams, opening, follows))
        text_length = bucket(max(longest_now(texts), self.text_room))
        if known or follows:
            opening = bucket(max(opening, rules.max_phrase_tokens + 2))
        count = self._count(slots, len(texts), text_length, length)
        shape = (count, text_length, length, beams, opening, follows)
        universe = None if constraint is None else (id(constraint.universe), constraint.end, constraint.bonus)
        pool = self._pool(
            ("beam", shape, rules, universe),
            lambda: BeamSlots(self.t5, count, text_length, length, rules, beams, opening, follows, constraint),
        )
        with self._current():
            late = run_searches(pool, texts, plans, known)
        if late:
            self.search_phrases(
                [texts[i] for i in late], rules, lambda i: plans[late[i]], beams=beams, slots=slots,
                constraint=constraint, known=[known[i] for i in late] if known else None,
            )  # fmt: skip
        return plans

    @torch.inference_mode()
    def score_trees(
        self,
        texts: Sequence[Sequence[int]],
        trees: Sequence[PhraseTree],
        order: Sequence[int],
        ends: Sequence[int],
        *,
        slots: int,
        columns: int,
    ) -> list[list[float]]:
        """Log-probabilities of each text's phrases, fed so many columns at a time. See `scoring.score_trees`."""
        if not order:
            return []
        length = bucket(trees[order[0]].blocks(columns) * columns)
        text_length = bucket(max(longest_now(texts), self.text_room))
        count = self._count(slots, len(texts), text_length, length)
        key = ("score", count, text_length, length)
        pool = self._pool(key, lambda: TreeSlots(self.t5, count, text_length, length))
        with self._current():
            return run_scores(pool, texts, trees, order, ends, columns)

    def _current(self) -> AbstractContextManager[Any]:
        """Makes the engine's GPU the current one: graphs are captured on it."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _count(self, slots: int, texts: int, text_length: int, length: int) -> int:
        """Slots of a pool: no more than asked for, than there are texts, or than the memory holds."""
        room = POOL_BYTES
        if self.device.type == "cuda":
            room = int(SHARE * torch.cuda.get_device_properties(self.device).total_memory)
        most = max(4, room // Slots.bytes_per_slot(self.t5, text_length, length))
        count = slot_bucket(min(slots, texts))
        while count > most:
            count //= 2
        return count

    def _pool(self, key: Hashable, make: Callable[[], SomeSlots]) -> SomeSlots:
        pool: Any = self.pools.pop(key, None)
        if pool is None:
            while len(self.pools) >= POOLS:
                self.pools.popitem(last=False)
            pool = make()
        self.pools[key] = pool
        return pool
