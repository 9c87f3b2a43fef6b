"""Rows of floats x a matrix of small whole numbers -> rows of floats, for processors with AVX2 and no VNNI.

Such a processor multiplies bytes in two instructions: pairs of products are added up in 16 bits, then pairs of
those in 32. Libraries allow for activations of 8 bits and need both for every 32 products. Here activations have 7
bits (0 to 127, with a zero point and a scale per row) and so have weights (-63 to 63, a scale per output): four
products fit into 16 bits (4 * 127 * 63 < 2**15), and the second instruction is needed half as often: 3
multiplications for 64 products instead of 4. The sums are exact, so a row's result depends on nothing but the row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pusl.decoding.kernels import machine, shared_out

LARGEST_WEIGHT = 63
TILE, GROUP = 8, 8  # rows and outputs of a tile; inputs taken at once


class ByteProduct:
    """`x @ weight.T` in whole numbers; rows come in multiples of TILE.

    Args:
        weight: whole numbers from -63 to 63. (O, I)
        scale: what one unit of each output's weights stands for. (O,)
        eps: if given, the rows pass T5's norm first; it changes their scale and not a byte of them.
    """

    def __init__(self, weight: Tensor, scale: Tensor, eps: float | None = None) -> None:
        self.eps = -1.0 if eps is None else eps
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
        from pusl.decoding.byte_tile import multiply

        rows = len(x)
        whole = np.empty((rows, self.stride), dtype=np.uint8)
        scale, zero = np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.float32)
        shared_out(machine().round_to_seven_bits, rows, x.numpy(), self.eps, whole, scale, zero)
        y = torch.empty(rows, self.outputs)
        added = y[:0] if residual is None else residual
        shared_out(
            multiply, len(self.tiles), whole, scale, zero, self.tiles, self.scales, self.sums, added.numpy(), relu,
            y.numpy(),
        )  # fmt: skip
        return y


def has_byte_product() -> bool:
    """Whether numba is installed and the processor has AVX2."""
    if machine() is None:
        return False
    from llvmlite.binding import get_host_cpu_features

    return bool(get_host_cpu_features().get("avx2"))


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a cache line."""
    raw = np.empty(array.nbytes + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
