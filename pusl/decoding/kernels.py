"""What torch does slowly on a CPU, compiled by numba: attention of single rows, and rounding rows to bytes.

torch's batched products spend as much time on the overhead of a 2 x 64 x 64 product as on reading the keys;
here each key and value is read once, and only those that are seen. Rounding takes torch six passes, here two.
A row does not depend on the others, so neither the batch nor the number of threads changes a bit. Without
numba the callers use torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor


def compiled(function: Callable[..., None]) -> Callable[..., None] | None:
    """The function as machine code that runs without Python's lock, or None where numba is missing."""
    try:
        import numba
    except ImportError:
        return None
    try:
        return numba.njit(nogil=True, fastmath=True, cache=True)(function)
    except RuntimeError:  # no folder to keep the compiled code in
        return numba.njit(nogil=True, fastmath=True)(function)


def shared_out(kernel: Callable[..., None], rows: int, *arguments: Any) -> None:
    """Runs the kernel over all rows, on as many threads as torch uses."""
    threads = torch.get_num_threads()
    if threads == 1 or rows < 2 * threads:
        kernel(0, rows, *arguments)
        return
    edges = [rows * i // threads for i in range(threads + 1)]
    team = _team(threads, os.getpid())  # threads do not live on in a forked process
    parts = [team.submit(kernel, a, b, *arguments) for a, b in pairwise(edges)]
    for part in parts:
        part.result()


@cache
def _team(threads: int, _process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="pusl-kernel")


@cache
def row_attention() -> Callable[..., Tensor] | None:
    """`attend` with its kernel compiled, or None where numba is missing."""
    kernel = compiled(_attend)
    if kernel is None:
        return None

    def attend(
        queries: Tensor, items: np.ndarray, counts: np.ndarray, keys: Tensor, values: Tensor, ladder: Tensor
    ) -> Tensor:
        """softmax(query . keys + bias) . values for each row. (N, HD)

        Args:
            queries: one row per token. (N, HD)
            items, counts: each row's item, and how many of the item's first entries it sees. (N,)
            keys, values: of all items. (R, H, T, D)
            ladder: row d + 1 is the bias of the entry d places before the last one seen; empty: no bias. (L, H)
        """
        mixed = torch.empty(queries.shape)
        shared_out(
            kernel, len(queries), queries.numpy(), items, counts, keys.numpy(), values.numpy(), ladder.numpy(),
            mixed.numpy(),
        )  # fmt: skip
        return mixed

    return attend


def _attend(
    start: int, stop: int, queries: Any, items: Any, counts: Any, keys: Any, values: Any, ladder: Any, mixed: Any
) -> None:
    heads, length, width = keys.shape[1:]
    query, sums, weights = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(length, np.float32)
    for i in range(start, stop):
        item, count = items[i], counts[i]
        for head in range(heads):
            for d in range(width):
                query[d], sums[d] = queries[i, head * width + d], 0.0
            largest = np.float32(-3e38)
            for t in range(count):
                score = np.float32(0.0)
                for d in range(width):
                    score += query[d] * keys[item, head, t, d]
                if len(ladder):
                    score += ladder[count - t, head]
                weights[t] = score
                if score > largest:
                    largest = score
            total = np.float32(0.0)
            for t in range(count):
                weights[t] = np.exp(weights[t] - largest)
                total += weights[t]
            for t in range(count):
                weight = weights[t]
                for d in range(width):
                    sums[d] += weight * values[item, head, t, d]
            for d in range(width):
                mixed[i, head * width + d] = sums[d] / total


@cache
def row_rounding() -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
    """`round_rows` with its kernel compiled, or None where numba is missing."""
    kernel = compiled(_round)
    if kernel is None:
        return None

    def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows -> bytes around 128, and each row's scale: x = (bytes - 128) * scale. (N, I), (N, 1)"""
        whole, scale = torch.empty(x.shape, dtype=torch.uint8), torch.empty(len(x), 1)
        shared_out(kernel, len(x), x.numpy(), whole.numpy(), scale.numpy())
        return whole, scale

    return round_rows


def _round(start: int, stop: int, x: Any, whole: Any, scale: Any) -> None:
    width = x.shape[1]
    for i in range(start, stop):
        largest = np.float32(1e-10)
        for d in range(width):
            largest = max(largest, abs(x[i, d]))
        factor = np.float32(127.0) / largest
        scale[i, 0] = largest / np.float32(127.0)
        for d in range(width):
            whole[i, d] = np.uint8(np.int32(x[i, d] * factor + np.float32(128.5)))  # cutting off after + .5 rounds
