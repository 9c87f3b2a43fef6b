"""Texts -> one decoded sequence each, greedy or sampled, with all state on the device.

The rules of Algorithm 1 (or One2Seq's) are a table of scores, a row's state is a row of numbers, and a step writes the
chosen tokens into a log that is copied to the host every few steps. The host cuts the log into phrases and refills
slots whose sequence has ended while the device continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from pusl.decoding.device.slots import REFILL, Slots, bucket, rule_table
from pusl.decoding.device.text_queue import TextQueue, TokenRows
from pusl.decoding.device.transfer import Mail, to_device
from pusl.decoding.device.transformer import DeviceT5
from pusl.decoding.greedy import sample
from pusl.decoding.rules import Phrase, Rules, Sampling

STEPS = 8  # between two copies to the host
MORE = 1 << 30  # added to a token in the log if its sequence goes on after it
MANY = 1 << 40  # phrases that the end of a sequence counts as
Finish = Callable[[list[Phrase]], Any]  # what becomes of a sequence's phrases, while the device goes on


def sequence_length(rules: Rules) -> int:
    """Cache entries that a sequence needs at most."""
    return rules.phrases * (rules.max_phrase_tokens + 2) + 2


class SequenceSlots(Slots):
    """One sequence per slot.

    A row of `state` holds: the place of the last token, tokens in the current phrase, phrases so far, whether the
    sequence is still going on, and the tokens fed next. A PUSL model is always fed the last two: after a phrase they
    are `<eok><bok>`, of which neither was fed before; else the first was, and its key and value are computed again.

    What a chosen token changes is looked up in one table, `effects`: whether the current phrase goes on, phrases ended,
    tokens to feed, the first of them if it is a new one, and the last.
    """

    def __init__(
        self, t5: DeviceT5, count: int, text_length: int, length: int, rules: Rules, sampling: Sampling
    ) -> None:
        super().__init__(t5, count, text_length, length)
        self.rules, self.sampling = rules, sampling
        tokens, device = rules.tokens, t5.device
        never = {tokens.pad, tokens.bok, *rules.banned} | ({tokens.eos, tokens.sep} if rules.marks else {tokens.eok})
        closing = [tokens.eok] if rules.marks else [tokens.sep, tokens.eos]
        table = rule_table(t5.vocab_size, sorted(never), closing[:1], closing, rules.max_phrase_tokens)
        self.table = table.to(device)
        effects = torch.tensor([1, 0, 1, 0, 0]).repeat(t5.vocab_size, 1)
        effects[:, 4] = torch.arange(t5.vocab_size)
        if rules.marks:  # the <bok> that must follow is fed together with <eok>
            effects[tokens.eok] = torch.tensor([0, 1, 2, tokens.eok, tokens.bok])
        else:
            effects[tokens.sep, :2] = torch.tensor([0, 1])
            effects[tokens.eos, :2] = torch.tensor([0, MANY])
        self.effects = effects.to(device)  # (V, 5)
        fed = [tokens.start, tokens.bok] if rules.marks else [tokens.start]
        last = len(fed) - 1
        self.opening = torch.tensor([[last, 0, 0, 1, *fed]]).to(device)
        self.idle = torch.tensor([[last, 0, MANY, 0, *fed]]).to(device)
        self.state = self.idle.repeat(count, 1)
        back = torch.arange(-last, 1).to(device)  # of the fed tokens
        self.places = self.base + back  # (n, Q)
        self.shift = back[:, None] - self.entries[:length] + 1  # (Q, T)
        self.log = torch.zeros(STEPS, count, 2, dtype=torch.int64, device=device)
        self.tick = torch.zeros(1, dtype=torch.int64, device=device)
        self.uniform = torch.zeros(count, length + 1 if sampling.temperature > 0 else 0, dtype=self.real, device=device)

    def admit(self, slots: Sequence[int], texts: Sequence[Sequence[int]], keys: Sequence[int]) -> None:
        """Starts new sequences in slots."""
        self.fill(slots, texts)
        places = to_device(np.array(slots, dtype=np.int64), self.t5.device)
        self.state.index_copy_(0, places, self.opening.expand(len(slots), -1))
        if self.sampling.temperature > 0:
            draws = np.stack([draw(self.sampling.seed, key, self.length + 1) for key in keys])
            kind = np.float32 if self.real == torch.float32 else np.float64
            self.uniform.index_copy_(0, places, to_device(draws.astype(kind), self.t5.device))

    def step(self, length: int, text_length: int) -> None:
        """Feeds every row, chooses its next token, and logs it."""
        rules, t5, state = self.rules, self.t5, self.state
        at, inside, phrases, going = state[:, :4].unbind(1)
        x = t5.decode(
            state[:, 4:], (at[:, None] + self.places).flatten(), t5.bias(at[:, None, None] + self.shift[:, :length]),
            self.cache, self.memory[:, :, :text_length], self.unread[..., :text_length],
        )  # fmt: skip
        logits = t5.logits(x.view(self.count, -1, x.shape[-1])[:, -1])  # (n, V)
        logprobs = logits.log_softmax(-1)  # the model's own, before any rule
        allowed = logits + self.table.index_select(0, inside)
        if self.sampling.temperature > 0:
            uniform = self.uniform.gather(1, at[:, None] + 1)[:, 0]
            chosen = sample(allowed, uniform, self.sampling.temperature, self.sampling.top_p)
        else:
            chosen = allowed.argmax(-1)
        logprob = logprobs.gather(1, chosen[:, None])[:, 0]
        inner, ended, more, first, last = self.effects.index_select(0, chosen).unbind(1)
        phrases = phrases + ended
        on = phrases < rules.phrases
        # A slot whose sequence has ended goes on writing; the host reads up to the first token without the mark.
        noted = torch.add(chosen, on, alpha=MORE)
        self.log.index_copy_(0, self.tick, torch.stack([noted, logprob.view(torch.int32)], -1)[None])
        self.tick.add_(1).remainder_(STEPS)
        fed = [torch.addcmul(first, inner, state[:, 5]), last] if rules.marks else [last]
        at, inside = torch.addcmul(at, going, more), torch.addcmul(inner, inner, inside)
        torch.stack([at, inside, phrases, on, *fed], 1, out=state)


def draw(seed: int, key: int, count: int) -> np.ndarray:
    """A text's random numbers in [0, 1), one for each length of its sequence."""
    start = _mix(np.array([(seed * 0x9E3779B97F4A7C15 + key) & (2**64 - 1)], dtype=np.uint64))
    return _mix(start + np.arange(count, dtype=np.uint64)) / 2.0**64


