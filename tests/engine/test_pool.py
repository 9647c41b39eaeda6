"""The threads that make requests ready: bounded, and nothing is begun for those who have gone."""

import asyncio
import threading

import pytest

from engine.errors import Kind, RequestError
from engine.pool import Pool


class Gate:
    """Work that begins when a thread takes it and ends when it is let go."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.has_begun = threading.Event()
        self.let_go = threading.Event()

    def pass_(self, number: int) -> int:
        self.begun.append(number)
        self.has_begun.set()
        self.let_go.wait(60)
        return number


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def test_gives_what_the_work_gives_or_raises() -> None:
    pool = Pool(2)
    assert await pool.run(int, "7", base=8) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await pool.run(int, "x")
    assert (pool.num_inside, pool.num_done) == (0, 1)
    pool.close()


async def test_what_is_cancelled_is_not_begun(gate: Gate) -> None:
    pool = Pool(1)
    first, second, third = (asyncio.ensure_future(pool.run(gate.pass_, number)) for number in (1, 2, 3))
    await asyncio.to_thread(gate.has_begun.wait, 60)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.let_go.set()
    assert await first == 1
    assert await third == 3
    assert gate.begun == [1, 3]
    pool.close()


async def test_more_than_may_wait_is_refused_at_once(gate: Gate) -> None:
    pool = Pool(1, max_waiting=2)
    inside = [asyncio.ensure_future(pool.run(gate.pass_, number)) for number in range(3)]
    await asyncio.to_thread(gate.has_begun.wait, 60)
    with pytest.raises(RequestError, match="2 images and texts wait") as caught:
        await pool.run(gate.pass_, 4)
    assert caught.value.kind is Kind.OVERLOADED
    assert caught.value.headers()["Retry-After"] == "1"
    gate.let_go.set()
    assert await asyncio.gather(*inside) == [0, 1, 2]
    assert await pool.run(gate.pass_, 5) == 5
    pool.close()


async def test_one_that_gives_up_in_the_middle_leaves_its_place(gate: Gate) -> None:
    pool = Pool(1)
    work = asyncio.ensure_future(pool.run(gate.pass_, 1))
    await asyncio.to_thread(gate.has_begun.wait, 60)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert pool.num_inside == 0
    gate.let_go.set()
    assert await pool.run(gate.pass_, 2) == 2
    pool.close()


async def test_what_waits_is_not_begun_after_the_end(gate: Gate) -> None:
    pool = Pool(1)
    first, second = (asyncio.ensure_future(pool.run(gate.pass_, number)) for number in (1, 2))
    await asyncio.to_thread(gate.has_begun.wait, 60)
    pool.close()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.let_go.set()
    assert await first == 1
    assert gate.begun == [1]
