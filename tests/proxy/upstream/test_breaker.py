"""The breaker as conversations: it trips, waits, probes, closes; and its table."""

from __future__ import annotations

import pytest

from proxy.upstream.breaker import Breaker
from proxy.upstream.breaker_table import TRANSITIONS, Event, State
from proxy.upstream.permit import Permit, Probe, Refused
from tests.proxy.upstream.breaker_play import CONFIG, counts, opened, permit, refused, trip

#: State by state: what leads away from it, and where to. Orders lead away from all.
TABLE = {
    State.CLOSED: "REFUSING:WARNING SLOW:DEGRADED REFUSED_RUNNING:HALF_OPEN TRIPPED:OPEN",
    State.WARNING: "RELIEVED:CLOSED SLOW:DEGRADED REFUSED_RUNNING:HALF_OPEN TRIPPED:OPEN",
    State.DEGRADED: "RELIEVED:CLOSED REFUSING:WARNING REFUSED_RUNNING:HALF_OPEN TRIPPED:OPEN",
    State.HALF_OPEN: "PROBES_PASSED:CLOSED PROBES_FAILED:OPEN PROBE_LOST:HALF_OPEN",
    State.OPEN: "WAITED:HALF_OPEN",
}


ORDERS = "FORCED_OPEN:OPEN FORCED_CLOSED:CLOSED RESET:CLOSED"


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_the_table(state: State, event: Event) -> None:
    told = dict(each.split(":") for each in f"{TABLE[state]} {ORDERS}".split())
    after = TRANSITIONS.get((state, event))
    assert (after.name if after else None) == told.get(event.name)


def test_too_few_requests_never_trip() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(3):
        permit(breaker, 0.0).settle(False, 0.0)
    assert breaker.state is State.CLOSED
    permit(breaker, 0.0).settle(False, 0.0)
    assert breaker.state is State.OPEN


def test_the_share_of_failures_trips_not_their_number() -> None:
    breaker = Breaker(CONFIG)
    for ok in [True] * 10 + [False] * 9:
        permit(breaker, 0.0).settle(ok, 0.0)
    assert breaker.state is State.CLOSED
    permit(breaker, 0.0).settle(False, 0.0)
    assert breaker.state is State.OPEN


def test_failures_that_left_the_window_do_not_count() -> None:
    breaker = Breaker(CONFIG)
    for _ in range(3):
        permit(breaker, 0.0).settle(False, 0.0)
    assert counts(breaker, 9.9) == (0, 3)
    permit(breaker, 10.0).settle(False, 10.0)
    assert breaker.state is State.CLOSED
    assert counts(breaker, 10.0) == (0, 1)


def test_open_refuses_at_once_and_says_how_long() -> None:
    breaker = opened()
    assert refused(breaker, 0.0) == 10.0
    assert refused(breaker, 9.5) == 0.5


def test_I01_two_hundred_arrivals_after_the_open_time_and_one_probe() -> None:
    breaker = opened()
    given = [breaker.admit(10.0) for _ in range(200)]
    assert [type(g) for g in given] == [Probe] + [Refused] * 199
    assert all(g.retry_after_s > 0 for g in given if isinstance(g, Refused))


def test_I01_more_probes_only_with_more_arrivals() -> None:
    breaker = opened(CONFIG.model_copy(update={"probes": 100}))
    given = [breaker.admit(10.0) for _ in range(200)]
    assert sum(isinstance(g, Permit) for g in given) == 10


def test_a_good_probe_closes_with_an_empty_window_and_a_first_open_time() -> None:
    breaker = opened()
    permit(breaker, 10.0).settle(True, 11.0)
    assert breaker.state is State.CLOSED
    assert counts(breaker, 11.0) == (0, 0)
    trip(breaker, 12.0)
    assert refused(breaker, 12.0) == 10.0


