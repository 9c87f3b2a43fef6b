"""A weight matrix -> a prepared product with rows of activations (fp32 or int8).

One rule for every product: a row's result must not depend on the other rows of its batch, or an item
would get other keyphrases in another batch. In multiples of eight rows torch's own fp32 product and
oneDNN's prepacked one keep this rule at any number of threads (a test checks the machine it runs on).
The int8 product adds integers, which is exact, and scales its activations row by row. Attention adds up
as many entries as the longest text of the batch has, so `weighted_sum` takes them in parts of one size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pusl.decoding.cpu.kernels import GROUP, TILE, load_kernels, round_rows, run_on_threads
from pusl.process import ONEDNN_LIMIT, half_amx, onednn_is_limited
from pusl_eval.files import InputError

PRECISIONS = ("fp32", "int8")
ROW_MULTIPLE = 8  # callers pad their rows to this: fewer rows may take another path through the library
LARGEST_7BIT_WEIGHT = 63
ENTRIES = 128  # a library adds up more of them in parts whose size depends on their number
PREPACKED_FROM = 1 << 23  # weights: repacking a layer in every product is cheap, repacking a vocabulary is not


def has_onednn(device: torch.device) -> bool:
    """Whether prepacked oneDNN products can be used on this device."""
    return device.type == "cpu" and bool(torch._C._has_mkldnn)


def has_seven_bit_product() -> bool:
    """Whether numba is installed and the processor has AVX2."""
    if load_kernels() is None:
        return False
    from llvmlite.binding import get_host_cpu_features

    return bool(get_host_cpu_features().get("avx2"))


def _has_vnni() -> bool:
    capability = torch.backends.cpu.get_cpu_capability()
    return capability.startswith("AVX512") and bool(torch.cpu._is_vnni_supported())


class Linear:
    """`x @ weight.T` in fp32, prepared once. Rows come in multiples of ROW_MULTIPLE.

    `relu` is applied to the product; `residual` is added to it. With `eps` the rows pass T5's norm first (without
    its weight, which the caller has folded into the matrix).
    """

    def __init__(self, weight: Tensor, relu: bool = False, eps: float | None = None) -> None:
        self.relu, self.eps = relu, eps
        weight = weight.detach().float()
        self.packed = has_onednn(weight.device) and weight.numel() >= PREPACKED_FROM
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 64)
        else:
            self.weight = weight.t().contiguous()

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:  # (N, I) -> (N, O)
        y: Tensor
        x = self.normalized(x)
        if self.packed:
            y = torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")
            y = y if residual is None else y.add_(residual)
        else:
            y = x @ self.weight if residual is None else torch.addmm(residual, x, self.weight)
        return y.relu_() if self.relu else y

    def normalized(self, x: Tensor) -> Tensor:
        """The rows after T5's norm, where the product includes it."""
        return x if self.eps is None else F.rms_norm(x, x.shape[-1:], None, self.eps)


