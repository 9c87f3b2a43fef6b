"""Texts -> one decoded sequence each, greedy or sampled, over a pool that is refilled as rows finish.

Algorithm 1 for PUSL (`<eok>` and the `<bok>` that must follow are fed in one step), or plain decoding
up to the model's own EOS for One2Seq and GROOV. Greedy PUSL gives exactly the tokens of Hugging Face
`generate` with `TopKKeyphrasesLogitsProcessor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pusl.decoding.cpu.engine import Engine, Pool, padded
from pusl.decoding.rules import Phrase, Rules, Sampling, check_numbers

SMALL_POOL = 512 << 20  # bytes


@dataclass
class _Row:
    item: int
    phrases: list[Phrase] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprob: float = 0.0


@torch.inference_mode()
def decode_sequences(
    engine: Engine,
    texts: Sequence[Sequence[int]],
    rules: Rules,
    *,
    slots: int = 32,
    sampling: Sampling | None = None,
    keys: Sequence[int] | None = None,
) -> list[list[Phrase]]:
    """The phrases of each text's sequence, in order, repeats included.

    `slots` texts at once, and up to four times as many while their caches stay small: one row costs little.
    `keys` seed each text's own random numbers, so that a sample does not depend on the batch.
    """
    queue = sorted(range(len(texts)), key=lambda i: (len(texts[i]), i))  # the longest are popped first
    longest = max(map(len, texts), default=0) + rules.phrases * (rules.max_phrase_tokens + 2)
    room = SMALL_POOL // (8 * len(engine.decoder) * engine.heads * engine.d_kv * longest)  # keys and values, 4 bytes
    pool = Pool(engine, min(max(slots, min(4 * slots, room)), len(texts)), chain=True)
    found: list[list[Phrase]] = [[] for _ in texts]
    run = _Rows(engine, pool, rules, sampling or Sampling(), keys or [0] * len(texts))
    while queue or run.rows:
        free = pool.slots - len(run.rows)
        if queue and (free >= max(1, pool.slots // 8) or not run.rows):
            fresh = [queue.pop() for _ in range(min(free, len(queue)))]
            pool.fill(range(len(run.rows), len(run.rows) + len(fresh)), [texts[i] for i in fresh])
            run.start(fresh)
        done = run.step()
        for row in done:
            found[row.item] = row.phrases
    pool.release()
    return found


class _Rows:
    """The rows in the pool's first slots and their next tokens."""

    def __init__(self, engine: Engine, pool: Pool, rules: Rules, sampling: Sampling, keys: Sequence[int]) -> None:
        self.engine, self.pool, self.rules, self.sampling, self.keys = engine, pool, rules, sampling, keys
        self.rows: list[_Row] = []
        self.before = np.zeros(0, dtype=np.int64)  # token fed before the last one in this step, or -1
        self.last = np.zeros(0, dtype=np.int64)
        self.length = np.zeros(0, dtype=np.int64)  # cache entries so far
        tokens = rules.tokens
        inside = {tokens.pad, tokens.bok, *rules.banned}
        inside |= {tokens.eos, tokens.sep} if rules.marks else {tokens.eok}
        self.never = torch.tensor(sorted(inside), device=engine.device)

    def start(self, items: Sequence[int]) -> None:
        tokens, count = self.rules.tokens, len(items)
        first, last = (tokens.start, tokens.bok) if self.rules.marks else (-1, tokens.start)
        self.rows += [_Row(item) for item in items]
        self.before = np.concatenate([self.before, np.full(count, first)])
        self.last = np.concatenate([self.last, np.full(count, last)])
        self.length = np.concatenate([self.length, np.zeros(count, dtype=np.int64)])

    def step(self) -> list[_Row]:
        """Feeds every row, chooses every row's next token; returns the rows that ended."""
        n = len(self.rows)
        two = np.flatnonzero(self.before >= 0)
        rows = np.sort(np.concatenate([np.arange(n), two]))  # a row's two tokens are neighbors
        columns = np.ones(len(rows), dtype=np.int64)
        last = np.arange(n) + np.cumsum(self.before >= 0)
        columns[last[two] - 1] = 0
        at = self.length + (self.before >= 0)  # place of the last token
        places = at[rows] - 1 + columns
        total = padded(int(at.max()) + 1)
        # Always two columns, used or not: the shape of a row's products must not depend on the other rows.
        distance = np.stack([at - 1, at], 1)[:, :, None] - np.arange(total)
        ids = np.where(columns > 0, self.last[rows], self.before[rows])
        logits = self.engine.step(self.pool, ids, rows, columns, places, distance, last, chain=True)
        self.length = at + 1
        chosen, logprobs = self._choose(logits)
        return self._advance(chosen, logprobs)

    def _choose(self, logits: Tensor) -> tuple[list[int], list[float]]:
        rules, tokens = self.rules, self.rules.tokens
        logprobs = logits.log_softmax(-1)  # the model's own, before any rule
        allowed = logits.index_fill_(1, self.never, -torch.inf)
        inside = [len(row.ids) for row in self.rows]
        empty = [i for i, count in enumerate(inside) if count == 0]
        full = [i for i, count in enumerate(inside) if count >= rules.max_phrase_tokens]
        closing = [tokens.eok] if rules.marks else [tokens.sep, tokens.eos]
        if empty and rules.marks:
            allowed[empty, tokens.eok] = -torch.inf
        elif empty:
            allowed[empty, tokens.sep] = -torch.inf
        if full:
            only = torch.full_like(allowed[0], -torch.inf)
            only[closing] = 0.0
            allowed[full] += only
        if self.sampling.temperature > 0:
            chosen = sample(allowed, self._uniform(), self.sampling.temperature, self.sampling.top_p)
        else:
            chosen = first_best(allowed)
        values = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
        check_numbers(values)
        return chosen.tolist(), values

    def _uniform(self) -> Tensor:
        draws = [
            _mix(_mix(self.sampling.seed * 0x9E3779B97F4A7C15 + self.keys[row.item]) + int(length))
            for row, length in zip(self.rows, self.length, strict=True)
        ]
        return torch.tensor([draw / 2**64 for draw in draws], dtype=torch.float64, device=self.engine.device)

    def _advance(self, chosen: list[int], logprobs: list[float]) -> list[_Row]:
        rules, tokens = self.rules, self.rules.tokens
        self.before = np.full(len(self.rows), -1)
        self.last = np.array(chosen)
        done: list[int] = []
        for i, (row, token, logprob) in enumerate(zip(self.rows, chosen, logprobs, strict=True)):
            row.logprob += logprob
            if token not in (tokens.eok, tokens.sep, tokens.eos):
                row.ids.append(token)
                continue
            if row.ids:
                row.phrases.append(Phrase(tuple(row.ids), row.logprob))
            row.ids, row.logprob = [], 0.0
            if token == tokens.eos or len(row.phrases) >= rules.phrases:
                done.append(i)
            elif rules.marks:
                self.before[i], self.last[i] = tokens.eok, tokens.bok
        if not done:
            return []
        ended = [self.rows[i] for i in done]
        order = self.pool.close(done, len(self.rows))
        self.rows = [self.rows[i] for i in order]
        self.before, self.last, self.length = self.before[order], self.last[order], self.length[order]
        return ended