def _mix(value: np.ndarray) -> np.ndarray:
    """SplitMix64, for many numbers at once."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def run_sequences(
    slots: SequenceSlots, texts: TokenRows, keys: Sequence[int], found: list[Any], finish: Finish
) -> list[int]:
    """Puts what `finish` makes of each text's phrases into `found`. Returns the texts too long for these slots."""
    queue = TextQueue(texts, slots.text_length)
    books = _SequenceBooks(slots.count, slots.rules)
    mail = Mail(slots.t5.device)
    slots.lengths[:] = 0
    slots.state.copy_(slots.idle)
    while queue or books.busy:
        free = books.free()
        if queue and (len(free) >= max(1, slots.count // REFILL) or not books.busy):
            fresh = queue.take(len(free), wait=not books.busy)
            if fresh:
                slots.admit(free[: len(fresh)], [texts[i] for i in fresh], [keys[i] for i in fresh])
                books.start(free[: len(fresh)], fresh)
            if not books.busy:
                continue  # what came was too long for these slots
        for _ in range(STEPS):
            length = min(bucket(books.longest()), slots.length)
            read = slots.read_length()
            slots.run((length, read), partial(slots.step, length, read))
            books.steps += 1
        mail.post(slots.log, books.items.copy())
        if len(mail) > 1 or not queue:  # while these steps run, the host reads those before
            _read(mail, books, found, slots, finish)
    return queue.late


def _read(mail: Mail, books: _SequenceBooks, found: list[Any], slots: SequenceSlots, finish: Finish) -> None:
    log, items = mail.take()
    for slot, phrases in books.read(log, items):
        found[books.items[slot]] = finish(phrases)
        books.items[slot] = -1
        slots.lengths[slot] = 0


class _SequenceBooks:
    """What the host knows of every slot: its item, and the tokens it has logged."""

    def __init__(self, count: int, rules: Rules) -> None:
        self.rules = rules
        most = rules.phrases * (rules.max_phrase_tokens + 1) + 4 * STEPS
        self.items = np.full(count, -1)  # -1: free
        self.steps = np.zeros(count, dtype=np.int64)  # run since the item came
        self.noted = np.zeros(count, dtype=np.int64)  # steps whose log was read
        self.tokens = np.zeros((count, most), dtype=np.int32)
        self.logprobs = np.zeros((count, most), dtype=np.float32)

    @property
    def busy(self) -> bool:
        return bool((self.items >= 0).any())

    def free(self) -> list[int]:
        return np.flatnonzero(self.items < 0).tolist()

    def start(self, slots: Sequence[int], items: Sequence[int]) -> None:
        self.items[list(slots)] = items
        self.steps[list(slots)] = self.noted[list(slots)] = 0

    def longest(self) -> int:
        """A bound on the cache entries after the next step: at most every second step feeds two tokens."""
        steps = int(self.steps[self.items >= 0].max(initial=0))
        return steps + steps // 2 + 3

    def read(self, log: np.ndarray, items: np.ndarray) -> list[tuple[int, list[Phrase]]]:
        """Adds a log to the books; returns the sequences that it ends."""
        mine = np.flatnonzero((items >= 0) & (items == self.items))
        columns = self.noted[mine, None] + np.arange(len(log))
        self.tokens[mine[:, None], columns] = log[:, mine, 0].T
        self.logprobs[mine[:, None], columns] = log[:, mine, 1].T.astype(np.int32).view(np.float32)
        self.noted[mine] += len(log)
        ended = mine[(log[:, mine, 0] < MORE).any(0)]
        return [(slot, self._phrases(slot)) for slot in ended.tolist()]

    def _phrases(self, slot: int) -> list[Phrase]:
        row = self.tokens[slot, : self.noted[slot]]
        stop = int(np.argmax(row < MORE)) + 1
        tokens = self.rules.tokens
        ends = (tokens.eok, tokens.sep, tokens.eos)
        found: list[Phrase] = []
        ids: list[int] = []
        total = 0.0
        for token, logprob in zip((row[:stop] % MORE).tolist(), self.logprobs[slot, :stop].tolist(), strict=True):
            total += logprob
            if token not in ends:
                ids.append(token)
                continue
            if ids:
                found.append(Phrase(tuple(ids), total))
            ids, total = [], 0.0
        return found
