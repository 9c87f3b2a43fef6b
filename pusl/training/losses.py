"""Logits + right answers -> the summed loss. Pure functions on tensors.

Both losses are SUMS over positions: the trainer divides by the number of target tokens of the whole
optimizer step, so that accumulation, several processes and batches of different sizes all weigh
every token alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNUSED = -1  # padding in lists of allowed ids


def sequence_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy summed over positions.

    logits: (N, V), labels: (N,). The loss of One2One, One2Seq and plain PUSL.

    >>> sequence_loss(torch.zeros(2, 4), torch.tensor([0, 3])).item()  # 2 ln 4
    2.7725887298583984
    """
    return torch.nn.functional.cross_entropy(_precise(logits), labels, reduction="sum")


def multi_softmax_loss(logits: Tensor, allowed: Tensor) -> Tensor:
    """Every allowed id is right: log Σ_V exp z − log Σ_A exp z, summed over positions.

    logits: (N, V); allowed: (N, M) ids, rows filled up with -1, at least one id per row. One allowed id
    per row gives cross entropy; the whole vocabulary gives 0. Simig et al. 2022 (GROOV), section 3.
    The sets are gathered from lists: a dense (N, V) target would be a gigabyte.

    >>> multi_softmax_loss(torch.zeros(1, 4), torch.tensor([[0, 3, -1]])).item()  # ln 4 - ln 2
    0.6931471824645996
    """
    logits = _precise(logits)
    chosen = logits.gather(1, allowed.clamp(min=0)).masked_fill(allowed == UNUSED, -torch.inf)  # (N, M)
    return (logits.logsumexp(1) - chosen.logsumexp(1)).sum()


def _precise(logits: Tensor) -> Tensor:
    """At least float32: sums over a vocabulary lose too much in half precision."""
    return logits if logits.dtype == torch.float64 else logits.float()
