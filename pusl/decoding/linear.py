"""A weight matrix -> a prepared product with rows of activations (fp32 or int8).

One rule for every product: what a row gives must not depend on the other rows of its batch, or the
same item would get other keyphrases in another batch. In multiples of eight rows torch's own fp32
product and oneDNN's prepacked one keep to it at any number of threads (a test checks the machine it
runs on); the int8 product is exact in whole numbers, and its activations are scaled row by row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pusl.decoding.byte_product import LARGEST_WEIGHT, ByteProduct, has_byte_product
from pusl.decoding.kernels import round_rows
from pusl_eval.files import InputError

PRECISIONS = ("fp32", "int8")
ROW_MULTIPLE = 8  # callers pad their rows to this: fewer rows may take another path through the library
PREPACKED_FROM = 1 << 23  # weights; a vocabulary is too large to be repacked by every product, a layer is not


def has_onednn(device: torch.device) -> bool:
    """Whether prepacked oneDNN products can be used on this device."""
    return device.type == "cpu" and bool(torch._C._has_mkldnn)


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
        """The rows as the matrix wants them."""
        return x if self.eps is None else F.rms_norm(x, x.shape[-1:], None, self.eps)


class QuantizedLinear(Linear):
    """The same with whole-number weights (one scale per output) and activations (one scale per row).

    With VNNI oneDNN's product of 8-bit numbers is used, otherwise our own of 7-bit numbers, and oneDNN's with 7-bit
    weights where that cannot be had (without VNNI pairs are added in 16 bits: 255 * 63 * 2 < 2**15).
    """

    def __init__(self, weight: Tensor, relu: bool = False, eps: float | None = None) -> None:
        self.relu, self.eps = relu, eps
        weight = weight.detach().float()
        largest = 127 if _has_vnni() else LARGEST_WEIGHT
        scale = (weight.abs().amax(1) / largest).clamp_min(1e-12)
        whole = (weight / scale[:, None]).round().to(torch.int8)
        self.own = ByteProduct(whole, scale, eps) if has_byte_product() and not _has_vnni() else None
        if self.own:
            return
        self.weight = torch.ops.onednn.qlinear_prepack(whole, None)
        self.scale, self.zero = scale, torch.zeros(len(scale), dtype=torch.int32)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:  # (N, I) -> (N, O)
        if self.own:
            return self.own(x, self.relu, residual)
        whole, scale = round_rows(self.normalized(x))
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            whole, 1.0, 128, self.weight, self.scale, self.zero, None, 1.0, 0, torch.float32,
            "relu" if self.relu else "none", [], "",
        )  # fmt: skip
        y.mul_(scale)
        return y if residual is None else y.add_(residual)


def _has_vnni() -> bool:
    capability = torch.backends.cpu.get_cpu_capability()
    return capability.startswith("AVX512") and bool(torch.cpu._is_vnni_supported())


def make_linear(precision: str, device: torch.device) -> Callable[..., Linear]:
    """The kind of product for a precision."""
    if precision not in PRECISIONS:
        raise InputError(f"precision {precision!r} is unknown; allowed: {', '.join(PRECISIONS)}")
    if precision == "int8" and not has_onednn(device):
        raise InputError("precision 'int8' needs a CPU and a torch built with oneDNN; use fp32")
    return QuantizedLinear if precision == "int8" else Linear
