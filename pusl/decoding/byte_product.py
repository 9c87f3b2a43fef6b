"""Rows of floats x a matrix of small whole numbers -> rows of floats, for processors with AVX2 and no VNNI.

Such a processor multiplies bytes in two instructions: pairs of products are added up in 16 bits, then pairs of
those in 32. Libraries allow for activations of 8 bits and need both for every 32 products. Here activations have 7
bits (0 to 127, with a zero point and a scale per row) and so have weights (-63 to 63, a scale per output): four
products fit into 16 bits (4 * 127 * 63 < 2**15), and the second instruction is needed half as often: 3
multiplications for 64 products instead of 4. The sums are exact, so a row's result depends on nothing but the row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pusl.decoding.kernels import compiled, shared_out

LARGEST_WEIGHT = 63
TILE, GROUP = 8, 8  # rows and outputs of a tile; inputs taken at once


class ByteProduct:
    """`x @ weight.T` in whole numbers; rows come in multiples of TILE.

    Args:
        weight: whole numbers from -63 to 63. (O, I)
        scale: what one unit of each output's weights stands for. (O,)
    """

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        outputs, inputs = weight.shape
        groups, blocks = -(-inputs // GROUP), -(-outputs // TILE)
        whole = np.zeros((blocks * TILE, groups * GROUP), dtype=np.int8)
        whole[:outputs, :inputs] = weight.numpy()
        tiles = whole.reshape(blocks, TILE, groups, 2, GROUP // 2).transpose(0, 2, 3, 1, 4)
        self.tiles = _aligned(tiles.reshape(blocks, groups, GROUP * TILE))
        self.outputs, self.stride = outputs, groups * GROUP + 64  # no power of two: rows would share cache lines
        self.scales = np.zeros(blocks * TILE, dtype=np.float32)
        self.scales[:outputs] = scale.numpy()
        self.sums = whole.sum(1, dtype=np.int32).astype(np.float32) * self.scales  # what a zero point of 1 adds

    def __call__(self, x: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:  # (N, I) -> (N, O)
        round_rows, multiply = _kernels()
        rows = len(x)
        whole = np.empty((rows, self.stride), dtype=np.uint8)
        scale, zero = np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.float32)
        shared_out(round_rows, rows, x.numpy(), whole, scale, zero)
        y = torch.empty(rows, self.outputs)
        added = y[:0] if residual is None else residual
        shared_out(
            multiply, len(self.tiles), whole, scale, zero, self.tiles, self.scales, self.sums, added.numpy(), relu,
            y.numpy(),
        )  # fmt: skip
        return y


@cache
def has_byte_product() -> bool:
    """Whether numba is installed and the processor has AVX2."""
    try:
        import numba  # noqa: F401
        from llvmlite.binding import get_host_cpu_features
    except ImportError:
        return False
    return bool(get_host_cpu_features().get("avx2"))


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a cache line."""
    raw = np.empty(array.nbytes + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _round_rows(start: int, stop: int, x: Any, whole: Any, scale: Any, zero: Any) -> None:
    """x = (whole - zero) * scale, whole from 0 to 127; zero itself is met exactly."""
    width = x.shape[1]
    for i in range(start, stop):
        low, high = np.float32(0.0), np.float32(1e-10)
        for d in range(width):
            low = min(low, x[i, d])
            high = max(high, x[i, d])
        step = (high - low) / np.float32(127.0)
        factor = np.float32(1.0) / step
        middle = np.float32(np.int32(np.float32(0.5) - low * factor))
        scale[i], zero[i] = step, middle
        for d in range(width):
            value = np.int32(x[i, d] * factor + middle + np.float32(0.5))  # cutting off after + .5 rounds
            whole[i, d] = np.uint8(min(value, np.int32(127)))


@cache
def _kernels() -> tuple[Callable[..., None], Callable[..., None]]:
    from pusl.decoding.byte_tile import multiply

    round_rows, product = compiled(_round_rows), compiled(multiply)
    assert round_rows is not None and product is not None  # numba is there, or its tile would not be
    return round_rows, product
