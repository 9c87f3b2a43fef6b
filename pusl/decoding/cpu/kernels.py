"""Tensors -> tensors by compiled kernels, where torch is slow on a CPU: attention, softmax, rounding rows to bytes.

torch's batched products spend as much time on the overhead of a 2 x 64 x 64 product as on reading the keys. The
kernels read each key and value once, and only the visible ones. torch needs four passes over the scores for bias,
mask and softmax, and six over the rows for rounding; the kernels need two. Without numba `load_kernels()` is None
and the callers use torch.
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

TILE, GROUP = 8, 8  # rows and outputs of a tile of the 7-bit product; inputs read at once


@cache
def load_kernels() -> Any:
    """The module of compiled kernels, or None where numba is not installed."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return None
    from pusl.decoding.cpu import numba_kernels

    return numba_kernels


def run_on_threads(kernel: Callable[..., None], rows: int, *arguments: Any) -> None:
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


def attend(
    queries: Tensor, items: np.ndarray, counts: np.ndarray, keys: Tensor, values: Tensor, relative_bias: Tensor
) -> Tensor:
    """softmax(query . keys + bias) . values for each row. (N, HD)

    Args:
        queries: one row per token. (N, HD)
        items, counts: each row's item, and how many of the item's first entries are visible to it. (N,)
        keys, values: of all items, float32 or bfloat16. (R, H, T, D)
        relative_bias: row d + 1 is the bias of the entry d places before the last visible one; empty: no bias. (L, H)
    """
    mixed = torch.empty(queries.shape)
    if keys.dtype == torch.bfloat16:  # numpy has no such type
        keys, values = keys.view(torch.int16), values.view(torch.int16)
    run_on_threads(
        load_kernels().attend, len(queries), queries.numpy(), items, counts, keys.numpy(), values.numpy(),
        relative_bias.numpy(), mixed.numpy(),
    )  # fmt: skip
    return mixed


def masked_softmax(scores: Tensor, bias: Tensor, real: Tensor) -> Tensor:
    """softmax(scores + bias) over the real tokens of each text, in place. (B, H, S, S), (H, S, S), (B,)"""
    run_on_threads(load_kernels().masked_softmax, len(scores), scores.numpy(), bias.numpy(), real.numpy())
    return scores


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows -> bytes around 128, and each row's scale: x = (bytes - 128) * scale. (N, I), (N, 1)"""
    if load_kernels() is None:
        scale = x.abs().amax(1, keepdim=True).clamp_min_(1e-10).div_(127)
        return (x / scale).add_(128.5).to(torch.uint8), scale  # truncating after + .5 rounds; all values are positive
    whole, scale = torch.empty(x.shape, dtype=torch.uint8), torch.empty(len(x), 1)
    run_on_threads(load_kernels().round_to_bytes, len(x), x.numpy(), whole.numpy(), scale.numpy())
    return whole, scale
