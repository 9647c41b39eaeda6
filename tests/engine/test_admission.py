"""Places are bounded, and a refusal says when to come back."""

from __future__ import annotations

import pytest

from engine.admission import Admission


def test_as_many_enter_as_run_and_wait() -> None:
    admission = Admission(running=2, queue=3, work_s=lambda: 0.0)
    assert [admission.enter() for _ in range(5)] == [None] * 5
    assert admission.enter() is not None
    admission.leave()
    assert admission.enter() is None
    assert admission.num_inside == 5


@pytest.mark.parametrize(("work_s", "retry_after_s"), [(0.0, 1.0), (30.0, 15.0), (10_000.0, 60.0)])
def test_the_time_to_come_back_is_half_of_the_work_inside(work_s: float, retry_after_s: float) -> None:
    admission = Admission(running=1, queue=0, work_s=lambda: work_s)
    assert admission.enter() is None
    assert admission.enter() == retry_after_s


def test_a_place_that_was_not_taken_cannot_be_given_back() -> None:
    with pytest.raises(ValueError, match="given back"):
        Admission(running=1, queue=1, work_s=lambda: 0.0).leave()
