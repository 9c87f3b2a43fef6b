"""The dynamic batcher: sizes, waiting, grouping, fairness, bounds, failures, shutdown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pusl.serve.batching import Batcher, Closed, QueueFull, TooSlow, WorkerLost

pytestmark = pytest.mark.slow  # waits on purpose


class Recorder:
    """Answers each text with itself and its key, and keeps the batches it saw."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.batches: list[tuple[list[str], Any]] = []

    async def __call__(self, texts: list[str], key: Any) -> tuple[list[Any], float]:
        self.batches.append((texts, key))
        await asyncio.sleep(self.seconds)
        return [(text, key) for text in texts], self.seconds


def running(run: Any, body: Callable[[Batcher], Awaitable[None]], **settings: Any) -> None:
    async def scene() -> None:
        batcher = Batcher(run, **settings)
        batcher.start()
        try:
            await asyncio.wait_for(body(batcher), 10)
        finally:
            await batcher.close()

    asyncio.run(scene())


def test_a_full_batch_leaves_at_once_and_a_partial_one_after_the_wait() -> None:
    run = Recorder()

    async def body(batcher: Batcher) -> None:
        begun = time.monotonic()
        tickets = [batcher.submit([f"t{i}"], "key") for i in range(4)]
        await asyncio.gather(*(ticket.done for ticket in tickets))
        assert time.monotonic() - begun < 0.2
        begun = time.monotonic()
        assert await batcher.submit(["late"], "key").done == [("late", "key")]
        assert time.monotonic() - begun >= 0.29

    running(run, body, max_batch=4, max_wait=0.3)
    assert [len(texts) for texts, _ in run.batches] == [4, 1]


def test_only_equal_options_share_a_batch_and_results_keep_their_order() -> None:
    run = Recorder()

    async def body(batcher: Batcher) -> None:
        tickets = [batcher.submit([f"{i}a", f"{i}b"], ("k", i % 2)) for i in range(10)]
        for i, ticket in enumerate(tickets):
            assert await ticket.done == [(f"{i}a", ("k", i % 2)), (f"{i}b", ("k", i % 2))]

    running(run, body, max_batch=8, max_wait=0.01)
    for texts, key in run.batches:
        assert {int(text[:-1]) % 2 for text in texts} == {key[1]}


def test_a_long_request_does_not_hold_up_a_short_one() -> None:
    run = Recorder(0.01)

    async def body(batcher: Batcher) -> None:
        long = batcher.submit([f"row{i}" for i in range(80)], "key")
        await asyncio.sleep(0.015)
        short = batcher.submit(["one"], "key")
        await short.done
        assert not long.done.done()
        assert [text for text, _ in await long.done] == [f"row{i}" for i in range(80)]

    running(run, body, max_batch=8, max_wait=0.001)
    position = next(i for i, (texts, _) in enumerate(run.batches) if "one" in texts)
    assert position <= 3
    assert all(len(texts) == 8 for texts, _ in run.batches[:-1])


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    async def body(batcher: Batcher) -> None:
        tickets = [batcher.submit(["a", "b"], "key") for _ in range(5)]
        with pytest.raises(QueueFull) as caught:
            batcher.submit(["one too many"], "key")
        assert 1 <= caught.value.retry_after <= 60
        assert batcher.queued == 10
        await asyncio.gather(*(ticket.done for ticket in tickets))
        assert batcher.queued == batcher.running == 0

    running(Recorder(0.01), body, max_batch=4, max_wait=0.05, max_queue=10)


def test_retry_after_follows_the_pace() -> None:
    async def body(batcher: Batcher) -> None:
        for _ in range(12):
            await batcher.submit(["x"], "key").done
        waiting = [batcher.submit(["x"], "key") for _ in range(20)]
        assert 1 < batcher.retry_after() <= 4  # 20 texts at about 0.15 s each
        for ticket in waiting:
            batcher.cancel(ticket)

    running(Recorder(0.15), body, max_batch=1, max_wait=0)


def test_what_could_not_be_answered_in_time_is_refused_at_once() -> None:
    async def body(batcher: Batcher) -> None:
        assert not batcher.full(100)  # nothing is known yet, and nothing waits
        await asyncio.gather(*(batcher.submit(["a", "b"], "key").done for _ in range(5)))  # about 0.1 s a text
        accepted = [batcher.submit(["c"], "key")]
        with pytest.raises(QueueFull) as refused:
            for _ in range(100):
                accepted.append(batcher.submit(["c"], "key"))
                await asyncio.sleep(0)
        assert refused.value.retry_after == 1 and 2 < len(accepted) < 20
        await asyncio.gather(*(ticket.done for ticket in accepted))
        assert not batcher.full()  # the queue is through: the next one is welcome

    running(Recorder(0.2), body, max_batch=2, max_wait=0.001, max_delay=0.5)


