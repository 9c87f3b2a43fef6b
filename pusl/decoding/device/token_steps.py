"""Texts -> one decoded sequence each, greedy or sampled, with all state on the device.

The rules of Algorithm 1 (or One2Seq's) are a table of scores, a row's state is a row of numbers, and a step writes the
chosen tokens into a log that is copied to the host every few steps. The host cuts the log into phrases and refills
slots whose sequence has ended while the device continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from pusl.decoding.device.slots import REFILL, Slots, bucket, rule_table
from pusl.decoding.device.transfer import Mail, to_device
from pusl.decoding.device.transformer import DeviceT5
from pusl.decoding.greedy import sample
from pusl.decoding.rules import Phrase, Rules, Sampling

STEPS = 8  # between two copies to the host
LAST = 1 << 30  # added to a sequence's last token in the log
TOKEN, SECOND, PAIRED, USED, INSIDE, PHRASES, ACTIVE = range(7)


def sequence_length(rules: Rules) -> int:
    """Cache entries that a sequence needs at most, and one that takes what must not be kept."""
    return rules.phrases * (rules.max_phrase_tokens + 2) + 2


class SequenceSlots(Slots):
    """One sequence per slot.

    A row of `state` holds: the two tokens fed next, whether both are fed (`<eok><bok>`) or only the second, cache
    entries used, tokens in the current phrase, phrases so far, whether the sequence is still going on.
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
        kinds = torch.zeros(t5.vocab_size, dtype=torch.int64)
        kinds[closing[0]] = 1  # ends a phrase
        if not rules.marks:
            kinds[tokens.eos] = 2  # ends the sequence
        self.kinds = kinds.to(device)
        self.state = torch.zeros(count, 7, dtype=torch.int64, device=device)
        opening = [tokens.start, tokens.bok, 1] if rules.marks else [tokens.start, tokens.start, 0]
        self.opening = torch.tensor([[*opening, 0, 0, 0, 1]]).to(device)
        self.shift = torch.tensor([[[-1], [0]]]).to(device) - self.entries[:length]  # (1, 2, T)
        self.log = torch.zeros(STEPS, count, 2, dtype=torch.int64, device=device)
        self.none = torch.zeros(count, dtype=torch.int64, device=device)
        self.tick = torch.zeros(1, dtype=torch.int64, device=device)
        self.real = torch.float32 if device.type == "mps" else torch.float64
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
        rules, tokens, t5 = self.rules, self.rules.tokens, self.t5
        _, _, paired, used, inside, phrases, active = self.state.unbind(1)
        at = used + paired  # place of the last token
        unused = torch.where(paired > 0, at - 1, self.length - 1)  # where the first of two goes if it is not fed
        places = torch.stack([unused, at], 1) + self.base
        distance = at[:, None, None] + self.shift[..., :length]  # (n, 2, T)
        x = t5.decode(
            self.state[:, :2], places.flatten(), t5.bias(distance), self.cache,
            self.memory[:, :, :text_length], self.unread[..., :text_length],
        )  # fmt: skip
        logits = t5.logits(x.view(self.count, 2, -1)[:, 1])  # (n, V)
        logprobs = logits.log_softmax(-1)  # the model's own, before any rule
        allowed = logits + self.table.index_select(0, inside)
        if self.sampling.temperature > 0:
            uniform = self.uniform.gather(1, at[:, None] + 1)[:, 0]
            chosen = sample(allowed, uniform, self.sampling.temperature, self.sampling.top_p)
        else:
            chosen = allowed.argmax(-1)
        logprob = logprobs.gather(1, chosen[:, None])[:, 0]
        kind = self.kinds.index_select(0, chosen)
        closing = kind > 0
        phrases = phrases + (kind == 1)
        done = (kind == 2) | (phrases >= rules.phrases)
        going = active > 0
        noted = torch.where(going, chosen + done * LAST, -1)
        self.log.index_copy_(0, self.tick, torch.stack([noted, logprob.view(torch.int32)], -1)[None])
        self.tick.add_(1).remainder_(STEPS)
        first, last, both = chosen, chosen, self.none
        if rules.marks:  # <eok> and the <bok> that must follow are fed together
            last, both = torch.where(closing, tokens.bok, chosen), closing
        used, inside = torch.where(going, at + 1, used), torch.where(closing, 0, inside + 1)
        self.state.copy_(torch.stack([first, last, both, used, inside, phrases, going & ~done], 1))


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


def run_sequences(slots: SequenceSlots, texts: Sequence[Sequence[int]], keys: Sequence[int]) -> list[list[Phrase]]:
    """The phrases of each text's sequence, in order, repeats included."""
    queue = sorted(range(len(texts)), key=lambda i: (len(texts[i]), i))  # the longest are popped first
    found: list[list[Phrase]] = [[] for _ in texts]
    books = _SequenceBooks(slots.count, slots.rules)
    mail = Mail(slots.t5.device)
    slots.lengths[:] = 0
    slots.state.zero_()
    while queue or books.busy:
        free = books.free()
        if queue and (len(free) >= max(1, slots.count // REFILL) or not books.busy):
            chosen = free[: len(queue)]
            fresh = [queue.pop() for _ in chosen]
            slots.admit(chosen, [texts[i] for i in fresh], [keys[i] for i in fresh])
            books.start(chosen, fresh)
        for _ in range(STEPS):
            length = min(bucket(books.longest()), slots.length)
            read = slots.read_length()
            slots.run((length, read), partial(slots.step, length, read))
            books.steps += 1
        mail.post(slots.log, books.items.copy())
        if len(mail) > 1 or not queue:  # while these steps run, the host reads those before
            _read(mail, books, found, slots)
    return found


def _read(mail: Mail, books: _SequenceBooks, found: list[list[Phrase]], slots: SequenceSlots) -> None:
    log, items = mail.take()
    for slot, phrases in books.read(log, items):
        found[books.items[slot]] = phrases
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
        ended = mine[(log[:, mine, 0] >= LAST).any(0)]
        return [(slot, self._phrases(slot)) for slot in ended.tolist()]

    def _phrases(self, slot: int) -> list[Phrase]:
        row = self.tokens[slot, : self.noted[slot]]
        stop = int(np.argmax(row >= LAST)) + 1
        tokens = self.rules.tokens
        ends = (tokens.eok, tokens.sep, tokens.eos)
        found: list[Phrase] = []
        ids: list[int] = []
        total = 0.0
        for token, logprob in zip((row[:stop] % LAST).tolist(), self.logprobs[slot, :stop].tolist(), strict=True):
            total += logprob
            if token not in ends:
                ids.append(token)
                continue
            if ids:
                found.append(Phrase(tuple(ids), total))
            ids, total = [], 0.0
        return found