def first_best(logits: Tensor) -> Tensor:
    """`logits.argmax(-1)`, several times faster on a CPU: the best block first, then the best in it. (B, V) -> (B,)

    >>> first_best(torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 0.0]]))
    tensor([1, 0])
    """
    size, (_, width) = 128, logits.shape
    if width <= size or logits.device.type != "cpu":
        return logits.argmax(-1)
    whole = width - width % size
    best = logits[:, :whole].unflatten(1, (-1, size)).amax(-1)
    if whole < width:
        best = torch.cat([best, logits[:, whole:].amax(-1, keepdim=True)], 1)
    # The last window may reach back into the block before, which has nothing as good.
    start = (best.argmax(-1, keepdim=True) * size).clamp_max(width - size)
    window = logits.gather(1, start + torch.arange(size))
    return start[:, 0] + window.argmax(-1)


def sample(logits: Tensor, uniform: Tensor, temperature: float, top_p: float) -> Tensor:
    """One token per row from the smallest set of likeliest tokens that holds `top_p` of the mass. (B,)"""
    probs = (logits.to(uniform.dtype) / temperature).softmax(-1)
    ordered, ids = torch.sort(probs, dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before >= top_p, 0.0)
    total = ordered.cumsum(-1)
    place = torch.searchsorted(total, (uniform * total[:, -1])[:, None], right=True).clamp_max(ids.shape[1] - 1)
    return ids.gather(1, place)[:, 0]


def _mix(value: int) -> int:
    """SplitMix64: any integer -> 64 well mixed bits."""
    value = (value + 0x9E3779B97F4A7C15) & (2**64 - 1)
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return value ^ (value >> 31)
