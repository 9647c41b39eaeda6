"""A promise about first tokens: broken, probed, and kept again, on a virtual clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.config_models import When
from proxy.llm.slo import RECORD_SIZE, ROW_SIZE, FirstTokens
from proxy.shared.columns import LocalColumns
from proxy.shared.record import LocalRecord

WHEN = When.model_validate({"first_token_p95": "1.2s", "window": "60s", "min_requests": 20})


def alone(when: When = WHEN) -> FirstTokens:
    return FirstTokens(when, LocalRecord(RECORD_SIZE), LocalColumns(ROW_SIZE))


def at_rate(promise: FirstTokens, first_token_s: float, since: float, until: float) -> None:
    """One request each second."""
    for second in range(int(since), int(until)):
        promise.told(first_token_s, float(second))


def test_p95_above_the_limit_breaks_it_and_5_percent_do_not() -> None:
    promise = alone()
    at_rate(promise, 0.3, 0, 38)
    promise.told(9.0, 38.0)
    promise.told(9.0, 38.0)  # 2 of 40
    assert not promise.broken(38.5)
    promise.told(9.0, 39.0)
    assert promise.broken(39.5)


def test_few_requests_say_nothing() -> None:
    promise = alone()
    at_rate(promise, 9.0, 0, 19)
    assert not promise.broken(19.0)
    promise.told(9.0, 19.0)
    assert promise.broken(20.0)


def test_it_is_kept_again_after_a_window_that_is_well_below_the_limit() -> None:
    promise = alone()
    at_rate(promise, 9.0, 0, 30)
    assert promise.broken(30.0)
    at_rate(promise, 1.1, 30, 150)  # below the limit, but not below four fifths of it
    assert promise.broken(150.0)
    at_rate(promise, 0.3, 150, 212)
    assert not promise.broken(216.0)


def test_it_stays_broken_for_a_window_whatever_is_told() -> None:
    promise = alone()
    at_rate(promise, 9.0, 0, 30)
    assert promise.broken(30.0)
    for _ in range(10_000):
        promise.told(0.1, 31.0)
    assert promise.broken(89.0)
    assert not promise.broken(91.0)


def test_nothing_heard_for_a_window_ends_it() -> None:
    promise = alone()
    at_rate(promise, 9.0, 0, 30)
    assert promise.broken(30.0)
    assert not promise.broken(100.0)


def test_all_workers_count_and_all_know() -> None:
    rows = ([0.0] * ROW_SIZE, [0.0] * ROW_SIZE)
    record = LocalRecord(RECORD_SIZE)
    one = FirstTokens(WHEN, record, LocalColumns(ROW_SIZE, (rows[0], rows[1])))
    two = FirstTokens(WHEN, record, LocalColumns(ROW_SIZE, (rows[1], rows[0])))
    at_rate(one, 9.0, 0, 12)
    at_rate(two, 9.0, 0, 12)
    assert one.broken(12.0)
    assert two.broken(12.0)
    assert record.load()[2] == 1.0


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 3.0)), max_size=300))
def test_it_changes_at_most_once_in_a_window_towards_kept(steps: list[tuple[float, float]]) -> None:
    promise = alone(When.model_validate({"first_token_p95": "1.2s", "window": "10s", "min_requests": 5}))
    now, broke_at, broken = 0.0, 0.0, False
    for wait_s, first_token_s in steps:
        now += wait_s
        promise.told(first_token_s, now)
        after = promise.broken(now)
        if after and not broken:
            broke_at = now
        elif broken and not after:
            assert now - broke_at >= 10.0
        broken = after


def test_what_was_told_outlives_who_told_it_and_is_told_once() -> None:
    record = LocalRecord(RECORD_SIZE)
    one, two = (FirstTokens(WHEN, record, LocalColumns(ROW_SIZE)) for _ in range(2))
    assert [one.turned(False), one.turned(True), two.turned(True), one.turned(True)] == [False, True, False, False]
    at_rate(one, 9.0, 0, 30)
    assert one.broken(30.0)  # which changes the record beside it
    later = FirstTokens(WHEN, record, LocalColumns(ROW_SIZE))
    assert [later.turned(True), later.turned(False), two.turned(False)] == [False, True, False]
    assert later.broken(31.0)
