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