def test_a_small_request_is_welcome_behind_a_huge_one() -> None:
    async def body(batcher: Batcher) -> None:
        await batcher.submit(["a", "b"], "key").done  # 0.05 s a text
        huge = batcher.submit(["c"] * 100, "key")  # 5 s of work; none may wait longer than 0.5 s
        await asyncio.sleep(0)
        begun = time.monotonic()
        small = batcher.submit(["d"], "key")
        with pytest.raises(QueueFull):
            batcher.submit(["e"] * 50, "key")
        await small.done
        assert time.monotonic() - begun < 0.45 and not huge.done.done()
        assert batcher.cancel(huge) > 80

    running(Recorder(0.1), body, max_batch=2, max_wait=0.001, max_delay=0.5)


def test_clients_take_turns_whatever_number_of_requests_they_send() -> None:
    run = Recorder(0.01)

    async def body(batcher: Batcher) -> None:
        greedy = [batcher.submit([f"g{i}"], i, client="greedy") for i in range(40)]
        await asyncio.sleep(0.025)
        modest = [batcher.submit([f"m{i}"], i, client="modest") for i in range(3)]
        await asyncio.gather(*(ticket.done for ticket in modest))
        assert sum(ticket.done.done() for ticket in greedy) < 15
        await asyncio.gather(*(ticket.done for ticket in greedy))

    running(run, body, max_batch=4, max_wait=0)


def test_batches_are_cut_by_cost() -> None:
    sizes: list[int] = []

    async def run(texts: list[str], key: Any) -> tuple[list[Any], float]:
        sizes.append(len(texts))
        return texts, 0.1 * len(texts) * int(key)  # 0.1 s a unit

    async def body(batcher: Batcher) -> None:
        batcher.seconds_per_unit = 0.1
        await batcher.submit(["x"] * 40, "1", costs=[1.0] * 40).done
        assert sizes == [10, 10, 10, 10]  # a slice is a second
        sizes.clear()
        await batcher.submit(["x"] * 4, "30", costs=[30.0] * 4).done
        assert sizes == [1, 1, 1, 1]  # and at least one text

    running(run, body, max_batch=32, max_wait=0)


def test_a_batch_that_was_too_slow_comes_back_in_halves_and_only_a_slow_text_fails() -> None:
    sizes: list[int] = []

    async def run(texts: list[str], key: Any) -> tuple[list[Any], float]:
        sizes.append(len(texts))
        if len(texts) > 4 or "slow" in texts:
            raise TooSlow(2.0)
        return texts, 0.01

    async def body(batcher: Batcher) -> None:
        batcher.seconds_per_unit = 1e-6
        texts = [f"t{i}" for i in range(16)]
        assert await batcher.submit(texts, "key").done == texts
        assert sizes[:3] == [16, 8, 4] and len(sizes) < 12
        with pytest.raises(TooSlow) as slow:
            await batcher.submit(["a", "b", "slow"], "other").done
        assert slow.value.text == 2
        assert batcher.queued == batcher.running == 0
        assert batcher.retry_after() == 1

    running(run, body, max_batch=32, max_wait=0)


def test_a_canceled_ticket_is_never_started() -> None:
    run = Recorder(0.05)

    async def body(batcher: Batcher) -> None:
        first = batcher.submit(["first"], "key")
        await asyncio.sleep(0.02)  # the only lane is busy now
        gone, stays = batcher.submit(["gone"] * 3, "key"), batcher.submit(["stays"], "key")
        assert batcher.cancel(gone) == 3
        assert batcher.cancel(gone) == 0
        assert batcher.queued == 1
        await asyncio.gather(first.done, stays.done)

    running(run, body, max_batch=4, max_wait=0)
    assert [texts for texts, _ in run.batches] == [["first"], ["stays"]]


def test_one_bad_request_does_not_spoil_its_batch_mates() -> None:
    async def run(texts: list[str], key: Any) -> tuple[list[Any], float]:
        if "poison" in texts:
            raise ValueError("poison")
        return texts, 0.0

    async def body(batcher: Batcher) -> None:
        good, bad, also_good = (batcher.submit([text], "key") for text in ("a", "poison", "b"))
        assert await good.done == ["a"]
        assert await also_good.done == ["b"]
        with pytest.raises(ValueError, match="poison"):
            await bad.done
        assert await batcher.submit(["later"], "key").done == ["later"]

    running(run, body, max_batch=3, max_wait=0.1)


