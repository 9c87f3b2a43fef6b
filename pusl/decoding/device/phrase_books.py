"""Records of phrases that ended -> each item's plan, and orders for the next searches.

The host reads the record of one step while the device runs the next. A slot whose item has ended is searched for one
step more than needed; what that step finds is not read. A plan is asked only when the numbers say that it may have
what it wants, so that few phrases have to be spelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from pusl.decoding.device.phrase_steps import ORDERS, BeamSlots
from pusl.decoding.device.slots import REFILL, bucket
from pusl.decoding.device.text_queue import TextQueue, TokenRows
from pusl.decoding.device.transfer import Mail
from pusl.decoding.plans import Plan, Ranked
from pusl.decoding.rules import Phrase


def run_searches(
    slots: BeamSlots,
    texts: TokenRows,
    plans: Sequence[Plan],
    known: Sequence[Sequence[Sequence[int]]] | None = None,
) -> list[int]:
    """Runs every text's plan to its end. Returns the texts that are too long for these slots."""
    queue = TextQueue(texts, slots.text_length)
    books = _Books(slots, plans, known)
    mail = Mail(slots.t5.device)
    while queue or books.busy:
        free = books.free()
        if queue and (len(free) >= max(1, slots.count // REFILL) or not books.busy):
            fresh = queue.take(len(free), wait=not books.busy)
            if fresh:
                slots.fill(free[: len(fresh)], [texts[i] for i in fresh])
                books.start(free[: len(fresh)], fresh)
            if not books.busy:
                continue  # what came was too long for these slots
        if books.orders[:, 0].any():
            slots.order(books.orders.copy())
            books.orders[:, 0] = 0
        length = min(bucket(books.longest()), slots.length)
        read = slots.read_length()
        slots.run((length, read), partial(slots.step, length, read))
        mail.post(slots.record, books.stepped())
        if len(mail) > 1:  # while this step runs, the host reads the one before
            books.read(*mail.take())
    return queue.late


class _Books:
    """What the host knows of every slot: its item, its search, and the phrases found in it."""

    def __init__(
        self, slots: BeamSlots, plans: Sequence[Plan], known: Sequence[Sequence[Sequence[int]]] | None
    ) -> None:
        self.slots, self.plans, self.known = slots, plans, known
        n, beams, cap = slots.count, slots.beams, slots.cap
        self.items = np.full(n, -1)  # -1: free
        self.searches = np.zeros(n, dtype=np.int64)  # number of the slot's search, to know old records
        self.wanted = np.zeros(n, dtype=np.int64)  # phrases that a plan needs at least
        self.prefix = np.zeros(n, dtype=np.int64)  # context entries in the cache once the search has begun
        self.steps = np.zeros(n, dtype=np.int64)  # of the present search, run
        self.opening = np.zeros(n, dtype=np.int64)  # steps that feed its context
        self.seen = np.zeros(n, dtype=np.int64)  # records read
        self.score = np.full((n, cap + 1, beams), -np.inf)
        self.logprob = self.score.copy() if slots.prefers else self.score
        self.ids = np.zeros((n, cap + 1, beams, cap), dtype=np.int64)
        self.paths = self.ids.copy() if slots.follows else None
        self.orders = np.zeros((n, ORDERS + slots.longest_opening + cap), dtype=np.int64)
        tokens = slots.rules.tokens
        self.start_ids = [tokens.start, tokens.bok] if slots.rules.marks else [tokens.start]
        self.closing = [tokens.eok, tokens.bok]  # between two phrases
        slots.lengths[:] = 0

    @property
    def busy(self) -> bool:
        return bool((self.items >= 0).any())

    def free(self) -> list[int]:
        return np.flatnonzero(self.items < 0).tolist()

    def start(self, slots: Sequence[int], items: Sequence[int]) -> None:
        for slot, item in zip(slots, items, strict=True):
            self.items[slot] = item
            plan = self.plans[item]
            self.wanted[slot] = plan.k if isinstance(plan, Ranked) else 0
            behind = [token for phrase in self.known[item] for token in (*phrase, *self.closing)] if self.known else []
            self.prefix[slot] = 0
            self._open(slot, [*self.start_ids, *behind])

    def _open(self, slot: int, opening: Sequence[int], trail: Sequence[int] = ()) -> None:
        """Orders a new search behind the slot's context, the entries of `trail`, and `opening`."""
        order, longest = self.orders[slot], self.slots.longest_opening
        prefix = self.prefix[slot] + len(trail)
        order[:ORDERS] = 1, prefix, len(opening), len(trail)
        order[ORDERS : ORDERS + len(opening)] = opening
        order[ORDERS + longest : ORDERS + longest + len(trail)] = trail
        self.prefix[slot] = prefix + len(opening)
        self.opening[slot] = -(-len(opening) // self.slots.beams)
        self.searches[slot] += 1
        self.steps[slot] = self.seen[slot] = 0
        self.score[slot] = -np.inf

    def longest(self) -> int:
        """A bound on the cache entries after the next step."""
        deep = np.maximum(self.steps - self.opening + 1, 0)
        used = self.prefix + (deep + 1) * self.slots.beams
        return int(used[self.items >= 0].max(initial=1))

    def stepped(self) -> np.ndarray:
        """Counts a step; returns which search of each slot it belongs to."""
        self.steps += 1
        return np.where(self.items >= 0, self.searches, -1)

    def read(self, record: np.ndarray, searches: np.ndarray) -> None:
        """A step's record: ended phrases, and the score of the best unfinished one."""
        beams, cap = self.slots.beams, self.slots.cap
        mine = np.flatnonzero((searches == self.searches) & (self.items >= 0))
        self.seen[mine] += 1
        depth = self.seen[mine] - self.opening[mine]  # tokens of the phrases that ended
        ready = depth >= 0
        mine, depth = mine[ready], np.minimum(depth[ready], cap)
        if not len(mine):
            return
        part = record[mine]
        best = self._real(part[:, beams : beams + 1])[:, 0]
        self.score[mine, depth] = self._real(part[:, :beams])
        at = beams + 1
        self.ids[mine, depth] = part[:, at : at + beams * cap].reshape(-1, beams, cap)
        at += beams * cap
        if self.slots.prefers:
            self.logprob[mine, depth] = self._real(part[:, at : at + beams])
            at += beams
        if self.paths is not None:
            self.paths[mine, depth] = part[:, at : at + beams * cap].reshape(-1, beams, cap)
        enough = (self.score[mine] >= best[:, None, None]).sum((1, 2)) >= self.wanted[mine]
        over = best == -np.inf
        for slot, live in zip(mine[enough | over].tolist(), best[enough | over].tolist(), strict=True):
            self._ask(slot, live)

    def _real(self, bits: np.ndarray) -> np.ndarray:
        if self.slots.real == torch.float64:
            return np.ascontiguousarray(bits).view(np.float64)
        return bits.astype(np.int32).view(np.float32).astype(np.float64)

    def _ask(self, slot: int, live: float) -> None:
        """Offers the search's phrases to the item's plan, which says how the item goes on."""
        plan = self.plans[self.items[slot]]
        depths, ranks = np.nonzero(self.score[slot] > -np.inf)
        scores = self.score[slot, depths, ranks]
        order = np.argsort(-scores, kind="stable")
        depths, ranks, scores = depths[order], ranks[order], scores[order]
        logprobs = self.logprob[slot, depths, ranks].tolist()
        rows = self.ids[slot, depths, ranks].tolist()
        ranked = plan if isinstance(plan, Ranked) else None
        first = ranked is not None and not ranked.found  # the best come first: k are enough
        newest = int(self.seen[slot] - self.opening[slot])
        for row, depth, logprob, score in zip(rows, depths.tolist(), logprobs, scores.tolist(), strict=True):
            if ranked is not None or depth == newest:  # other plans were offered the rest before
                plan.offer(Phrase(tuple(row[:depth]), logprob, score))
            if first and ranked is not None and len(ranked.found) >= ranked.k:
                break
        if live > -np.inf and not plan.satisfied(live):
            return
        phrase = plan.proceed()
        if phrase is None:
            self.items[slot] = -1
            self.slots.lengths[slot] = 0
            return
        trail = self._trail(slot, phrase, rows, depths, ranks)
        if trail is None:
            self._open(slot, [*phrase.ids, *self.closing])
        else:
            self._open(slot, self.closing, trail)

    def _trail(
        self, slot: int, phrase: Phrase, rows: list[list[int]], depths: np.ndarray, ranks: np.ndarray
    ) -> list[int] | None:
        """Cache entries of a phrase that this search found; None if an earlier one did."""
        if self.paths is None:
            return None
        wanted = list(phrase.ids)
        for row, depth, rank in zip(rows, depths.tolist(), ranks.tolist(), strict=True):
            if row[:depth] == wanted:
                return self.paths[slot, depth, rank, :depth].tolist()
        return None
