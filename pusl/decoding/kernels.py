"""What torch does slowly on a CPU, by functions that numba compiles: attention, and rounding rows to bytes.

torch's batched products spend as much time on the overhead of a 2 x 64 x 64 product as on reading the keys; here
each key and value is read once, and only those that are seen. Bias, mask and softmax take torch four passes over
the scores, rounding six over the rows; here two. Without numba `machine()` is None and the callers use torch.
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


@cache
def machine() -> Any:
    """The module of compiled functions, or None where numba is missing."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return None
    from pusl.decoding import machine

    return machine


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


def attend(
    queries: Tensor, items: np.ndarray, counts: np.ndarray, keys: Tensor, values: Tensor, ladder: Tensor
) -> Tensor:
    """softmax(query . keys + bias) . values for each row. (N, HD)

    Args:
        queries: one row per token. (N, HD)
        items, counts: each row's item, and how many of the item's first entries it sees. (N,)
        keys, values: of all items, float32 or bfloat16. (R, H, T, D)
        ladder: row d + 1 is the bias of the entry d places before the last one seen; empty: no bias. (L, H)
    """
    mixed = torch.empty(queries.shape)
    if keys.dtype == torch.bfloat16:  # numpy has no such type
        keys, values = keys.view(torch.int16), values.view(torch.int16)
    shared_out(
        machine().attend, len(queries), queries.numpy(), items, counts, keys.numpy(), values.numpy(), ladder.numpy(),
        mixed.numpy(),
    )  # fmt: skip
    return mixed


def soften(scores: Tensor, bias: Tensor, real: Tensor) -> Tensor:
    """softmax(scores + bias) over the real tokens of each text, in place. (B, H, S, S), (H, S, S), (B,)"""
    shared_out(machine().soften, len(scores), scores.numpy(), bias.numpy(), real.numpy())
    return scores


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows -> bytes around 128, and each row's scale: x = (bytes - 128) * scale. (N, I), (N, 1)"""
    if machine() is None:
        scale = x.abs().amax(1, keepdim=True).clamp_min_(1e-10).div_(127)
        return (x / scale).add_(128.5).to(torch.uint8), scale  # cutting off after + .5 rounds; all values are positive
    whole, scale = torch.empty(x.shape, dtype=torch.uint8), torch.empty(len(x), 1)
    shared_out(machine().round_to_bytes, len(x), x.numpy(), whole.numpy(), scale.numpy())
    return whole, scale
