"""Texts of many requests -> shared batches -> each request's own results.

A request becomes a `Ticket`: its texts, what each should cost, and a key made of its options. A batch holds texts of
one key only. It leaves when it is full or when its oldest ticket has waited `max_wait` seconds. It is full when it has
`max_batch` texts or should take `slice_seconds`: a large request runs in slices with others in between. Clients take
turns, and so do the tickets of one client (`fairness.py`). Everything here runs on one asyncio loop and knows nothing
about HTTP or models.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pusl.serve.fairness import Turns

Run = Callable[[list[Any], Any], Awaitable[tuple[list[Any], float]]]  # texts, key -> results, seconds of work
TURNS_PER_BATCH = 4  # a ticket fills at most a quarter of a batch per turn while others wait
SLICE_SECONDS = 1.0  # of work in one batch
AHEAD_SECONDS = 0.25  # of work that may wait in a busy worker's pipe
KINDS = 64  # kinds of work whose pace is remembered


class QueueFull(Exception):
    """The queue has no room for these texts; try again in `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


class Closed(Exception):
    """The batcher is shutting down and accepts nothing new."""


class WorkerLost(Exception):
    """The process that ran a batch died or hung; the batch has no answer."""


class TooSlow(Exception):
    """A batch was stopped because it took too long. `text` is the number of the text if it was alone in it."""

    def __init__(self, seconds: float, text: int | None = None) -> None:
        super().__init__(f"more than {seconds:g} s of work")
        self.seconds, self.text = seconds, text


@dataclass(eq=False)
class Ticket:
    """The texts of one request, and how far they have come."""

    texts: Sequence[Any]  # each in the form that `run` takes
    key: Hashable
    costs: Sequence[float]  # of each text, in units of the caller's choice
    kind: Hashable  # tickets of one kind are equally fast per unit
    client: Hashable
    done: asyncio.Future[list[Any]]
    arrived: float
    since: float  # arrival or last turn; a batch leaves when its oldest ticket has waited long enough
    results: list[Any] = field(default_factory=list)
    todo: deque[int] = field(default_factory=deque)  # texts that no batch holds
    units: float = 0.0  # cost of those
    missing: int = 0  # texts without a result so far
    first_start: float | None = None
    batches: int = 0

    def waited(self) -> float:
        """Seconds in the queue before its first text was started."""
        return (self.first_start or time.monotonic()) - self.arrived


Part = tuple[Ticket, list[int]]  # a ticket and the numbers of its texts inside one batch


class Batcher:
    """Groups texts by key and calls `run(texts, key)`: one batch per worker at a time, and up to `ahead`
    more full batches, so that no worker waits between two of them."""

    def __init__(
        self,
        run: Run,
        *,
        max_batch: int = 32,
        max_wait: float = 0.005,
        max_queue: int = 512,
        max_delay: float = math.inf,
        workers: int = 1,
        ahead: int = 0,
        slice_seconds: float = SLICE_SECONDS,
    ) -> None:
        self.run, self.max_batch, self.max_wait, self.max_queue = run, max_batch, max_wait, max_queue
        self.max_delay, self.workers, self.ahead, self.slice_seconds = max_delay, workers, ahead, slice_seconds
        self.queued = 0  # texts accepted and not yet started
        self.running = 0  # texts inside a batch now
        self.seconds_per_unit = 0.01  # of a kind that was never run
        self._batches = 0  # batches under way
        self._groups: dict[Hashable, dict[Ticket, None]] = {}
        self._wakeup = asyncio.Event()
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._pace: dict[Hashable, float] = {}  # seconds per unit, by kind
        self._clients = Turns()
        self._tickets: dict[Hashable, Turns] = {}  # of each client
        self._units: dict[Hashable, float] = {}  # accepted and not finished, by kind

    def start(self) -> None:
        """Starts the lanes on the running loop."""
        self._tasks = [asyncio.create_task(self._lane(), name=f"lane-{i}") for i in range(self.workers + self.ahead)]

    async def close(self) -> None:
        """Accepts nothing new, answers everything queued, then stops the lanes."""
        self._closed = True
        self._wakeup.set()
        await asyncio.gather(*self._tasks)

    def submit(
        self,
        texts: Sequence[Any],
        key: Hashable,
        *,
        costs: Sequence[float] | None = None,
        kind: Hashable = None,
        client: Hashable = None,
    ) -> Ticket:
        """Accepts all texts or none; `ticket.done` will hold their results in order."""
        if self._closed:
            raise Closed
        costs, kind = costs or [1.0] * len(texts), kind or key
        if self.full(len(texts), sum(costs) * self._pace_of(kind)):
            raise QueueFull(self.retry_after())
        now, done = time.monotonic(), asyncio.get_running_loop().create_future()
        ticket = Ticket(texts, key, costs, kind, client, done, now, now)
        ticket.results, ticket.missing = [None] * len(texts), len(texts)
        if not texts:
            ticket.done.set_result([])
            return ticket
        self._enqueue(ticket, range(len(texts)))
        return ticket

    def cancel(self, ticket: Ticket) -> int:
        """Drops the ticket's texts that no batch has started; returns how many."""
        ticket.done.cancel()
        left = len(ticket.todo)
        if left:
            self._count(ticket, ticket.todo, -1)
            self.queued -= left
            ticket.todo.clear()
            ticket.units = 0.0
            self._dequeue(ticket)
        return left

    def full(self, texts: int = 1, seconds: float | None = None) -> bool:
        """Whether `texts` more would exceed the queue's length or, with so much work, wait longer than `max_delay`.

        Since all take turns, a ticket waits for no more of another's work than it brings itself.
        """
        if self.queued + texts > self.max_queue:
            return True
        own = self.seconds_per_unit if seconds is None else seconds
        left = [ticket.units * self._pace_of(ticket.kind) for group in self._groups.values() for ticket in group]
        running = self._seconds_to_empty() * self.workers - sum(left)
        wait = (running + sum(min(seconds, own) for seconds in left)) / self.workers
        return self.queued > 0 and wait > self.max_delay

    def retry_after(self) -> int:
        """Seconds until the queue should be empty, rounded up; 1 to 60."""
        return min(60, max(1, math.ceil(self._seconds_to_empty())))

    def _seconds_to_empty(self) -> float:
        """Estimated seconds until everything accepted is done, at the pace so far."""
        return sum(units * self._pace_of(kind) for kind, units in self._units.items()) / self.workers

    def _pace_of(self, kind: Hashable) -> float:
        return self._pace.get(kind, self.seconds_per_unit)

    def _learn(self, kind: Hashable, observed: float) -> None:
        """Seconds per unit of the last batch; a slower pace is believed sooner than a faster one."""
        before = self._pace.pop(kind, observed)
        self._pace[kind] = before + (0.5 if observed > before else 0.2) * (observed - before)
        while len(self._pace) > KINDS:
            del self._pace[next(iter(self._pace))]

    def _count(self, ticket: Ticket, numbers: Sequence[int] | deque[int] | range, sign: int) -> None:
        left = self._units.get(ticket.kind, 0.0) + sign * sum(ticket.costs[number] for number in numbers)
        self._units[ticket.kind] = left
        if left < 1e-9:
            del self._units[ticket.kind]

    def _enqueue(self, ticket: Ticket, numbers: Sequence[int] | range) -> None:
        """These texts wait, before others of the ticket."""
        ticket.todo.extendleft(reversed(numbers))
        ticket.units += sum(ticket.costs[number] for number in numbers)
        self._groups.setdefault(ticket.key, {})[ticket] = None
        self._clients.join(ticket.client)
        self._tickets.setdefault(ticket.client, Turns()).join(ticket)
        self.queued += len(numbers)
        self._count(ticket, numbers, 1)
        self._wakeup.set()

    def _dequeue(self, ticket: Ticket) -> None:
        """The ticket has no text that waits."""
        group, tickets = self._groups[ticket.key], self._tickets[ticket.client]
        del group[ticket]
        if not group:
            del self._groups[ticket.key]
        tickets.leave(ticket)
        if not tickets.tags:
            del self._tickets[ticket.client]
            self._clients.leave(ticket.client)

    def _order(self, ticket: Ticket) -> tuple[float, float]:
        """The lowest is next: whose client has had least, and then who of that client."""
        return self._clients.tags[ticket.client], self._tickets[ticket.client].tags[ticket]

    def _take(self) -> list[Part] | float | None:
        """The next batch, or seconds until one may leave (inf: wait for a worker), or None if nothing is queued."""
        if not self._groups:
            return None
        now, idle = time.monotonic(), self._batches < self.workers
        may_leave, soonest, any_full = [], math.inf, False
        for key, group in self._groups.items():
            full = sum(len(ticket.todo) for ticket in group) >= self.max_batch
            due = min(ticket.since for ticket in group) + self.max_wait
            any_full, soonest = any_full or full, min(soonest, due)
            if full or self._closed or due <= now:
                may_leave.append(key)
        if not idle and not any_full:
            return math.inf
        if not may_leave:
            return max(0.0, soonest - now)
        group = self._groups[min(may_leave, key=lambda key: min(map(self._order, self._groups[key])))]
        return self._fill(group, now) if idle or self._quick(group) else math.inf

    def _quick(self, group: dict[Ticket, None]) -> bool:
        """Whether a batch of this group is so little work that it may be sent ahead of a free worker."""
        texts = min(self.max_batch, sum(len(ticket.todo) for ticket in group))
        dearest = max(ticket.costs[ticket.todo[0]] * self._pace_of(ticket.kind) for ticket in group)
        return texts * dearest <= AHEAD_SECONDS

    def _fill(self, group: dict[Ticket, None], now: float) -> list[Part]:
        """A batch of this group's texts: in turns, up to `max_batch` texts or `slice_seconds` of work."""
        turn, room, seconds = max(1, self.max_batch // TURNS_PER_BATCH), self.max_batch, self.slice_seconds
        taken: dict[Ticket, list[int]] = {}
        waiting = [(self._order(ticket), number, ticket) for number, ticket in enumerate(group)]
        heapq.heapify(waiting)
        while waiting and room:
            order, number, ticket = heapq.heappop(waiting)
            if (current := self._order(ticket)) > order:  # another ticket of its client has had a turn
                heapq.heappush(waiting, (current, number, ticket))
                continue
            spent, count, pace = 0.0, 0, self._pace_of(ticket.kind)
            while ticket.todo and room and count < turn and spent < self.slice_seconds / TURNS_PER_BATCH:
                cost = ticket.costs[ticket.todo[0]] * pace
                if taken and cost > seconds:
                    room = 0
                    break
                ticket.units -= ticket.costs[ticket.todo[0]]
                taken.setdefault(ticket, []).append(ticket.todo.popleft())
                room, count, spent, seconds = room - 1, count + 1, spent + cost, seconds - cost
            self._clients.charge(ticket.client, spent)
            self._tickets[ticket.client].charge(ticket, spent)
            if not ticket.todo:
                self._dequeue(ticket)
            elif count:
                ticket.since = now
                heapq.heappush(waiting, (self._order(ticket), number, ticket))
        for ticket, numbers in taken.items():
            ticket.first_start = ticket.first_start or now
            ticket.batches += 1
            self.queued -= len(numbers)
        return list(taken.items())

    async def _lane(self) -> None:
        while True:
            batch = self._take()
            if isinstance(batch, list):
                self._batches += 1
                await self._process(batch)
                self._batches -= 1
                self._wakeup.set()
            elif batch is None and self._closed:
                return
            else:
                self._wakeup.clear()
                waiting = asyncio.ensure_future(self._wakeup.wait())
                await asyncio.wait({waiting}, timeout=batch if batch is not None and batch < math.inf else None)
                waiting.cancel()

    async def _process(self, batch: list[Part]) -> None:
        """Runs a batch. If it is too slow, its texts come back in smaller ones. If it fails, each of its requests is
        tried again alone, so that one bad request cannot make another one fail."""
        try:
            await self._attempt(batch)
        except TooSlow as error:
            self._put_back(batch, error.seconds)
        except Exception as error:
            for part in batch:
                if len(batch) == 1 and not isinstance(error, WorkerLost):
                    self._fail(part[0], error)
                    continue
                try:
                    await self._attempt([part])
                except TooSlow as slow:
                    self._put_back([part], slow.seconds)
                except Exception as again:
                    self._fail(part[0], again)
        for ticket, numbers in batch:
            self._count(ticket, numbers, -1)

    def _put_back(self, batch: list[Part], seconds: float) -> None:
        """The texts of a batch that was stopped wait again, for a batch of half the size; a single text fails."""
        live = [part for part in batch if not part[0].done.done()]
        if sum(len(numbers) for _, numbers in live) == 1:
            ticket, (number,) = live[0]
            self._fail(ticket, TooSlow(seconds, number))
            return
        units = sum(ticket.costs[number] for ticket, numbers in live for number in numbers)
        for ticket, numbers in live:
            least = 2 * self.slice_seconds / units  # so that half of these texts fill a slice
            self._pace[ticket.kind] = max(self._pace_of(ticket.kind), least)
            self._enqueue(ticket, numbers)

    async def _attempt(self, batch: list[Part]) -> None:
        live = [part for part in batch if not part[0].done.done()]
        texts = [ticket.texts[number] for ticket, numbers in live for number in numbers]
        if not texts:
            return
        self.running += len(texts)
        try:
            results, seconds = await self.run(texts, live[0][0].key)
        finally:
            self.running -= len(texts)
        if len(results) != len(texts):
            raise RuntimeError(f"{len(texts)} texts gave {len(results)} results")
        units = sum(ticket.costs[number] for ticket, numbers in live for number in numbers)
        self._learn(live[0][0].kind, seconds / max(units, 1e-9))
        given = iter(results)
        for ticket, numbers in live:
            for number in numbers:
                ticket.results[number] = next(given)
            ticket.missing -= len(numbers)
            if not ticket.missing and not ticket.done.done():
                ticket.done.set_result(ticket.results)

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        if not ticket.done.done():
            ticket.done.set_exception(error)
        self.cancel(ticket)