class SevenBitProduct:
    """`x @ weight.T` in integers, for processors with AVX2 and without VNNI. Rows come in multiples of TILE.

    Such a processor multiplies bytes in two instructions: one adds pairs of products in 16 bits, the next adds pairs
    of those in 32 bits. Libraries allow for activations of 8 bits and need both for every 32 products. Here
    activations have 7 bits (0 to 127, with a zero point and a scale per row), and so have weights (-63 to 63, a scale
    per output). Four products fit into 16 bits (4 * 127 * 63 < 2**15), and the second instruction is needed half as
    often: 3 multiplications for 64 products instead of 4.

    Args:
        weight: integers from -63 to 63. (O, I)
        scale: the value of one unit of each output's weights. (O,)
        eps: if given, the rows pass T5's norm first, which changes their scale and none of their bytes.
    """

    def __init__(self, weight: Tensor, scale: Tensor, eps: float | None = None) -> None:
        self.eps = -1.0 if eps is None else eps
        outputs, inputs = weight.shape
        groups, blocks = -(-inputs // GROUP), -(-outputs // TILE)
        whole = np.zeros((blocks * TILE, groups * GROUP), dtype=np.int8)
        whole[:outputs, :inputs] = weight.numpy()
        tiles = whole.reshape(blocks, TILE, groups, 2, GROUP // 2).transpose(0, 2, 3, 1, 4)
        self.tiles = _aligned(tiles.reshape(blocks, groups, GROUP * TILE))
        self.outputs, self.stride = outputs, groups * GROUP + 64  # not a power of two, or rows would share cache lines
        self.scales = np.zeros(blocks * TILE, dtype=np.float32)
        self.scales[:outputs] = scale.numpy()
        self.sums = whole.sum(1, dtype=np.int32).astype(np.float32) * self.scales  # added by a zero point of 1

    def __call__(self, x: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:  # (N, I) -> (N, O)
        rows = len(x)
        whole = np.empty((rows, self.stride), dtype=np.uint8)
        scale, zero = np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.float32)
        run_on_threads(load_kernels().round_to_seven_bits, rows, x.numpy(), self.eps, whole, scale, zero)
        y = torch.empty(rows, self.outputs)
        added = y[:0] if residual is None else residual
        run_on_threads(
            load_kernels().multiply, len(self.tiles), whole, scale, zero, self.tiles, self.scales, self.sums,
            added.numpy(), relu, y.numpy(),
        )  # fmt: skip
        return y


class QuantizedLinear(Linear):
    """The same with integer weights (one scale per output) and activations (one scale per row).

    With VNNI it uses oneDNN's product of 8-bit numbers, otherwise `SevenBitProduct`. Without numba or AVX2 it uses
    oneDNN's product with 7-bit weights (without VNNI pairs are added in 16 bits: 255 * 63 * 2 < 2**15).
    """

    def __init__(self, weight: Tensor, relu: bool = False, eps: float | None = None) -> None:
        self.relu, self.eps = relu, eps
        weight = weight.detach().float()
        largest = 127 if _has_vnni() else LARGEST_7BIT_WEIGHT
        scale = (weight.abs().amax(1) / largest).clamp_min(1e-12)
        whole = (weight / scale[:, None]).round().to(torch.int8)
        self.seven_bit = SevenBitProduct(whole, scale, eps) if has_seven_bit_product() and not _has_vnni() else None
        if self.seven_bit:
            return
        self.weight = torch.ops.onednn.qlinear_prepack(whole, None)
        self.scale, self.zero = scale, torch.zeros(len(scale), dtype=torch.int32)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:  # (N, I) -> (N, O)
        if self.seven_bit:
            return self.seven_bit(x, self.relu, residual)
        whole, scale = round_rows(self.normalized(x))
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            whole, 1.0, 128, self.weight, self.scale, self.zero, None, 1.0, 0, torch.float32,
            "relu" if self.relu else "none", [], "",
        )  # fmt: skip
        y.mul_(scale)
        return y if residual is None else y.add_(residual)


def make_linear(precision: str, device: torch.device) -> Callable[..., Linear]:
    """The kind of product for a precision."""
    if precision not in PRECISIONS:
        raise InputError(f"precision {precision!r} is unknown; allowed: {', '.join(PRECISIONS)}")
    if precision == "int8" and not has_onednn(device):
        raise InputError("precision 'int8' needs a CPU and a torch built with oneDNN; use fp32")
    if precision == "int8" and half_amx() and not onednn_is_limited():
        raise InputError(
            "precision 'int8' would end this process: its virtual machine hides half of AMX; "
            f"set {ONEDNN_LIMIT}=AVX512_CORE_FP16, or call pusl.process.prepare_process() before any product"
        )
    return QuantizedLinear if precision == "int8" else Linear


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """`weights @ values`, to the same bits however many entries of weight 0 follow. (B, Q, T), (B, T, D) -> (B, Q, D)

    >>> weights, values = torch.rand(2, 3, 300), torch.rand(2, 300, 64)
    >>> torch.equal(weighted_sum(weights, values), weighted_sum(F.pad(weights, (0, 50)), F.pad(values, (0, 0, 0, 50))))
    True
    """
    total: Tensor = weights[..., :ENTRIES] @ values[:, :ENTRIES]
    for start in range(ENTRIES, values.shape[1], ENTRIES):
        part = slice(start, start + ENTRIES)
        total.baddbmm_(weights[..., part], values[:, part])
    return total


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a cache line."""
    raw = np.empty(array.nbytes + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
