"""A universe's tree of token ids -> the same tree on the device: which tokens may follow, and the node behind a token.

A node's few children are looked up one by one; nodes with many children (the root first of all) have a row of a table
instead. Both take the same number of kernels for any number of beams.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pusl.decoding.universe import UniverseRule

TABLE_BYTES = 256 << 20
FEWEST = 16  # children that are always looked up one by one


class Trie:
    """A `UniverseRule` whose arrays live on the device."""

    def __init__(self, rule: UniverseRule, vocab_size: int, device: torch.device) -> None:
        self.rule, self.vocab_size = rule, vocab_size
        universe = rule.universe
        first = np.asarray(universe.first, dtype=np.int64)  # (N + 1,)
        tokens = np.asarray(universe.tokens, dtype=np.int64)
        counts = np.diff(first)
        self.few = FEWEST
        while (counts > self.few).sum() * (vocab_size + 1) > TABLE_BYTES:
            self.few *= 2
        many = np.union1d([0], np.flatnonzero(counts > self.few))
        table = np.zeros((len(many) + 1, vocab_size + 1), dtype=bool)  # row 0: none; the last column is never read
        for row, node in enumerate(many.tolist()):
            table[row + 1, tokens[first[node] : first[node + 1]]] = True
        rows = np.zeros(len(tokens), dtype=np.int64)
        rows[many] = np.arange(len(many)) + 1
        parents = np.repeat(np.arange(len(counts)), counts)
        self.table = torch.from_numpy(table).to(device)
        self.rows, self.first, self.tokens = (torch.from_numpy(part).to(device) for part in (rows, first, tokens))
        self.terminal = torch.from_numpy(np.array(universe.terminal, dtype=bool)).to(device)
        self.keys = torch.from_numpy(parents * vocab_size + tokens[1:]).to(device)  # ascending, as nodes are
        self.child = torch.arange(self.few, device=device)

    def apply(self, logprobs: Tensor, nodes: Tensor) -> Tensor:
        """Scores of every next token: -inf (closed) or minus the bonus (prefer) outside. (n, W, V), (n, W)"""
        inside = nodes >= 0
        at = nodes.clamp_min(0)
        row = self.rows[at]
        child = self.first[at][..., None] + self.child  # (n, W, few)
        real = (child < self.first[at + 1][..., None]) & (row == 0)[..., None]
        tokens = torch.where(real, self.tokens[child.clamp_max(len(self.tokens) - 1)], self.vocab_size)
        end = torch.where(self.terminal[at], self.rule.end, self.vocab_size)[..., None]
        allowed = self.table[row].scatter_(2, torch.cat([tokens, end], 2), True)[..., : self.vocab_size]
        if self.rule.bonus is None:
            return torch.where(allowed, logprobs, -torch.inf)
        return torch.where(allowed | ~inside[..., None], logprobs, logprobs - self.rule.bonus)

    def descend(self, nodes: Tensor, tokens: Tensor) -> Tensor:
        """The node behind each (node, token); -1 outside."""
        wanted = nodes * self.vocab_size + tokens
        place = torch.searchsorted(self.keys, wanted).clamp_max_(len(self.keys) - 1)
        found = (nodes >= 0) & (self.keys[place] == wanted)
        return torch.where(found, place + 1, -1)
