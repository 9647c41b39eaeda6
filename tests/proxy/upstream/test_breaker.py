"""The breaker as conversations, and its laws under any interleaving of arrivals, ends and time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.config import Breaker as BreakerConfig
from proxy.upstream.breaker import PROBE_SHARE, TRANSITIONS, Breaker, Event, Permit, Refused, State

CONFIG = BreakerConfig.model_validate(
    {"window": "10s", "min_requests": 4, "failures": "50%", "open": "10s", "max_open": "35s", "probes": 1}
)


def permit(breaker: Breaker, now: float) -> Permit:
    given = breaker.admit(now)
    assert isinstance(given, Permit)
    return given


def refused(breaker: Breaker, now: float) -> float:
    given = breaker.admit(now)
    assert isinstance(given, Refused)
    return given.retry_after_s


def trip(breaker: Breaker, now: float) -> None:
    while breaker.state is State.CLOSED:
        permit(breaker, now).settle(False, now)


def opened(config: BreakerConfig = CONFIG) -> Breaker:
    breaker = Breaker(config)
    trip(breaker, 0.0)
    return breaker


def test_every_transition_leads_somewhere_and_every_state_can_be_reset() -> None:
    assert {state for state, event in TRANSITIONS if event is Event.RESET} == set(State)
    assert set(TRANSITIONS.values()) == set(State)


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
    assert breaker.counts(9.9) == (0, 3)
    permit(breaker, 10.0).settle(False, 10.0)
    assert breaker.state is State.CLOSED
    assert breaker.counts(10.0) == (0, 1)


def test_open_refuses_at_once_and_says_how_long() -> None:
    breaker = opened()
    assert refused(breaker, 0.0) == 10.0
    assert refused(breaker, 9.5) == 0.5


def test_I01_two_hundred_arrivals_after_the_open_time_and_one_probe() -> None:
    breaker = opened()
    given = [breaker.admit(10.0) for _ in range(200)]
    assert [type(g) for g in given] == [Permit] + [Refused] * 199
    assert all(g.retry_after_s > 0 for g in given if isinstance(g, Refused))


def test_I01_more_probes_only_with_more_arrivals() -> None:
    breaker = opened(CONFIG.model_copy(update={"probes": 100}))
    given = [breaker.admit(10.0) for _ in range(200)]
    assert sum(isinstance(g, Permit) for g in given) == 10


def test_a_good_probe_closes_with_an_empty_window_and_a_first_open_time() -> None:
    breaker = opened()
    permit(breaker, 10.0).settle(True, 11.0)
    assert breaker.state is State.CLOSED
    assert breaker.counts(11.0) == (0, 0)
    trip(breaker, 12.0)
    assert refused(breaker, 12.0) == 10.0


def test_a_bad_probe_opens_for_twice_the_time_up_to_the_bound() -> None:
    breaker = opened()
    now, waits = 0.0, []
    for _ in range(4):
        now = breaker.open_until
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
    assert breaker.counts(10.0) == (0, 0)
    trip(breaker, 11.0)
    second = permit(breaker, 21.0)
    early_again.settle(False, 21.0)
    second.settle(False, 21.0)
    early_again.settle(True, 21.0)
    probe.settle(True, 21.0)
    assert breaker.state is State.OPEN


def test_settling_twice_counts_once() -> None:
    breaker = Breaker(CONFIG)
    once = permit(breaker, 0.0)
    for _ in range(9):
        once.settle(False, 0.0)
    assert breaker.counts(0.0) == (0, 1)


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


def test_a_reload_replaces_the_configuration_and_keeps_the_state() -> None:
    breaker = opened()
    breaker.config = CONFIG.model_copy(update={"open": 1.0, "window": 2.0})
    assert refused(breaker, 5.0) == 5.0
    permit(breaker, 10.0).settle(True, 10.0)
    assert breaker.counts(10.0) == (0, 0)


def test_transitions_are_told() -> None:
    told: list[tuple[Event, State, State]] = []
    breaker = Breaker(CONFIG, lambda *change: told.append(change))
    trip(breaker, 0.0)
    permit(breaker, 10.0).settle(True, 10.0)
    assert told == [
        (Event.TRIPPED, State.CLOSED, State.OPEN),
        (Event.WAITED, State.OPEN, State.HALF_OPEN),
        (Event.PROBES_PASSED, State.HALF_OPEN, State.CLOSED),
    ]


class AnyTraffic(RuleBasedStateMachine):
    """Arrivals, first bytes, ends and time in any order; the model counts what was given since half-open began."""

    def __init__(self) -> None:
        super().__init__()
        self.config = CONFIG.model_copy(update={"probes": 3})
        self.breaker = Breaker(self.config, self.changed)
        self.now = 0.0
        self.open: list[Permit] = []
        self.answered: set[int] = set()
        self.arrivals = self.given = 0
        self.probing: list[Permit] = []

    def changed(self, event: Event, before: State, after: State) -> None:
        self.arrivals = self.given = 0
        self.probing = []

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 5.0, 11.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(times=st.integers(1, 60))
    def arrive(self, times: int) -> None:
        for _ in range(times):
            given = self.breaker.admit(self.now)
            half_open = self.breaker.state is State.HALF_OPEN
            self.arrivals += half_open
            if isinstance(given, Permit):
                self.open.append(given)
                if half_open:
                    assert given.probe
                    self.given += 1
                    self.probing.append(given)
                    assert self.given <= max(1.0, PROBE_SHARE * self.arrivals)
            else:
                assert self.breaker.state is not State.CLOSED
                assert 0 < given.retry_after_s <= self.config.max_open

    @precondition(lambda self: self.open)
    @rule(data=st.data(), ok=st.sampled_from([True, False, None]))
    def end(self, data: st.DataObject, ok: bool | None) -> None:
        one = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        if ok is None and one in self.probing:
            self.given -= 1
        if one in self.probing:
            self.probing.remove(one)
        self.answered.discard(id(one))  # the id is free for another permit from now on
        one.settle(ok, self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def first_byte(self, data: st.DataObject) -> None:
        one = self.open[data.draw(st.integers(0, len(self.open) - 1))]
        one.answered(self.now)
        self.answered.add(id(one))

    @rule()
    def reset(self) -> None:
        self.breaker.reset(self.now)
        assert isinstance(self.breaker.admit(self.now), Permit)

    @invariant()
    def never_more_probes_in_flight_than_configured(self) -> None:
        holding = sum(id(one) not in self.answered for one in self.probing)
        assert holding == self.breaker.probes_in_flight <= self.config.probes

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.breaker._window) == 10

    def teardown(self) -> None:
        """Wherever it stands: once every request has ended, waiting and one good request after the other closes it."""
        for one in self.open:
            one.settle(None, self.now)
        for _ in range(100):
            self.now += self.config.max_open
            given = self.breaker.admit(self.now)
            if isinstance(given, Permit):
                given.settle(True, self.now)
        assert self.breaker.state is State.CLOSED


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
