"""Texts -> complete keyphrases by beam search, phrase by phrase.

Every item searches for whole phrases from its current context (after `<bok>`, or at the start for
One2One). When its `plan` has what it wants from a search, it names the phrase to continue from or
ends the item. Items are at different depths of different slots, and the pool is refilled as they end.

The beams of an item are a tree in ONE cache: each token is stored once, a beam sees its ancestors
through the attention bias, and nothing is copied when beams are reordered. Candidates are kept as in
Hugging Face's beam search without length penalty, so a One2One model gives the same hypotheses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pusl.decoding.cpu.engine import LOGITS, Engine, Pool, padded
from pusl.decoding.plans import Plan
from pusl.decoding.rules import Phrase, Rules, check_numbers

CANDIDATES = 1 << 22  # continuations compared at once; like LOGITS, it bounds the items of a wide search


class Constraint(Protocol):
    """Which tokens may follow which prefixes (a universe)."""

    root: int

    def apply(self, logprobs: Tensor, nodes: np.ndarray) -> Tensor:
        """Ranking scores of every next token, given each row's node (-1: outside). (N, V)"""

    def descend(self, nodes: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The nodes after taking tokens; -1 outside."""


@torch.inference_mode()
def search_phrases(
    engine: Engine,
    texts: Sequence[Sequence[int]],
    rules: Rules,
    plan: Callable[[int], Plan],
    *,
    beams: int,
    slots: int = 32,
    constraint: Constraint | None = None,
    known: Sequence[Sequence[Sequence[int]]] | None = None,
) -> list[Plan]:
    """Runs every text's plan to its end and returns the plans, in the order of the texts.

    `known` holds phrases that each text has already: the first search continues after them (PUSL only).
    """
    queue = sorted(range(len(texts)), key=lambda i: (len(texts[i]), i))  # the longest are popped first
    plans = [plan(i) for i in range(len(texts))]
    most = min(CANDIDATES // (2 * beams * beams), LOGITS // (beams * engine.vocab_size))
    pool = Pool(engine, max(1, min(slots, len(texts), most)))
    run = _Beams(engine, pool, rules, plans, beams, constraint, known)
    while queue or run.items:
        free = pool.slots - len(run.items)
        if queue and (free >= max(1, pool.slots // 8) or not run.items):
            fresh = [queue.pop() for _ in range(min(free, len(queue)))]
            pool.fill(range(len(run.items), len(run.items) + len(fresh)), [texts[i] for i in fresh])
            run.start(fresh)
        run.step()
    pool.release()
    return plans


class _Beams:
    """Items in the pool's first slots, each with up to `beams` unfinished phrases.

    `prefix` is the number of cache entries of an item's context. The tokens of its current search follow
    in the order in which they were fed, and `path` lists a beam's own entries among those.
    """

    def __init__(
        self, engine: Engine, pool: Pool, rules: Rules, plans: Sequence[Plan], beams: int,
        constraint: Constraint | None, known: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> None:  # fmt: skip
        self.engine, self.pool, self.rules, self.plans, self.constraint = engine, pool, rules, plans, constraint
        self.beams, self.cap = beams, rules.max_phrase_tokens
        self.columns = max(2, beams)
        tokens = rules.tokens
        self.start_ids = [tokens.start, tokens.bok] if rules.marks else [tokens.start]
        self.closing = [tokens.eok, tokens.bok]  # between two phrases
        self.known = known
        self.end = tokens.eok if rules.marks else tokens.eos
        never = {*tokens.control, *rules.banned} - {self.end} - ({tokens.sep} if rules.whole else set())
        self.never = torch.tensor(sorted(never), device=engine.device)
        self.items: list[int] = []
        self.opening: list[list[int]] = []  # context tokens to feed before the search continues
        self.trails: list[dict[tuple[int, ...], list[int]]] = []  # cache entries of the phrases found in this search
        self.prefix = np.zeros(0, dtype=np.int64)
        self.used = np.zeros(0, dtype=np.int64)  # cache entries in use
        self.depth = np.zeros(0, dtype=np.int64)  # tokens of the unfinished phrases
        self.live = np.zeros(0, dtype=np.int64)  # unfinished phrases
        self.ids = np.zeros((0, beams, self.cap), dtype=np.int64)
        self.path = np.zeros((0, beams, self.cap), dtype=np.int64)
        self.score = np.zeros((0, beams))  # for ranking: log-probability plus what the constraint adds
        self.logprob = np.zeros((0, beams))
        self.node = np.zeros((0, beams), dtype=np.int64)

    _STATE = ("prefix", "used", "depth", "live", "ids", "path", "score", "logprob", "node")

    def start(self, items: Sequence[int]) -> None:
        for name in self._STATE:
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros((len(items), *old.shape[1:]), dtype=old.dtype)]))
        for item in items:
            self.items.append(item)
            self.opening.append([])
            self.trails.append({})
            self._open(len(self.items) - 1, self._beginning(item))

    def _beginning(self, item: int) -> list[int]:
        """The tokens before an item's first search: the start, and the phrases it has already."""
        behind = [token for phrase in self.known[item] for token in (*phrase, *self.closing)] if self.known else []
        return [*self.start_ids, *behind]

    def _open(self, slot: int, opening: list[int]) -> None:
        """A new search in this slot, after its context and `opening`."""
        self.opening[slot], self.trails[slot] = list(opening), {}
        self.used[slot] = self.prefix[slot]
        self.depth[slot], self.live[slot] = 0, 1
        self.score[slot], self.logprob[slot] = -np.inf, -np.inf
        self.score[slot, 0] = self.logprob[slot, 0] = 0.0
        self.node[slot] = self.constraint.root if self.constraint else -1

    def step(self) -> None:
        """One step for every item: its next context tokens, or one token for each of its beams."""
        context = np.array([bool(opening) for opening in self.opening])
        feeds = np.where(context, [min(len(opening), self.columns) for opening in self.opening], self.live)
        rows = np.repeat(np.arange(len(feeds)), feeds)
        columns = np.arange(len(rows)) - (np.cumsum(feeds) - feeds)[rows]
        places = self.used[rows] + columns
        beam = ~context[rows]
        ids = np.zeros(len(rows), dtype=np.int64)
        ids[beam] = self.ids[rows[beam], columns[beam], self.depth[rows[beam]] - 1]
        ids[~beam] = [token for opening in self.opening for token in opening[: self.columns]]
        self.path[rows[beam], columns[beam], self.depth[rows[beam]] - 1] = places[beam]
        distance = self._distance(rows, columns, context, feeds)
        self.opening = [opening[self.columns :] for opening in self.opening]
        ready = np.array([not opening for opening in self.opening])
        wanted = np.flatnonzero(beam | (ready[rows] & (columns == feeds[rows] - 1)))
        logits = self.engine.step(self.pool, ids, rows, columns, places, distance, wanted)
        self.used = self.used + feeds
        self.prefix = np.where(context, self.used, self.prefix)
        owner = rows[wanted]
        self._branch(logits, owner, np.where(context[owner], 0, columns[wanted]), ready)

    def _distance(self, rows: np.ndarray, columns: np.ndarray, context: np.ndarray, feeds: np.ndarray) -> np.ndarray:
        """How far back every cache entry lies for every fed token; negative where it must not be seen."""
        total = padded(int((self.used + feeds).max()))
        tip = np.where(context, self.used, self.prefix + self.depth - 1)[:, None]
        position = tip + np.where(context[:, None], np.arange(self.columns), 0)  # (n, Q)
        entries = np.arange(total)
        seen = position[:, :, None] - entries
        shared = np.where(context, total, self.prefix)[:, None, None]  # a beam shares its item's context only
        seen = np.where(entries < shared, seen, -1)
        beam = ~context[rows]
        rows, columns = rows[beam], columns[beam]
        for back in range(int(self.depth.max())):
            deep = self.depth[rows] > back
            i, c = rows[deep], columns[deep]
            seen[i, c, self.path[i, c, self.depth[i] - 1 - back]] = back
        return seen

    def _branch(self, logits: Tensor, owner: np.ndarray, beam: np.ndarray, ready: np.ndarray) -> None:
        """Best continuations of every item: ended ones go to its plan, the others become its beams."""
        logprobs = logits.log_softmax(-1)  # the model's own, before any rule
        ranked = logprobs if self.constraint is None else self.constraint.apply(logprobs, self.node[owner, beam])
        ranked.index_fill_(1, self.never, -torch.inf)  # in place: what is forbidden is never asked for again
        depth = torch.from_numpy(self.depth[owner])
        ranked[depth == 0, self.end] = -torch.inf
        full = torch.nonzero(depth >= self.cap)[:, 0]
        if len(full):
            closing = ranked[full, self.end]
            ranked[full] = -torch.inf
            ranked[full, self.end] = closing
        width = min(2 * self.beams, ranked.shape[1])
        values, tokens = ranked.topk(width, -1)
        n = len(self.items)
        score, logprob = np.full((n, self.beams * width), -np.inf), np.full((n, self.beams * width), -np.inf)
        token = np.zeros((n, self.beams * width), dtype=np.int64)
        cells = (beam * width)[:, None] + np.arange(width)
        score[owner[:, None], cells] = values.double().cpu().numpy() + self.score[owner, beam][:, None]
        plain = logprobs.gather(1, tokens).double().cpu().numpy()
        check_numbers(plain[:, 0])
        logprob[owner[:, None], cells] = plain + self.logprob[owner, beam][:, None]
        token[owner[:, None], cells] = tokens.cpu().numpy()
        order = np.lexsort((token, -score), axis=-1)[:, :width]  # equal scores: the smaller id first
        score, logprob, token = (np.take_along_axis(part, order, 1) for part in (score, logprob, token))
        self._advance(score, logprob, token, order // width, ready)

    def _advance(
        self, score: np.ndarray, logprob: np.ndarray, token: np.ndarray, parent: np.ndarray, ready: np.ndarray
    ) -> None:
        possible = score > -np.inf  # (n, 2W)
        ended = possible & (token == self.end)
        for slot, rank in np.argwhere(ended[:, : self.beams]).tolist():
            depth, source = self.depth[slot], parent[slot, rank]
            ids = tuple(self.ids[slot, source, :depth].tolist())
            phrase = Phrase(ids, float(logprob[slot, rank]), float(score[slot, rank]))
            self.trails[slot][phrase.ids] = self.path[slot, source, :depth].tolist()
            self.plans[self.items[slot]].offer(phrase)
        going = possible & ~ended
        place = np.cumsum(going, 1) - 1
        slots, ranks = np.nonzero(going & (place < self.beams))
        target, old, chosen = place[slots, ranks], parent[slots, ranks], token[slots, ranks]
        self.ids[slots, target], self.path[slots, target] = self.ids[slots, old], self.path[slots, old]
        self.ids[slots, target, self.depth[slots]] = chosen
        if self.constraint is not None:
            self.node[slots, target] = self.constraint.descend(self.node[slots, old], chosen)
        for mine, best in ((self.score, score), (self.logprob, logprob)):
            mine[ready] = -np.inf
            mine[slots, target] = best[slots, ranks]
        self.live = np.where(ready, np.minimum(going.sum(1), self.beams), self.live)
        self.depth = self.depth + ready
        self._finish(np.flatnonzero(ready).tolist())

    def _finish(self, slots: list[int]) -> None:
        """Ends searches whose plan has what it wants; the plan says how its item continues."""
        done = []
        for slot in slots:
            plan = self.plans[self.items[slot]]
            if self.live[slot] and not plan.satisfied(float(self.score[slot, 0])):
                continue
            phrase = plan.proceed()
            if phrase is None:
                done.append(slot)
                continue
            trail = self.trails[slot].get(phrase.ids)
            if trail is None:  # found by an earlier search: its cache entries are gone
                self._open(slot, [*phrase.ids, *self.closing])
            else:
                self.pool.gather(slot, trail, int(self.prefix[slot]))
                self.prefix[slot] += len(trail)
                self._open(slot, self.closing)
        if done:
            order = self.pool.close(done, len(self.items))
            for name in self._STATE:
                setattr(self, name, getattr(self, name)[order])
            self.items = [self.items[i] for i in order]
            self.opening = [self.opening[i] for i in order]
            self.trails = [self.trails[i] for i in order]
