"""Model -> optimizer: AdamW for pretrained models, Muon for random ones.

A random T5 has embeddings of size 1 and weight matrices about twenty times smaller. No single step length suits
both: the embeddings hardly move, and for thousands of steps the words of the text carry no information. Muon
(Jordan et al. 2024) gives each matrix a step of one fixed size: the momentum, made orthogonal by a few
Newton-Schulz iterations. Embeddings, of which a step touches few rows, and norms keep Adam, with step lengths
in proportion to their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import Module, Parameter

MOMENTUM = 0.95
BETAS, EPSILON = (0.9, 0.999), 1e-8
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan's coefficients: singular values end between .7 and 1.2
EMBEDDING_RATE, VECTOR_RATE = 1.0, 0.1  # step lengths of Adam, as shares of the matrices'


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """(n, rows, columns) -> the nearest orthogonal matrices, roughly: all singular values near 1.

    >>> values = torch.linalg.svdvals(orthogonal(torch.diag(torch.tensor([4.0, 1.0, 0.1]))[None]))
    >>> bool((values > 0.6).all() and (values < 1.3).all())
    True
    """
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    if x.shape[2] >= 2 * x.shape[1]:
        x = _by_gram(x)
    else:
        a, b, c = QUINTIC
        for _ in range(ITERATIONS):
            square = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT


def _by_gram(x: torch.Tensor) -> torch.Tensor:
    """The same iterations on the small square x xT alone, applied to x once: fewer products for long matrices."""
    a, b, c = QUINTIC
    square, total = x @ x.mT, torch.eye(x.shape[1], dtype=x.dtype, device=x.device).expand(len(x), -1, -1)
    for _ in range(ITERATIONS):
        factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        square, total = factor @ square @ factor, factor @ total
    return total @ x


class Muon(torch.optim.Optimizer):
    """Muon for weight matrices, Adam for embeddings, position biases and norms; one learning rate for all.

    Each process needs whole matrices, so it works on one process and with DDP, not with sharded weights.
    """

    def __init__(self, model: Module, lr: float, weight_decay: float = 0.0) -> None:
        parts: dict[str, list[Parameter]] = {"matrices": [], "embeddings": [], "vectors": []}
        for name, parameter in model.named_parameters():
            parts[_part(name, parameter)].append(parameter)
        rates = {"matrices": 1.0, "embeddings": EMBEDDING_RATE, "vectors": VECTOR_RATE}
        groups = [
            {"params": parameters, "lr": lr * rates[part], "part": part}
            for part, parameters in parts.items()
            if parameters
        ]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; parameters without a gradient do not move."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["weight_decay"] and moving:
                torch._foreach_mul_(moving, 1 - group["lr"] * group["weight_decay"])
            if group["part"] == "matrices":
                for same in _by_shape(moving):
                    self._muon_update(same, group["lr"])
            else:
                for parameter in moving:
                    self._adam_update(parameter, group["lr"])
        return loss

    def _muon_update(self, parameters: list[Parameter], lr: float) -> None:
        """Muon's step for matrices of one shape."""
        gradients = torch.stack([_gradient(p) for p in parameters])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(gradient)
            state["momentum"].lerp_(gradient, 1 - MOMENTUM)
            gradient.lerp_(state["momentum"], MOMENTUM)  # Nesterov
        rows, columns = parameters[0].shape
        scale = -lr * max(1.0, rows / columns) ** 0.5
        for parameter, direction in zip(parameters, orthogonal(gradients), strict=True):
            parameter.add_(direction, alpha=scale)

    def _adam_update(self, parameter: Parameter, lr: float) -> None:
        gradient, state = _gradient(parameter), self.state[parameter]
        if not state:
            state.update(step=0, mean=torch.zeros_like(gradient), square=torch.zeros_like(gradient))
        state["step"] += 1
        state["mean"].lerp_(gradient, 1 - BETAS[0])
        state["square"].mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        size = (state["square"] / (1 - BETAS[1] ** state["step"])).sqrt_().add_(EPSILON)
        parameter.addcdiv_(state["mean"], size, value=-lr / (1 - BETAS[0] ** state["step"]))


def _part(name: str, parameter: Parameter) -> str:
    if parameter.ndim != 2:
        return "vectors"
    words = ("shared", "embed_tokens", "lm_head")
    if any(word in name for word in words):
        return "embeddings"
    return "vectors" if "relative_attention_bias" in name else "matrices"


def _by_shape(parameters: list[Parameter]) -> Iterator[list[Parameter]]:
    same: dict[Any, list[Parameter]] = {}
    for parameter in parameters:
        same.setdefault((parameter.shape, parameter.device, parameter.dtype), []).append(parameter)
    yield from same.values()


def _gradient(parameter: Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad
