"""Checks of passwords: off the loop, bounded, shared while they run, remembered once right."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable

from proxy.password_checks import MAX_OPEN, MAX_OPEN_PER_CLIENT, MAX_REMEMBERED, PasswordChecks


class Slow:
    """A judge that waits to be let go; right is only the password ``right``."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[bytes] = []
        self.threads: set[int] = set()

    def __call__(self, kept: bytes, password: bytes) -> bool:
        self.asked.append(password)
        self.threads.add(threading.get_ident())
        assert self.go.wait(10.0)
        return password == b"right"


async def test_a_check_runs_beside_the_loop_and_equal_ones_are_one() -> None:
    slow = Slow()
    checks = PasswordChecks(slow)
    begun = [checks.begin(b"d", f"client{i}", b"h", b"right") for i in range(20)]
    assert checks.num_open == 1
    assert threading.get_ident() not in slow.threads
    slow.go.set()
    assert await asyncio.gather(*[each for each in begun if each is not None]) == [True] * 20
    assert slow.asked == [b"right"]
    assert checks.num_open == 0


async def test_waiting_is_bounded_for_all_and_for_each_client() -> None:
    slow = Slow()
    checks = PasswordChecks(slow)
    begun = [checks.begin(b"%d" % i, str(i // MAX_OPEN_PER_CLIENT), b"h", b"%d" % i) for i in range(MAX_OPEN)]
    assert None not in begun
    assert checks.begin(b"more", "another", b"h", b"more") is None
    slow.go.set()
    await asyncio.gather(*[each for each in begun if each is not None])
    slow.go.clear()
    of_one = [checks.begin(b"%d" % i, "one", b"h", b"%d" % i) for i in range(MAX_OPEN_PER_CLIENT + 1)]
    assert of_one.index(None) == MAX_OPEN_PER_CLIENT
    other = checks.begin(b"other", "other", b"h", b"right")
    assert other is not None
    slow.go.set()
    assert await other
    await asyncio.gather(*[each for each in of_one if each is not None])


async def left_by(check: Awaitable[bool] | None) -> None:
    """Wait for a check, and leave."""
    assert check is not None
    waiting = asyncio.ensure_future(check)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_what_nobody_waits_for_any_more_is_not_hashed_but_counts_until_its_thread_is_free() -> None:
    slow = Slow()
    checks = PasswordChecks(slow, num_threads=1)
    running = checks.begin(b"running", "a", b"h", b"running")
    await left_by(checks.begin(b"left", "a", b"h", b"left"))
    assert checks.num_open == 2
    # Who comes now does not join what a thread may skip.
    again = checks.begin(b"left", "a", b"h", b"right")
    slow.go.set()
    assert running is not None
    assert again is not None
    assert (await running, await again) == (False, True)
    async with asyncio.timeout(20):
        while checks.num_open:  # noqa: ASYNC110 (its thread tells the loop in a turn of its own)
            await asyncio.sleep(0)
    assert slow.asked == [b"running", b"right"]


async def test_one_of_two_who_leaves_does_not_end_what_the_other_waits_for() -> None:
    slow = Slow()
    checks = PasswordChecks(slow, num_threads=1)
    staying = checks.begin(b"d", "a", b"h", b"right")
    await left_by(checks.begin(b"d", "b", b"h", b"right"))
    slow.go.set()
    assert staying is not None
    assert await staying
    assert slow.asked == [b"right"]


def test_what_was_right_is_remembered_for_a_while_under_a_key_of_the_process() -> None:
    checks, others = PasswordChecks(Slow()), PasswordChecks(Slow())
    digest = checks.digest(b"u", b"h", b"p")
    assert digest != others.digest(b"u", b"h", b"p")
    assert len({digest, checks.digest(b"uh", b"", b"p"), checks.digest(b"u", b"h2", b"p")}) == 3
    checks.remember(digest, 100.0)
    assert checks.remembers(digest, 100.0)
    assert not checks.remembers(digest, 100.1)


def test_the_memory_is_bounded_and_the_oldest_makes_room() -> None:
    checks = PasswordChecks(Slow())
    for i in range(MAX_REMEMBERED + 1):
        checks.remember(b"%d" % i, 0.0)
        checks.remember(b"1", 0.0)
    assert not checks.remembers(b"0", 0.0)
    assert checks.remembers(b"1", 0.0)
    assert checks.remembers(b"%d" % MAX_REMEMBERED, 0.0)
