"""Beams of every item -> their best continuations, with the whole search on the device.

The beams of an item are a tree in one cache. `positions` holds, for every beam, the position of each cache entry that
the beam sees, so that attention needs no list of ancestors, and nothing in the cache moves when beams are reordered.
A step writes the phrases that ended into a record, which travels to the host while the next step runs; see
`phrase_books.py` for what the host does with it. Candidates are ranked as in `search.py`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pusl.decoding.device.slots import Slots, rule_table
from pusl.decoding.device.transfer import to_device
from pusl.decoding.device.transformer import DeviceT5
from pusl.decoding.device.trie import Trie
from pusl.decoding.rules import Rules
from pusl.decoding.universe import UniverseRule

UNSEEN = 1 << 40  # the position of an entry that a beam does not see
USED, POSITION, DEPTH, LEFT, NEXT = range(5)
ORDERS = 4  # numbers of an order before its opening: given or not, prefix, opening tokens, trail tokens


def beam_length(rules: Rules, beams: int, opening: int, follows: bool) -> int:
    """Cache entries that an item needs at most, and one that takes what must not be kept."""
    cap = rules.max_phrase_tokens
    behind = rules.phrases * (cap + 2) if follows else 0
    return opening + behind + beams * (cap + 1) + 1


class BeamSlots(Slots):
    """One phrase search per slot.

    A row of `state` holds: cache entries used, the position of the beams' last tokens, their number of tokens, context
    tokens still to feed, and the place of the next one in `opening`. A search begins with its context (`LEFT` tokens);
    one of at most `beams` tokens is fed in one step and stands in `tips` from the start.

    Args:
        beams: unfinished phrases per search.
        opening: longest context that is fed.
        follows: whether a search may go on behind a phrase that the one before found.
        constraint: a universe.
    """

    def __init__(
        self, t5: DeviceT5, count: int, text_length: int, length: int, rules: Rules, beams: int, opening: int,
        follows: bool, constraint: UniverseRule | None,
    ) -> None:  # fmt: skip
        super().__init__(t5, count, text_length, length)
        self.rules, self.beams, self.follows, self.cap = rules, beams, follows, rules.max_phrase_tokens
        tokens, device = rules.tokens, t5.device
        self.end = tokens.eok if rules.marks else tokens.eos
        never = {*tokens.control, *rules.banned} - {self.end} - ({tokens.sep} if rules.whole else set())
        self.table = rule_table(t5.vocab_size, sorted(never), [self.end], [self.end], self.cap).to(device)
        self.width = min(2 * beams, t5.vocab_size)  # candidates kept
        self.longest_opening = opening
        self.several = opening > beams  # a context may take several steps
        self.trie = None if constraint is None else Trie(constraint, t5.vocab_size, device)
        self.prefers = constraint is not None and constraint.bonus is not None  # score and log-probability differ

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.state, self.tips, self.opening = integers(count, 5), integers(count, beams), integers(count, opening)
        self.ids, self.nodes = integers(count, beams, self.cap), integers(count, beams)
        self.paths = integers(count, beams, self.cap) if follows else None
        self.positions = integers(count, beams, length) + UNSEEN
        self.score = torch.full((count, beams), -torch.inf, dtype=self.real, device=device)
        self.logprob = self.score.clone() if self.prefers else self.score
        self.pick = integers(count, beams)
        self.column = torch.arange(beams, device=device)
        self.eye = torch.eye(beams, dtype=torch.bool, device=device)
        self.deep = torch.arange(self.cap, device=device)
        parts = beams * (1 + self.prefers + self.cap * (1 + follows)) + 1
        self.record = integers(count, parts)

    def order(self, orders: np.ndarray) -> None:
        """Opens new searches, or none in slots whose order begins with 0. (n, ORDERS + opening + cap)"""
        there = to_device(orders, self.t5.device)
        given = there[:, :1] > 0
        prefix, left, trail = there[:, 1:2], there[:, 2:3], there[:, 3:4]
        opening = there[:, ORDERS : ORDERS + self.longest_opening]
        if self.follows:  # the found phrase's entries move together, behind the context
            moved = given & (self.deep < trail)
            path = there[:, ORDERS + self.longest_opening :]
            old = torch.where(moved, path, self.length - 1) + self.base
            new = torch.where(moved, prefix - trail + self.deep, self.length - 1) + self.base
            flat = self.cache.flatten(1, 2)
            flat.index_copy_(1, new.flatten(), flat.index_select(1, old.flatten()))
        zero = torch.zeros_like(prefix)
        self.state.copy_(torch.where(given, torch.cat([prefix, prefix, zero, left, zero], 1), self.state))
        self.opening.copy_(torch.where(given, opening, self.opening))
        first = self.opening[:, : self.beams]
        width = first.shape[1]
        self.tips[:, :width] = torch.where(given, first, self.tips[:, :width])
        start = torch.where(self.column == left - 1, 0.0, -torch.inf).to(self.real)
        for scores in (self.score, self.logprob) if self.prefers else (self.score,):
            scores.copy_(torch.where(given, start, scores))
        seen = torch.where(self.entries[: self.length] < prefix, self.entries[: self.length], UNSEEN)
        self.positions.copy_(torch.where(given[..., None], seen[:, None], self.positions))
        if self.trie is not None:
            self.nodes.masked_fill_(given, self.trie.rule.root)

    def step(self, length: int, text_length: int) -> None:
        """One step for every slot: its next context tokens, or one token for each of its beams."""
        t5, state = self.t5, self.state
        used, position, depth, left, following = state.unbind(1)
        context = (left > 0)[:, None]
        places = used[:, None] + self.column  # (n, W)
        tips, score, logprob = self.tips, self.score, self.logprob
        if self.several:
            fed = left.clamp_max(self.beams)[:, None]
            at = (following[:, None] + self.column).clamp_max_(self.longest_opening - 1)
            tips = torch.where(context, self.opening.gather(1, at), tips)
            start = torch.where(self.column == fed - 1, 0.0, -torch.inf).to(self.real)
            score, logprob = torch.where(context, start, score), torch.where(context, start, logprob)
        # Context tokens see each other, a beam sees its own token.
        own = torch.where(self.eye, position[:, None, None], UNSEEN)  # (n, W, W)
        own = torch.where(context[..., None], places[:, None], own)
        self.positions.scatter_(2, places[:, None].expand(-1, self.beams, -1), own)
        now = torch.where(context, places, position[:, None])
        distance = now[..., None] - self.positions[..., :length]  # (n, W, T)
        x = t5.decode(
            tips, (places + self.base).flatten(), t5.bias(distance.add_(1)), self.cache,
            self.memory[:, :, :text_length], self.unread[..., :text_length],
        )  # fmt: skip
        logprobs = t5.logits(x).log_softmax(-1).view(self.count, self.beams, -1)  # the model's own, before any rule
        ranked = logprobs if self.trie is None else self.trie.apply(logprobs, self.nodes)
        values, tokens = (ranked + self.table.index_select(0, depth)[:, None]).topk(self.width, -1)  # (n, W, 2W)
        best, at = (values + score[..., None]).flatten(1).topk(self.width, -1)  # (n, 2W)
        parent, token = at // self.width, tokens.flatten(1).gather(1, at)
        ended = token == self.end
        finished = torch.where(ended, best, -torch.inf)[:, : self.beams]
        torch.topk(torch.where(ended, -torch.inf, best), self.beams, -1, out=(self.score, self.pick))
        source = parent.gather(1, self.pick)  # each new beam's old one
        ids = self.ids.gather(1, parent[..., None].expand(-1, -1, self.cap))  # (n, 2W, cap)
        kept = self.pick[..., None].expand(-1, -1, self.cap)
        record = [_bits(finished), _bits(self.score[:, :1]), ids[:, : self.beams].flatten(1)]
        if self.prefers:
            plain = logprobs.gather(2, tokens) + logprob[..., None]
            plain = plain.flatten(1).gather(1, at)
            record.append(_bits(plain[:, : self.beams]))
            torch.gather(plain, 1, self.pick, out=self.logprob)
        if self.paths is not None:
            new = (self.deep == depth[:, None] - 1)[:, None]  # the tokens fed in this step
            paths = torch.where(new, places[..., None], self.paths)
            paths = paths.gather(1, parent[..., None].expand(-1, -1, self.cap))
            record.append(paths[:, : self.beams].flatten(1))
            torch.gather(paths, 1, kept, out=self.paths)
        torch.cat(record, 1, out=self.record)
        torch.gather(token, 1, self.pick, out=self.tips)
        if self.trie is not None:
            nodes = self.trie.descend(self.nodes.gather(1, source), self.tips)
            self.nodes.copy_(torch.where((left > self.beams)[:, None], self.trie.rule.root, nodes))
        here = (self.deep == depth[:, None])[:, None]
        torch.where(here, self.tips[..., None], ids.gather(1, kept), out=self.ids)
        if self.several:
            source = torch.where(context, fed - 1, source)
        self.positions.copy_(self.positions.gather(1, source[..., None].expand(-1, -1, self.length)))
        self._advance(used, position, depth, left, following, context[:, 0])

    def _advance(
        self, used: Tensor, position: Tensor, depth: Tensor, left: Tensor, following: Tensor, context: Tensor
    ) -> None:
        # A search that is over runs on until it is replaced; the limits keep it inside its own memory.
        fed = left.clamp_max(self.beams) if self.several else left
        used = (used + torch.where(context, fed, self.beams)).clamp_max_(self.length - 1 - self.beams)
        position = torch.where(context, used, position + 1)
        deeper = (depth + 1).clamp_max_(self.cap)
        rest = left - fed
        if self.several:
            deeper = torch.where(rest > 0, 0, deeper)
            following = following + fed
        self.state.copy_(torch.stack([used, position, deeper, rest, following], 1))


def _bits(x: Tensor) -> Tensor:
    """Real numbers as whole numbers of the same bits."""
    return x.view(torch.int64) if x.dtype == torch.float64 else x.view(torch.int32).long()
