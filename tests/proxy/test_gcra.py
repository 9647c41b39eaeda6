"""The arithmetic of limits, and their memory against a model in exact fractions, over reloads."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gcra import Terms
from proxy.shared.layout import Geometry
from proxy.shared.limit import SharedLimit
from proxy.shared.table import SharedTable

SMALL = Geometry(limits=2, keys=16, permits=16, records=2)


def limit(terms: Terms, table: SharedTable | None = None) -> SharedLimit:
    return (table or SharedTable.alone(SMALL)).limit("a", terms)


def ask(memory: SharedLimit, key: str, now: float) -> bool:
    return memory.decide(key, now) >= 0.0


def test_H01_no_double_burst_at_a_window_boundary() -> None:
    memory = limit(Terms(10, 60.0, 10))
    passed = [ask(memory, "k", 59.9) for _ in range(11)] + [ask(memory, "k", 60.1) for _ in range(10)]
    assert passed == [True] * 10 + [False] * 11


@given(
    events=st.integers(1, 50),
    per_s=st.sampled_from([1, 60, 3600]),
    burst=st.integers(1, 50),
    gaps=st.lists(st.integers(0, 200_000), min_size=1, max_size=60),
)
def test_exactly_what_a_bucket_of_fractions_lets_pass(events: int, per_s: int, burst: int, gaps: list[int]) -> None:
    memory = limit(Terms(events, float(per_s), burst))
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
    memory = limit(Terms(events, 60.0, 20))
    for _ in range(asked):
        ask(memory, "k", wait)
    used = memory.used("k", wait)
    assert memory.fits(memory.used("k", wait + memory.wait_s(used)))


def test_H04_a_lowered_limit_counts_what_was_used() -> None:
    table = SharedTable.alone(SMALL)
    memory = limit(Terms(100, 60.0, 100), table)
    for _ in range(80):
        assert ask(memory, "k", 0.0)
    memory = limit(Terms(50, 60.0, 50), table)
    used = memory.used("k", 0.0)
    assert used == pytest.approx(80.0)
    assert not memory.fits(used)
    assert memory.remaining(used) == 0
    assert memory.wait_s(used) == pytest.approx(31 * 60 / 50)  # until usage is 49, so that one more makes 50
    assert not ask(memory, "k", 37.1)
    assert ask(memory, "k", 37.3)


def test_H04_a_raised_limit_gives_no_free_bucket() -> None:
    table = SharedTable.alone(SMALL)
    memory = limit(Terms(50, 60.0, 50), table)
    for _ in range(50):
        assert ask(memory, "k", 0.0)
    memory = limit(Terms(200, 60.0, 200), table)
    # The first request under the new terms changes the pace: five were forgiven at the old one.
    assert sum(ask(memory, "k", 6.0) for _ in range(300)) == 155


def test_H04_while_a_reload_goes_round_each_snapshot_judges_by_its_own_terms() -> None:
    table = SharedTable.alone(SMALL)
    old, new = limit(Terms(60, 60.0, 4), table), limit(Terms(600, 60.0, 2), table)
    assert [ask(memory, "k", 0.0) for memory in (old, new, new, old, old, old)] == [True] * 2 + [False] + [True] * 2 + [
        False
    ]
    assert old.used("k", 0.0) == pytest.approx(4.0)
    assert not ask(new, "k", 0.1)  # from here on at the new pace
    assert old.used("k", 0.4) == pytest.approx(4.0 - 0.1 - 3.0)  # and from here on at the old one
    assert new.used("k", 0.4) == pytest.approx(0.9)


def test_keys_do_not_share() -> None:
    memory = limit(Terms(1, 60.0, 1))
    assert ask(memory, "a", 0.0)
    assert ask(memory, "b", 0.0)
    assert not ask(memory, "a", 0.0)
