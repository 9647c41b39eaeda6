"""Pace and backlog: what fits, what is refused, and for how long."""

import pytest

from engine.backlog import Backlog, Pace


def test_pace_takes_the_first_run_at_its_word_and_smooths_from_there() -> None:
    pace = Pace()
    pace.observe(100, 0.1)
    assert pace.seconds_per_token == pytest.approx(1e-3)
    assert pace.tokens_in(0.25) == pytest.approx(250)
    pace.observe(100, 0.2)
    assert pace.seconds_per_token == pytest.approx(1.2e-3)


def test_one_request_may_exceed_the_limit_and_the_next_must_wait() -> None:
    pace = Pace()
    pace.observe(1, 0.01)
    backlog = Backlog(pace, max_tokens=100)
    assert backlog.full_for_s() is None
    backlog.enter(99)
    assert backlog.full_for_s() is None
    backlog.enter(901)
    assert backlog.full_for_s() == pytest.approx(5.0)
    backlog.leave(901)
    assert backlog.full_for_s() is None


@pytest.mark.parametrize(("seconds_per_token", "expected"), [(1e-6, 1.0), (10.0, 60.0)])
def test_the_time_to_come_back_is_bounded(seconds_per_token: float, expected: float) -> None:
    pace = Pace()
    pace.observe(1, seconds_per_token)
    backlog = Backlog(pace, max_tokens=100)
    backlog.enter(100)
    assert backlog.full_for_s() == expected


def test_more_cannot_leave_than_came() -> None:
    with pytest.raises(ValueError, match="more was taken out"):
        Backlog(Pace(), max_tokens=10).leave(1)
