"""Texts of mixed length -> keys and values in the slots of a pool, encoded in at most three batches.

Shapes come from short lists of sizes (buckets), so that few different steps exist and each can be captured once as a
CUDA graph. A slot that holds no item is computed along and ignored.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pusl.decoding.deadline import check_time
from pusl.decoding.device.transfer import to_device
from pusl.decoding.device.transformer import HIDDEN, DeviceT5

BATCHES = 3  # of the encoder for one refill
LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512)  # of texts and caches; beyond, multiples of 256
NO_FLOAT64 = ("mps",)  # devices without it; elsewhere scores are summed in float64, as on the CPU
REFILL = 8  # the pool is refilled when one slot in so many is free


def bucket(length: int) -> int:
    """The smallest allowed length that holds `length`.

    >>> bucket(17), bucket(512), bucket(513)
    (32, 512, 768)
    """
    return next((size for size in LENGTHS if size >= length), -(-length // 256) * 256)


def slot_bucket(count: int) -> int:
    """The next power of two, at least 4.

    >>> slot_bucket(3), slot_bucket(33)
    (4, 64)
    """
    return max(4, 1 << (count - 1).bit_length())


def length_batches(lengths: Sequence[int], most: int = BATCHES) -> list[tuple[int, list[int]]]:
    """Texts -> at most `most` batches (padded length, numbers of the texts) with little padding.

    >>> length_batches([5, 100, 7, 30, 500], most=2)
    [(128, [0, 2, 3, 1]), (512, [4])]
    """
    batches: list[tuple[int, list[int]]] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        size = bucket(lengths[i])
        if batches and batches[-1][0] == size:
            batches[-1][1].append(i)
        else:
            batches.append((size, [i]))
    while len(batches) > most:
        costs = [(batches[i + 1][0] - size) * len(members) for i, (size, members) in enumerate(batches[:-1])]
        at = costs.index(min(costs))
        batches[at : at + 2] = [(batches[at + 1][0], batches[at][1] + batches[at + 1][1])]
    return batches


class Slots:
    """Memory of the items being decoded: their texts' keys and values, and their own cache.

    Args:
        t5: the model.
        count: slots.
        text_length: longest text.
        length: cache entries per slot; the last is never read and takes what must not be kept.
    """

    def __init__(self, t5: DeviceT5, count: int, text_length: int, length: int) -> None:
        self.t5, self.count, self.text_length, self.length = t5, count, text_length, length
        layers, width, device = len(t5.decoder), 2 * t5.heads * t5.d_kv, t5.device
        self.memory = torch.zeros(layers, count, text_length, width, dtype=t5.dtype, device=device)
        self.cache = torch.zeros(layers, count, length, width, dtype=t5.dtype, device=device)
        self.unread = torch.zeros(count, 1, 1, text_length, dtype=t5.dtype, device=device)
        self.entries = torch.arange(max(length, text_length), device=device)
        self.base = (torch.arange(count, device=device) * length)[:, None]  # (n, 1)
        self.lengths = np.zeros(count, dtype=np.int64)  # the host's copy of the texts' lengths; 0: no item
        self.real = torch.float32 if device.type in NO_FLOAT64 else torch.float64
        self.graphs: dict[Hashable, Any] = {}
        self.steps = 0  # run so far

    @staticmethod
    def bytes_per_slot(t5: DeviceT5, text_length: int, length: int) -> int:
        """What one slot takes on the device."""
        return 2 * len(t5.decoder) * t5.heads * t5.d_kv * (text_length + length) * t5.dtype.itemsize

    def fill(self, slots: Sequence[int], texts: Sequence[Sequence[int]]) -> None:
        """Encodes texts (ids) into slots."""
        self.lengths[list(slots)] = [len(text) for text in texts]
        for size, members in length_batches([len(text) for text in texts]):
            packed = np.zeros((len(members), size + 2), dtype=np.int64)
            for row, i in enumerate(members):
                packed[row, : len(texts[i])] = texts[i]
                packed[row, size:] = len(texts[i]), slots[i]
            there = to_device(packed, self.t5.device)
            tokens, lengths, places = there[:, :size], there[:, size], there[:, size + 1]
            hidden = torch.where(self.entries[: self.text_length] < lengths[:, None], 0.0, HIDDEN)
            self.unread.index_copy_(0, places, hidden.to(self.t5.dtype)[:, None, None])
            self.t5.encode(tokens, lengths, places, self.memory)

    def read_length(self) -> int:
        """How much of the texts' keys and values a step must look at."""
        return min(bucket(int(self.lengths.max())), self.text_length)

    def run(self, key: Hashable, step: Callable[[], None]) -> None:
        """Runs a step of static shape; on CUDA the second run is captured as a graph and replayed from then on.

        A step that cannot be captured runs kernel by kernel, which is slower and gives the same.
        """
        check_time()
        self.steps += 1
        if self.t5.device.type != "cuda":
            step()
        elif key not in self.graphs:  # the first run loads kernels and workspaces
            self.graphs[key] = None
            step()
        else:
            self.graphs[key] = graph = self.graphs[key] or self._capture(step)
            graph.replay()

    def _capture(self, step: Callable[[], None]) -> Any:
        """The step as a CUDA graph. Capturing computes nothing, so a failed capture loses nothing."""
        pool = next((graph.pool() for graph in self.graphs.values() if hasattr(graph, "pool")), None)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads (a loader that pins memory) may go on; graphs never run at the same time and share memory.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                step()
        except RuntimeError as error:
            warnings.warn(f"a decoding step runs without a CUDA graph: {error}", stacklevel=2)
            return _Eager(step)
        return graph


@dataclass
class _Eager:
    """What stands in for a graph that could not be captured."""

    replay: Callable[[], None]


def rule_table(vocab_size: int, never: Sequence[int], first: Sequence[int], last: Sequence[int], cap: int) -> Tensor:
    """What is added to the scores of the next token of a phrase, by the phrase's length so far. (cap + 1, V)

    Args:
        never: ids that may not stand in a phrase.
        first: ids that may not open it.
        last: the only ids allowed once it has `cap` tokens.
    """
    table = torch.zeros(cap + 1, vocab_size)
    table[:, list(never)] = -torch.inf
    table[0, list(first)] = -torch.inf
    closing = table[cap, list(last)]
    table[cap] = -torch.inf
    table[cap, list(last)] = closing
    return table
