"""The line of requests that wait for a connection to one server."""

from __future__ import annotations

import asyncio

import pytest

from proxy.upstream.waiting import Bounds, Given, ServerFull, Waiting


def line(handed_on: list[Given] | None = None, **bounds: float) -> Waiting:
    return Waiting(Bounds(**bounds), (handed_on if handed_on is not None else []).append)  # type: ignore[arg-type]


async def waiters(waiting: Waiting, count: int) -> list[asyncio.Task[Given]]:
    tasks = [asyncio.create_task(waiting.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_first_come_first_served() -> None:
    waiting = line()
    tasks = await waiters(waiting, 3)
    for number in range(3):
        assert waiting.give(None)
        await tasks[number]
        assert [task.done() for task in tasks] == [True] * (number + 1) + [False] * (2 - number)
    assert not waiting.give(None)


async def test_the_line_is_bounded_and_says_so() -> None:
    waiting = line(max_connections=7, pending=2, pending_timeout_s=3.0)
    tasks = await waiters(waiting, 2)
    with pytest.raises(ServerFull, match=r"all 7 connections .*\(max_connections\).* 2 requests .*\(pending\)") as full:
        await waiting.wait()
    assert (full.value.limit, full.value.retry_after_s) == ("pending", 3.0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(waiting) == 0


async def test_the_wait_is_bounded_and_says_so() -> None:
    waiting = line(pending_timeout_s=0.001)
    with pytest.raises(ServerFull, match=r"within 0\.001 s \(pending_timeout\)") as full:
        await waiting.wait()
    assert (full.value.limit, full.value.retry_after_s) == ("pending_timeout", 1.0)
    assert len(waiting) == 0


async def test_what_was_given_to_one_that_left_goes_on() -> None:
    """It was given in the very turn in which the request was cancelled."""
    handed_on: list[Given] = []
    waiting = line(handed_on)
    (leaving,) = await waiters(waiting, 1)
    assert waiting.give(None)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert handed_on == [None]


async def test_one_that_left_is_passed_by() -> None:
    waiting = line()
    leaving, staying = await waiters(waiting, 2)
    leaving.cancel()
    assert waiting.give(None)
    await asyncio.wait([leaving, staying])
    assert leaving.cancelled()
    assert staying.result() is None


async def test_the_urgent_are_given_first_and_of_equals_who_came_first() -> None:
    waiting, order = line(), []
    tasks = []
    for rank, name in ((2, "low"), (1, "normal"), (0, "high"), (1, "normal too")):
        tasks.append(asyncio.create_task(waiting.wait(rank), name=name))
        tasks[-1].add_done_callback(lambda task: order.append(task.get_name()))
        await asyncio.sleep(0)
    while waiting.give(None):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == ["high", "normal", "normal too", "low"]


async def test_a_full_line_makes_room_for_the_more_urgent_by_refusing_the_last_of_the_least() -> None:
    waiting = line(max_connections=7, pending=3)
    low, low_too, normal = [asyncio.create_task(waiting.wait(rank)) for rank in (2, 2, 1)]
    await asyncio.sleep(0)
    high = asyncio.create_task(waiting.wait(0))
    with pytest.raises(ServerFull, match=r"more urgent request took the place among the 3 that wait \(pending\)"):
        await low_too
    with pytest.raises(ServerFull, match="3 requests wait"):
        await waiting.wait(2)
    assert len(waiting) == 3
    high_too, third = asyncio.create_task(waiting.wait(0)), asyncio.create_task(waiting.wait(0))
    for refused in (low, normal):
        with pytest.raises(ServerFull):
            await refused
    with pytest.raises(ServerFull):
        await waiting.wait(0)
    assert all(waiting.give(None) for _ in range(3))
    assert await asyncio.gather(high, high_too, third) == [None] * 3


async def test_one_that_leaves_as_it_is_refused_is_heard_of_no_more() -> None:
    waiting = line(pending=1)
    leaving = asyncio.create_task(waiting.wait(2))
    await asyncio.sleep(0)
    high = asyncio.create_task(waiting.wait(0))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises((asyncio.CancelledError, ServerFull)):
        await leaving
    assert waiting.give(None)
    assert await high is None
