"""A weight matrix -> a prepared product with rows of activations (fp32 or int8).

One rule for every product: what a row gives must not depend on the other rows of its batch, or the
same item would get other keyphrases in another batch. oneDNN's prepacked product keeps to it at any
number of rows and threads (`tests/test_decoding_invariance.py` checks the machine it runs on).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from eval.files import InputError

ROW_MULTIPLE = 8  # callers pad their rows to this, so that few shapes occur and kernels are reused


def has_onednn(device: torch.device) -> bool:
    """Whether prepacked oneDNN products can be used on this device."""
    return device.type == "cpu" and bool(torch._C._has_mkldnn)


class Linear:
    """`x @ weight.T`, prepared once. Rows must come in multiples of ROW_MULTIPLE.

    `relu` is fused into the product; `residual` is added to it.
    """

    def __init__(self, weight: Tensor, relu: bool = False) -> None:
        self.out_features, self.in_features = weight.shape
        self.relu = relu
        self.packed = has_onednn(weight.device)
        weight = weight.detach().float().contiguous()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, 64) if self.packed else weight

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:  # (N, I) -> (N, O)
        if not self.packed:
            y = F.linear(x, self.weight)
            y = y if residual is None else y.add_(residual)
            return y.relu_() if self.relu else y
        ops = torch.ops.mkldnn._linear_pointwise
        if residual is not None:
            return ops.binary(x, residual, self.weight, None, "add")  # type: ignore[no-any-return]
        return ops(x, self.weight, None, "relu" if self.relu else "none", [], "")  # type: ignore[no-any-return]


def make_linear(precision: str) -> Callable[..., Linear]:
    """The kind of product for a precision."""
    if precision != "fp32":
        raise InputError(f"precision {precision!r} is unknown; allowed: fp32")
    return Linear
