"""Texts + trees of phrases -> the log-probability of every phrase, computed on the device.

A batch of items costs one packed copy of its trees to the device, the copies of its texts (three at most), and one
packed copy of all its numbers back; the host reads it while the next batch runs. Nothing waits in between. The trees
are fed in blocks of columns, as on the CPU: one step's logits are all that exists at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pusl.decoding.deadline import check_time
from pusl.decoding.device.slots import Slots, bucket, slot_bucket
from pusl.decoding.device.transfer import Mail, to_device

if TYPE_CHECKING:
    from pusl.decoding.scoring import PhraseTree

NODE = 2  # numbers of a node before its ancestors: its token and its parent


class TreeSlots(Slots):
    """Items whose trees are fed block by block."""

    def score(self, trees: Sequence[PhraseTree], ends: Tensor, columns: int) -> Tensor:
        """For each node log P(its token), and log P(an end after it). (2, items, nodes)"""
        blocks = [tree.blocks(columns) for tree in trees]  # most first
        nodes = blocks[0] * columns
        packed = to_device(_packed(trees, slot_bucket(len(trees)), nodes), self.t5.device).long()  # (n, L, 2 + D)
        found = torch.zeros(2, len(packed), nodes, device=self.t5.device)
        for block in range(blocks[0]):
            check_time()
            going = min(len(packed), slot_bucket(sum(count > block for count in blocks)))  # the others have ended
            self._feed(packed[:going], block * columns, columns, ends, found[:, :going])
        return found

    def _feed(self, packed: Tensor, low: int, columns: int, ends: Tensor, found: Tensor) -> None:
        t5, n, used, text = self.t5, len(packed), bucket(low + columns), self.read_length()
        fed, line = packed[:, low : low + columns], self.entries[low : low + columns]
        steps = (self.entries[: fed.shape[2] - NODE] + 1).expand(n, columns, -1)
        # What is no ancestor stays 0, which hides it; the -1 behind a node's ancestors go behind the last entry.
        behind = fed.new_zeros(n, columns, used + 1)
        behind.scatter_(2, fed[..., NODE:].remainder(used + 1), steps)
        x = t5.decode(
            fed[..., 0], (line + self.base[:n]).flatten(), t5.bias(behind[..., :used]), self.cache[:, :n],
            self.memory[:, :n, :text], self.unread[:n, ..., :text],
        )  # fmt: skip
        logits = t5.logits(x)  # (n*Q, V)
        total = logits.logsumexp(-1)  # (n*Q,)
        end = logits.index_select(1, ends).logsumexp(-1) - total
        found[1, :, low : low + columns] = end.view(n, columns)
        row = packed[..., 1] - low  # which row of this block holds the parent
        here = (row >= 0) & (row < columns)
        row = row.clamp(0, columns - 1)
        chosen = logits.view(n, -1).gather(1, row * logits.shape[1] + packed[..., 0])
        chosen -= total.view(n, columns).gather(1, row)
        found[0].copy_(torch.where(here, chosen, found[0]))


def _packed(trees: Sequence[PhraseTree], count: int, nodes: int) -> np.ndarray:
    """Each node's token, parent and ancestors, itself first; -1 where there is none. (count, nodes, 2 + depth)"""
    tables = {id(tree): tree.ancestors() for tree in trees}
    depth = max(table.shape[1] for table in tables.values())
    packed = np.full((count, nodes, NODE + depth), -1, np.int32)
    packed[..., 0] = 0
    for row, tree in enumerate(trees):
        table = tables[id(tree)]
        packed[row, : len(tree), 0], packed[row, : len(tree), 1] = tree.tokens, tree.parents
        packed[row, : len(tree), NODE : NODE + table.shape[1]] = table
    return packed


def run_scores(
    pool: TreeSlots,
    texts: Sequence[Sequence[int]],
    trees: Sequence[PhraseTree],
    order: Sequence[int],
    ends: Sequence[int],
    columns: int,
) -> list[list[float]]:
    """Every text's scores; `order` has the trees of most blocks first."""
    found: list[list[float]] = [[] for _ in texts]
    mail = Mail(pool.t5.device)
    closing = to_device(np.array(ends, dtype=np.int64), pool.t5.device)

    def read() -> None:
        numbers, batch = mail.take()
        for row, i in enumerate(batch):
            size = len(trees[i])
            found[i] = trees[i].scores(*numbers[:, row, :size].astype(np.float64))

    for first in range(0, len(order), pool.count):
        batch = order[first : first + pool.count]
        pool.fill(range(len(batch)), [texts[i] for i in batch])
        mail.post(pool.score([trees[i] for i in batch], closing, columns), batch)
        while len(mail) > 1:
            read()
    while len(mail):
        read()
    return found
