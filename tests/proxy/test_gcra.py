"""The limiter's memory against a model in exact fractions, over reloads, and at its bound."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gcra import Gcra, Terms


def ask(memory: Gcra, key: str, now: float) -> bool:
    used = memory.used(key, now)
    if not memory.fits(used):
        return False
    memory.take(key, used, now)
    return True


def test_H01_no_double_burst_at_a_window_boundary() -> None:
    memory = Gcra(Terms(10, 60.0, 10))
    passed = [ask(memory, "k", 59.9) for _ in range(11)] + [ask(memory, "k", 60.1) for _ in range(10)]
    assert passed == [True] * 10 + [False] * 11


@given(
    events=st.integers(1, 50),
    per_s=st.sampled_from([1, 60, 3600]),
    burst=st.integers(1, 50),
    gaps=st.lists(st.integers(0, 200_000), min_size=1, max_size=60),
)
def test_exactly_what_a_bucket_of_fractions_lets_pass(events: int, per_s: int, burst: int, gaps: list[int]) -> None:
    memory = Gcra(Terms(events, float(per_s), burst))
    level, now_ms = Fraction(0), 0
    for gap in gaps:
        now_ms += gap
        level = max(Fraction(0), level - Fraction(gap * events, 1000 * per_s))
        fits = level + 1 <= burst
        # Within a millionth of a request of the boundary the floats may decide either way.
        if abs(level + 1 - burst) > Fraction(1, 100_000) or level + 1 == burst:
            assert memory.fits(memory.used("k", now_ms / 1000)) == fits
        passed = ask(memory, "k", now_ms / 1000)
        level += 1 if passed else 0


@given(wait=st.floats(0.0, 100.0), events=st.integers(1, 1000), asked=st.integers(1, 80))
def test_H02_who_waits_as_told_passes(wait: float, events: int, asked: int) -> None:
    memory = Gcra(Terms(events, 60.0, 20))
    for _ in range(asked):
        ask(memory, "k", wait)
    used = memory.used("k", wait)
    assert memory.fits(memory.used("k", wait + memory.wait_s(used)))


def test_H04_a_lowered_limit_counts_what_was_used() -> None:
    memory = Gcra(Terms(100, 60.0, 100))
    for _ in range(80):
        assert ask(memory, "k", 0.0)
    memory.change(Terms(50, 60.0, 50), 0.0)
    used = memory.used("k", 0.0)
    assert used == pytest.approx(80.0)
    assert not memory.fits(used)
    assert memory.remaining(used) == 0
    assert memory.wait_s(used) == pytest.approx(31 * 60 / 50)  # until usage is 49, so that one more makes 50
    assert not ask(memory, "k", 37.1)
    assert ask(memory, "k", 37.3)


def test_H04_a_raised_limit_gives_no_free_bucket() -> None:
    memory = Gcra(Terms(50, 60.0, 50))
    for _ in range(50):
        assert ask(memory, "k", 0.0)
    memory.change(Terms(200, 60.0, 200), 6.0)  # five were forgiven at the old pace
    assert sum(ask(memory, "k", 6.0) for _ in range(300)) == 155


def test_the_table_is_bounded_and_only_full_buckets_make_room() -> None:
    memory = Gcra(Terms(1, 1.0, 2), max_keys=3)
    for key in ("a", "b", "c"):
        assert ask(memory, key, 0.0)
    assert ask(memory, "d", 0.5)  # nobody is full again: the common bucket
    assert ask(memory, "e", 0.5)
    assert not ask(memory, "f", 0.5)
    assert len(memory) == 3
    assert memory.used("a", 0.5) == pytest.approx(0.5)  # nobody was forgiven
    assert not ask(memory, "g", 1.0)  # there is room again, but the common bucket is not forgiven either
    assert ask(memory, "g", 1.5)
    assert memory.used("g", 1.5) == pytest.approx(2.0)
    assert len(memory) == 3


def test_a_full_table_of_busy_keys_still_finds_the_idle_ones() -> None:
    memory = Gcra(Terms(1, 1.0, 1), max_keys=40)
    for i in range(40):
        assert ask(memory, f"k{i}", 9.5 if i < 39 else 0.0)
    now = 10.0
    asked = [ask(memory, f"new{i}", now) for i in range(4)]
    assert asked == [True, False, False, False]  # the first one is the common bucket's; the hand found k39 meanwhile
    assert len(memory) == 39


def test_keys_do_not_share() -> None:
    memory = Gcra(Terms(1, 60.0, 1))
    assert ask(memory, "a", 0.0)
    assert ask(memory, "b", 0.0)
    assert not ask(memory, "a", 0.0)