def test_a_lost_worker_costs_a_second_try_and_no_answer() -> None:
    tries = 0

    async def run(texts: list[str], key: Any) -> tuple[list[Any], float]:
        nonlocal tries
        tries += 1
        if tries == 1 or key == "cursed":
            raise WorkerLost("died")
        return texts, 0.0

    async def body(batcher: Batcher) -> None:
        assert await batcher.submit(["a"], "key").done == ["a"]
        assert tries == 2
        with pytest.raises(WorkerLost):
            await batcher.submit(["b"], "cursed").done
        assert tries == 4

    running(run, body, max_batch=3, max_wait=0)


def test_a_failed_part_drops_the_rest_of_its_request() -> None:
    run_texts: list[str] = []

    async def run(texts: list[str], key: Any) -> tuple[list[Any], float]:
        run_texts.extend(texts)
        raise ValueError("no")

    async def body(batcher: Batcher) -> None:
        ticket = batcher.submit([f"t{i}" for i in range(40)], "key")
        with pytest.raises(ValueError, match="no"):
            await ticket.done
        await asyncio.sleep(0.02)
        assert batcher.queued == 0

    running(run, body, max_batch=4, max_wait=0)
    assert run_texts == ["t0", "t1", "t2", "t3"]


def test_a_wrong_number_of_results_is_an_error_and_not_a_mix_up() -> None:
    async def run(texts: list[str], key: Any) -> tuple[list[Any], float]:
        return texts[:-1], 0.0

    async def body(batcher: Batcher) -> None:
        with pytest.raises(RuntimeError, match="1 texts gave 0 results"):
            await batcher.submit(["a"], "key").done

    running(run, body, max_batch=3, max_wait=0)


def test_close_answers_what_was_accepted_and_takes_nothing_new() -> None:
    async def scene() -> None:
        batcher = Batcher(Recorder(0.02), max_batch=2, max_wait=5.0)
        batcher.start()
        tickets = [batcher.submit([str(i)], i % 3) for i in range(9)]
        closing = asyncio.ensure_future(batcher.close())
        await asyncio.sleep(0)
        with pytest.raises(Closed):
            batcher.submit(["late"], 0)
        await asyncio.wait_for(closing, 3)  # far less than max_wait: a closing batcher does not wait for mates
        assert [ticket.done.result() for ticket in tickets] == [[(str(i), i % 3)] for i in range(9)]

    asyncio.run(scene())


def test_several_workers_work_at_once() -> None:
    async def body(batcher: Batcher) -> None:
        begun = time.monotonic()
        tickets = [batcher.submit(["x"], i) for i in range(4)]
        await asyncio.gather(*(ticket.done for ticket in tickets))
        assert time.monotonic() - begun < 0.35  # two rounds of 0.1 s, not four

    running(Recorder(0.1), body, max_batch=1, max_wait=0, workers=2)


def test_only_full_batches_leave_ahead_of_a_free_worker() -> None:
    run = Recorder(0.1)

    async def body(batcher: Batcher) -> None:
        tickets = [batcher.submit(["first"], "key")]
        await asyncio.sleep(0.02)
        tickets += [batcher.submit([f"t{i}"], "key") for i in range(3)]
        await asyncio.sleep(0.02)
        assert len(run.batches) == 1  # three of four: they wait for the worker, and for a mate
        tickets.append(batcher.submit(["t3"], "key"))
        await asyncio.sleep(0.02)
        assert len(run.batches) == 2
        tickets.append(batcher.submit(["last"], "key"))
        await asyncio.gather(*(ticket.done for ticket in tickets))

    running(run, body, max_batch=4, max_wait=0, ahead=1)
    assert [len(texts) for texts, _ in run.batches] == [1, 4, 1]


def test_a_rare_key_does_not_starve_beside_full_batches() -> None:
    run = Recorder(0.005)

    async def body(batcher: Batcher) -> None:
        async def client() -> None:
            while not rare.done.done():
                await batcher.submit(["often"] * 2, "often").done

        rare = batcher.submit(["rare"], "rare")
        await asyncio.wait_for(asyncio.gather(*(client() for _ in range(20))), 5)
        assert rare.done.result() == [("rare", "rare")]

    running(run, body, max_batch=4, max_wait=0.01, ahead=1)
    assert len(run.batches) < 40
