"""Texts of many requests -> shared batches -> each request's own results.

A request becomes a `Ticket`: its texts and a key made of its options. A batch holds texts of one key
only. It leaves when it is full or when its oldest ticket has waited `max_wait` seconds. Tickets of one
key take turns, so a request with one text never waits for a whole file of a thousand. Everything here
runs on one asyncio loop and knows nothing about HTTP or models.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

Run = Callable[[list[Any], Any], Awaitable[list[Any]]]
TURNS_PER_BATCH = 4  # a ticket fills at most a quarter of a batch per turn while others wait


class QueueFull(Exception):
    """The queue has no room for these texts; try again in `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


class Closed(Exception):
    """The batcher is shutting down and accepts nothing new."""


class WorkerLost(Exception):
    """The process that ran a batch died or hung; the batch has no answer."""


@dataclass(eq=False)
class Ticket:
    """The texts of one request, and how far they have come."""

    texts: Sequence[Any]  # each in the form that `run` takes
    key: Hashable
    done: asyncio.Future[list[Any]]
    arrived: float
    since: float  # arrival or last turn; decides whose turn it is
    results: list[Any] = field(default_factory=list)
    started: int = 0  # texts in batches so far
    missing: int = 0  # texts without a result so far
    first_start: float | None = None
    batches: int = 0

    def waited(self) -> float:
        """Seconds in the queue before its first text was started."""
        return (self.first_start or time.monotonic()) - self.arrived


Part = tuple[Ticket, int, int]  # a ticket and the range of its texts inside one batch


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
    ) -> None:
        self.run, self.max_batch, self.max_wait, self.max_queue = run, max_batch, max_wait, max_queue
        self.max_delay, self.workers, self.ahead = max_delay, workers, ahead
        self.queued = 0  # texts accepted and not yet started
        self.running = 0  # texts inside a batch now
        self._batches = 0  # batches under way
        self._groups: dict[Hashable, deque[Ticket]] = {}
        self._wakeup = asyncio.Event()
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._seconds_per_text = 0.01
        self._returned = 0.0  # when the last batch came back

    def start(self) -> None:
        """Starts the lanes on the running loop."""
        self._tasks = [asyncio.create_task(self._lane(), name=f"lane-{i}") for i in range(self.workers + self.ahead)]

    async def close(self) -> None:
        """Accepts nothing new, answers everything queued, then stops the lanes."""
        self._closed = True
        self._wakeup.set()
        await asyncio.gather(*self._tasks)

    def submit(self, texts: Sequence[Any], key: Hashable) -> Ticket:
        """Accepts all texts or none; `ticket.done` will hold their results in order."""
        if self._closed:
            raise Closed
        if self.full(len(texts)):
            raise QueueFull(self.retry_after())
        now = time.monotonic()
        ticket = Ticket(texts, key, asyncio.get_running_loop().create_future(), now, now)
        ticket.results, ticket.missing = [None] * len(texts), len(texts)
        if not texts:
            ticket.done.set_result([])
            return ticket
        self._groups.setdefault(key, deque()).append(ticket)
        self.queued += len(texts)
        self._wakeup.set()
        return ticket

    def cancel(self, ticket: Ticket) -> int:
        """Drops the ticket's texts that no batch has started; returns how many."""
        ticket.done.cancel()
        group = self._groups.get(ticket.key, ())
        if ticket not in group:
            return 0
        self._groups[ticket.key].remove(ticket)
        if not self._groups[ticket.key]:
            del self._groups[ticket.key]
        left = len(ticket.texts) - ticket.started
        self.queued -= left
        return left

    def full(self, texts: int = 1) -> bool:
        """Whether `texts` more would exceed the queue's length or could not be done within `max_delay`."""
        late = self.queued > 0 and self._seconds_to_empty() > self.max_delay
        return late or self.queued + texts > self.max_queue

    def retry_after(self) -> int:
        """Seconds until the queue should be empty, rounded up; 1 to 60."""
        return min(60, max(1, math.ceil(self._seconds_to_empty())))

    def _seconds_to_empty(self) -> float:
        """Estimated seconds until the queue is empty, at the pace so far."""
        return (self.queued + self.running) * self._seconds_per_text

    def _take(self) -> list[Part] | float | None:
        """The next batch, or seconds until one may leave (inf: wait for a worker), or None if nothing is queued."""
        now, idle = time.monotonic(), self._batches < self.workers
        full = {key for key, group in self._groups.items() if self._size(group) >= self.max_batch}
        oldest_first = sorted(self._groups, key=lambda key: self._groups[key][0].since)
        if not idle and not full:
            return math.inf if oldest_first else None
        for key in oldest_first:
            # The oldest group goes first. If only full groups were taken, a rare key could wait forever.
            overdue = self._closed or now - self._groups[key][0].since >= self.max_wait
            if overdue or key in full:
                return self._fill(key, self._groups[key], now)
        return self._groups[oldest_first[0]][0].since + self.max_wait - now if oldest_first else None

    def _size(self, group: deque[Ticket]) -> int:
        return sum(len(ticket.texts) - ticket.started for ticket in group)

    def _fill(self, key: Hashable, group: deque[Ticket], now: float) -> list[Part]:
        turn = max(1, self.max_batch // TURNS_PER_BATCH)
        room = self.max_batch
        taken: dict[Ticket, tuple[int, int]] = {}  # its range of texts
        while room and group:
            ticket = group.popleft()
            count = min(turn, room, len(ticket.texts) - ticket.started)
            first = taken[ticket][0] if ticket in taken else ticket.started
            taken[ticket] = (first, ticket.started + count)
            ticket.started += count
            room -= count
            if ticket.started < len(ticket.texts):
                ticket.since = now
                group.append(ticket)
        if not group:
            del self._groups[key]
        for ticket in taken:
            ticket.first_start = ticket.first_start or now
            ticket.batches += 1
        self.queued -= self.max_batch - room
        return [(ticket, first, last) for ticket, (first, last) in taken.items()]

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
                await asyncio.wait({waiting}, timeout=None if batch == math.inf else batch)
                waiting.cancel()

    async def _process(self, batch: list[Part]) -> None:
        """Runs a batch. If it fails, each of its requests is tried again alone, so that one bad request
        cannot make another one fail."""
        try:
            await self._attempt(batch)
        except Exception as error:
            for part in batch:
                if len(batch) == 1 and not isinstance(error, WorkerLost):
                    self._fail(part[0], error)
                    continue
                try:
                    await self._attempt([part])
                except Exception as again:
                    self._fail(part[0], again)

    async def _attempt(self, batch: list[Part]) -> None:
        live = [part for part in batch if not part[0].done.done()]
        texts = [text for ticket, first, last in live for text in ticket.texts[first:last]]
        if not texts:
            return
        begun = time.monotonic()
        self.running += len(texts)
        try:
            results = await self.run(texts, live[0][0].key)
        finally:
            self.running -= len(texts)
        if len(results) != len(texts):
            raise RuntimeError(f"{len(texts)} texts gave {len(results)} results")
        # Batches overlap, so the pace is counted from one batch's return to the next.
        now = time.monotonic()
        self._seconds_per_text += 0.2 * ((now - max(begun, self._returned)) / len(texts) - self._seconds_per_text)
        self._returned = now
        position = 0
        for ticket, first, last in live:
            ticket.results[first:last] = results[position : position + last - first]
            position += last - first
            ticket.missing -= last - first
            if not ticket.missing and not ticket.done.done():
                ticket.done.set_result(ticket.results)

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        if not ticket.done.done():
            ticket.done.set_exception(error)
        self.cancel(ticket)