def test_a_bad_probe_opens_for_twice_the_time_up_to_the_bound() -> None:
    breaker = opened()
    now, waits = 0.0, []
    for _ in range(4):
        now += breaker.view(now).next_probe_s or 0.0
        permit(breaker, now).settle(False, now)
        waits.append(refused(breaker, now))
    assert waits == [20.0, 35.0, 35.0, 35.0]


def test_I02_a_probe_whose_client_left_gives_its_place_back_uncounted() -> None:
    breaker = opened()
    for _ in range(5):
        permit(breaker, 10.0).settle(None, 10.5)
    assert breaker.state is State.HALF_OPEN
    permit(breaker, 11.0).settle(True, 11.0)
    assert breaker.state is State.CLOSED


def test_I02_a_late_result_of_an_older_generation_is_ignored() -> None:
    breaker = Breaker(CONFIG)
    early = [permit(breaker, 0.0) for _ in range(10)]
    trip(breaker, 0.0)
    probe = permit(breaker, 10.0)
    for late in early:
        late.settle(False, 10.0)
    assert breaker.state is State.HALF_OPEN
    probe.settle(True, 10.0)
    early_again = permit(breaker, 10.0)
    assert breaker.state is State.CLOSED
    assert counts(breaker, 10.0) == (0, 0)
    trip(breaker, 11.0)
    second = permit(breaker, 21.0)
    early_again.settle(False, 21.0)
    second.settle(False, 21.0)
    early_again.settle(True, 21.0)
    probe.settle(True, 21.0)
    assert breaker.state is State.OPEN


def test_settling_a_probe_twice_counts_once() -> None:
    breaker = opened(CONFIG.model_copy(update={"probes": 3}))
    once = permit(breaker, 10.0)
    for _ in range(9):
        once.settle(True, 10.0)
        once.answered(10.0)
    view = breaker.view(10.0)
    assert (view.probes_good, view.probes_held, view.state) == (1, 0, State.HALF_OPEN)


def test_I02_a_probe_never_heard_of_again_is_given_up_after_max_open() -> None:
    breaker = opened()
    lost = permit(breaker, 10.0)
    assert isinstance(breaker.admit(44.9), Refused)
    fresh = permit(breaker, 45.0)
    lost.settle(False, 45.0)
    assert breaker.state is State.HALF_OPEN
    fresh.settle(True, 45.0)
    assert breaker.state is State.CLOSED


def test_I04_a_stream_is_judged_at_its_end_but_does_not_keep_the_place() -> None:
    breaker = opened()
    stream = permit(breaker, 10.0)
    stream.answered(10.1)
    arrivals = [breaker.admit(10.2) for _ in range(39)]
    assert sum(isinstance(g, Permit) for g in arrivals) == 1  # the second of forty: 5 %
    stream.settle(False, 12.0)
    assert breaker.state is State.OPEN


def test_an_endless_stream_closes_the_breaker_after_one_open_time() -> None:
    breaker = opened()
    permit(breaker, 10.0).answered(10.1)
    assert isinstance(breaker.admit(19.9), Refused)
    assert isinstance(breaker.admit(20.0), Permit)
    assert breaker.state is State.CLOSED


def test_an_answered_probe_whose_client_left_proves_nothing() -> None:
    breaker = opened()
    probe = permit(breaker, 10.0)
    probe.answered(10.1)
    probe.settle(None, 10.2)
    assert permit(breaker, 20.0).probe
    assert breaker.state is State.HALF_OPEN


def test_few_arrivals_do_not_keep_it_half_open() -> None:
    breaker = opened(CONFIG.model_copy(update={"probes": 10}))
    permit(breaker, 10.0).settle(True, 10.1)
    assert isinstance(breaker.admit(12.0), Refused)
    assert isinstance(breaker.admit(20.0), Permit)
    assert breaker.state is State.CLOSED


def test_reset_closes_from_anywhere_and_forgets_the_doubling() -> None:
    breaker = opened()
    permit(breaker, 10.0).settle(False, 10.0)
    breaker.reset(11.0)
    assert breaker.state is State.CLOSED
    trip(breaker, 11.0)
    assert refused(breaker, 11.0) == 10.0
