"""Hidden states -> logits of the tokens that keyphrases use, and of a few others drawn anew in each batch.

A pretrained T5 has 32,000 tokens, mT5 250,000; the keyphrases of a catalog use a few thousand. The others are never
right, and after a few steps their probability is almost nothing. So the softmax keeps all tokens of the training
keyphrases, and estimates the rest from a sample: n of the m others, each with log(m / n) added to its logit, stand
for all m. Rows that were never drawn keep their pretrained values, as a rare token does in a full softmax.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pusl.tokenizer import TokenIds


class SampledSoftmax:
    """A head over `kept` ids and `count` of the others; with no others to draw from it is the full softmax.

    >>> head = SampledSoftmax(np.array([1, 3]), size=6, count=2)
    >>> weight = torch.arange(6.0)[:, None]
    >>> torch.manual_seed(0).initial_seed(), head.logits(torch.ones(1, 1), weight)[:, :2]
    (0, tensor([[1., 3.]]))
    >>> head.places(torch.tensor([3, -100, 1]))
    tensor([   1, -100,    0])
    """

    def __init__(self, kept: np.ndarray, size: int, count: int) -> None:
        chosen = np.unique(kept)
        self.kept = torch.from_numpy(chosen.astype(np.int64))  # (K,)
        self.others = torch.from_numpy(np.setdiff1d(np.arange(size), chosen))  # (M,)
        self.place = torch.full((size,), -1).scatter(0, self.kept, torch.arange(len(chosen)))  # (V,)
        self.count = min(count, len(self.others))

    @classmethod
    def of_keyphrases(cls, ids: np.ndarray, tokens: TokenIds, head: Tensor, count: int) -> SampledSoftmax:
        """Keeps the ids of all training keyphrases and those that structure a target."""
        return cls(np.append(ids, dataclasses.astuple(tokens)), len(head), count)

    def logits(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """(N, D) and the head's whole (V, D) -> (N, K + n). Draws from torch's random numbers."""
        self._move(hidden.device)
        if not self.count:
            return functional.linear(hidden, weight.index_select(0, self.kept))
        drawn = self.others[torch.randperm(len(self.others), device=hidden.device)[: self.count]]
        found = functional.linear(hidden, weight.index_select(0, torch.cat([self.kept, drawn])))
        stand_for = found.new_zeros(found.shape[1])
        stand_for[len(self.kept) :] = math.log(len(self.others) / self.count)
        return found + stand_for

    def places(self, ids: Tensor) -> Tensor:
        """Ids -> columns of `logits`; negative numbers (padding) stay."""
        self._move(ids.device)
        return torch.where(ids < 0, ids, self.place[ids.clamp(min=0)])

    def _move(self, device: torch.device) -> None:
        if self.kept.device != device:
            self.kept, self.others, self.place = (x.to(device) for x in (self.kept, self.others, self.place))
