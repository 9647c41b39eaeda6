"""What a breaker hears besides failures: refusals, late first bytes, and when to come back."""

from __future__ import annotations

import pytest

from proxy.upstream.breaker import Breaker
from proxy.upstream.breaker_report import Change
from proxy.upstream.breaker_table import Event, State
from proxy.upstream.permit import Permit
from tests.proxy.upstream.breaker_play import CONFIG, crew, opened, permit, refuse, refused


def test_a_fifth_of_refusals_warns_and_fewer_relieve() -> None:
    told: list[Change] = []
    breaker = Breaker(CONFIG, told.append)
    for ok in [True] * 8 + [None] * 2:
        permit(breaker, 0.0).settle(ok, 0.0, ok is None)
    assert breaker.state is State.WARNING
    assert isinstance(breaker.admit(0.0), Permit)
    for _ in range(2):
        permit(breaker, 1.0).settle(True, 1.0)
    breaker.look(1.0)
    assert breaker.state is State.WARNING  # a sixth: under a fifth, not under four fifths of it
    for _ in range(2):
        permit(breaker, 2.0).settle(True, 2.0)
    breaker.look(2.0)
    assert breaker.state is State.CLOSED
    assert [change.event for change in told] == [Event.REFUSING, Event.RELIEVED]
    assert told[0].sums.refused == 2


def test_a_429_is_never_a_failure() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(100):
        refuse(breaker, 0.0)
    assert breaker.state is State.WARNING
    assert breaker.view(0.0).num_failed == 0


def test_late_first_bytes_degrade_and_early_ones_relieve() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(3):
        permit(breaker, 0.0).answered(0.0, 2.0)
    assert breaker.state is State.CLOSED  # too few to say
    permit(breaker, 0.0).answered(0.0, 2.0)
    assert breaker.state is State.DEGRADED
    assert isinstance(breaker.admit(0.0), Permit)
    for _ in range(6):
        permit(breaker, 1.0).answered(1.0, 0.01)
    breaker.look(1.0)
    assert breaker.state is State.DEGRADED  # 0.806 s in the mean
    for _ in range(4):
        permit(breaker, 1.0).answered(1.0, 0.01)
    breaker.look(1.0)
    assert breaker.state is State.CLOSED


def test_a_degraded_upstream_that_nobody_asks_is_relieved_when_the_window_has_passed() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(4):
        permit(breaker, 0.0).answered(0.0, 2.0)
    breaker.look(9.9)
    assert breaker.state is State.DEGRADED
    breaker.look(10.0)
    assert breaker.state is State.CLOSED


def test_slow_null_never_degrades_and_an_unknown_time_says_nothing() -> None:
    breaker = Breaker(CONFIG.model_copy(update={"slow": None}))
    for _ in range(40):
        permit(breaker, 0.0).answered(0.0, 2.0)
    assert breaker.state is State.CLOSED
    breaker = Breaker(CONFIG)
    for _ in range(40):
        permit(breaker, 0.0).answered(0.0)
    assert breaker.view(0.0).sums.answered == 0


def test_three_refusals_running_beside_failures_go_to_half_open() -> None:
    breaker = Breaker(CONFIG)
    for ok in [True] * 8 + [False] * 2:
        permit(breaker, 0.0).settle(ok, 0.0)
    refuse(breaker, 0.0)
    refuse(breaker, 0.0)
    permit(breaker, 0.0).settle(True, 0.0)  # not running any more
    refuse(breaker, 0.0)
    refuse(breaker, 0.0)
    assert breaker.state is State.WARNING
    refuse(breaker, 0.0)
    assert breaker.state is State.HALF_OPEN
    permit(breaker, 0.0).settle(False, 0.0)
    assert refused(breaker, 0.0) == 10.0  # the first open time: it had not been open


def test_refusals_running_without_failures_only_warn() -> None:
    breaker = Breaker(CONFIG)
    for ok in [True] * 17 + [False] * 3:
        permit(breaker, 0.0).settle(ok, 0.0)
    for _ in range(9):
        refuse(breaker, 0.0)
    assert breaker.state is State.WARNING  # 15 % is not more than 15 %


def test_the_refusals_of_all_workers_run_together() -> None:
    one, two, three = crew(3)
    for ok in [True] * 8 + [False] * 2:
        permit(one, 0.0).settle(ok, 0.0)
    for each in (one, two):
        refuse(each, 0.0)
    assert three.state is State.CLOSED
    refuse(three, 0.0)
    assert one.state is State.HALF_OPEN


@pytest.mark.parametrize(("wants_s", "waits_s"), [(0.0, 10.0), (7.0, 10.0), (20.0, 20.0), (3600.0, 35.0)])
def test_a_503_that_says_when_is_not_asked_before_within_max_open(wants_s: float, waits_s: float) -> None:
    breaker = Breaker(CONFIG)
    for _ in range(4):
        refuse(breaker, 0.0, False, wants_s)
    assert refused(breaker, 0.0) == waits_s


def test_another_workers_503_is_heard_too() -> None:
    one, two = crew(2)
    refuse(one, 0.0, False, 25.0)
    for _ in range(3):
        permit(two, 1.0).settle(False, 1.0)
    assert refused(one, 1.0) == 24.0


def test_a_probes_503_prolongs_as_well() -> None:
    breaker = opened()
    permit(breaker, 10.0).settle(False, 10.0, True, 30.0)
    assert refused(breaker, 10.0) == 30.0


def test_a_probe_that_is_refused_is_given_back() -> None:
    breaker = opened()
    permit(breaker, 10.0).settle(None, 10.0, True, 5.0)
    assert breaker.state is State.HALF_OPEN
    permit(breaker, 10.0).settle(True, 10.0)
    assert breaker.state is State.CLOSED


def test_an_upstream_that_sheds_what_is_too_much_and_serves_the_rest_is_only_warned_of() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(20):
        for _ in range(3):
            refuse(breaker, 0.0, False)
        for _ in range(7):
            permit(breaker, 0.0).settle(True, 0.0)
    assert breaker.state is State.WARNING


def test_three_refusals_running_by_chance_decide_nothing_where_refusals_are_few() -> None:
    breaker = Breaker(CONFIG)
    for ok in [True] * 70 + [False] * 30:
        permit(breaker, 0.0).settle(ok, 0.0)
    for _ in range(20):
        refuse(breaker, 0.0, False)
    assert breaker.state is State.CLOSED  # 20 of 120
    for _ in range(5):
        refuse(breaker, 0.0, False)
    assert breaker.state is State.HALF_OPEN


def test_a_degraded_upstream_stays_so_as_long_as_the_few_that_still_ask_it_wait() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(4):
        permit(breaker, 0.0).answered(0.0, 2.0)
    for now in (8.0, 16.0, 24.0):
        permit(breaker, now).answered(now, 0.7)  # under the limit, and not under four fifths of it
        breaker.look(now)
        breaker.look(now + 3.0)
        assert breaker.state is State.DEGRADED
    permit(breaker, 32.0).answered(32.0, 0.1)
    breaker.look(35.0)
    assert breaker.state is State.CLOSED
