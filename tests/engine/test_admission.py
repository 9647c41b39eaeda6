"""Places are bounded, and a refusal says when to come back."""

from __future__ import annotations

import pytest

from engine.admission import Admission


def test_as_many_enter_as_run_and_wait() -> None:
    admission = Admission(running=2, queue=3)
    assert [admission.enter(0.0) for _ in range(5)] == [None] * 5
    assert admission.enter(0.0) is not None
    admission.leave(1.0)
    assert admission.enter(1.0) is None
    assert admission.num_inside == 5


def test_the_time_to_come_back_follows_the_measured_pace() -> None:
    admission = Admission(running=1, queue=10)
    for _ in range(11):
        admission.enter(0.0)
    assert admission.enter(0.0) == 5.0  # nothing measured yet: a second each
    now = 0.0
    for _ in range(80):
        now += 2.0
        admission.leave(now)
        admission.enter(now)
    assert admission.enter(now) == pytest.approx(10.0)
    for _ in range(200):
        now += 0.01
        admission.leave(now)
        admission.enter(now)
    assert admission.enter(now) == 1.0  # never less than a second


def test_idle_time_is_not_pace() -> None:
    admission = Admission(running=1, queue=2)
    for at in (0.0, 1000.0, 2000.0):
        admission.enter(at)
        admission.leave(at + 1.0)
    for _ in range(3):
        admission.enter(3000.0)
    assert admission.enter(3000.0) == 1.0


def test_a_place_that_was_not_taken_cannot_be_given_back() -> None:
    with pytest.raises(ValueError, match="given back"):
        Admission(running=1, queue=1).leave(0.0)
