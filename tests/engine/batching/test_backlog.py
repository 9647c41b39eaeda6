"""How much may wait, what is refused, and for how long."""

import pytest

from engine.batching.backlog import Backlog
from engine.batching.pace import Pace


def pace_of(seconds_per_unit: float) -> Pace:
    pace = Pace()
    pace.observe(1, 1, seconds_per_unit)
    return pace


def test_one_request_may_exceed_the_limit_and_the_next_must_wait() -> None:
    backlog = Backlog(pace_of(0.01), max_tokens=100)
    assert backlog.full_for_s() is None
    backlog.enter(99)
    assert backlog.full_for_s() is None
    backlog.enter(901)
    assert backlog.full_for_s() == pytest.approx(5.0)
    backlog.leave(901)
    assert backlog.full_for_s() is None


@pytest.mark.parametrize(("seconds_per_unit", "expected"), [(1e-6, 1.0), (10.0, 60.0)])
def test_the_time_to_come_back_is_bounded(seconds_per_unit: float, expected: float) -> None:
    backlog = Backlog(pace_of(seconds_per_unit), max_tokens=100)
    backlog.enter(100)
    assert backlog.full_for_s() == expected


def test_more_cannot_leave_than_came() -> None:
    with pytest.raises(ValueError, match="more was taken out"):
        Backlog(Pace(), max_tokens=10).leave(1)
