"""The laws of the breaker under any interleaving of arrivals, ends, orders, workers and time."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.shared.record import LocalRecord
from proxy.upstream.breaker import RECORD_SIZE, Breaker
from proxy.upstream.breaker_report import Change
from proxy.upstream.breaker_table import PROBE_SHARE, SERVING, TRANSITIONS, Event, State, Sums, judge
from proxy.upstream.permit import Permit
from proxy.upstream.window import ROW_SIZE
from tests.proxy.upstream.breaker_play import CONFIG, worker


class AnyTraffic(RuleBasedStateMachine):
    """Arrivals, first bytes, ends, orders and time in any order, at three workers; the model counts what was given
    since half-open began."""

    def __init__(self) -> None:
        super().__init__()
        self.config = CONFIG.model_copy(update={"probes": 3})
        record, rows = LocalRecord(RECORD_SIZE), [[0.0] * ROW_SIZE for _ in range(3)]
        self.workers = [Breaker(self.config, self.changed, record, worker(rows, n), n + 1.0) for n in range(3)]
        self.now = 0.0
        self.open: list[Permit] = []
        self.answered: set[Permit] = set()
        self.arrivals = self.given = 0
        self.probing: list[Permit] = []
        self.state = State.CLOSED
        self.forced = False

    def changed(self, change: Change) -> None:
        assert change.before is self.state
        assert TRANSITIONS[change.before, change.event] is change.after
        self.state = change.after
        self.forced = change.event in (Event.FORCED_OPEN, Event.FORCED_CLOSED)
        if not (change.before in SERVING and change.after in SERVING):
            self.arrivals = self.given = 0
            self.probing = []

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 5.0, 11.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(times=st.integers(1, 60), at=st.integers(0, 2))
    def arrive(self, times: int, at: int) -> None:
        for number in range(times):
            breaker = self.workers[(at + number) % 3]
            given = breaker.admit(self.now)
            half_open = breaker.state is State.HALF_OPEN
            self.arrivals += half_open
            if isinstance(given, Permit):
                self.open.append(given)
                assert given.probe is half_open
                if half_open:
                    self.given += 1
                    self.probing.append(given)
                    assert self.given <= max(1.0, PROBE_SHARE * self.arrivals)
            else:
                assert breaker.state not in SERVING
                assert 0 < given.retry_after_s <= self.config.max_open

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        ok=st.sampled_from([True, True, False, None]),
        refused=st.booleans(),
        wait_s=st.sampled_from([0.0, 3.0, 100.0]),
    )
    def end(self, data: st.DataObject, ok: bool | None, refused: bool, wait_s: float) -> None:
        one = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        if ok is None and one in self.probing:
            self.given -= 1
        if one in self.probing:
            self.probing.remove(one)
        self.answered.discard(one)
        one.settle(ok, self.now, refused and not ok, wait_s)
        if one.probe:
            one.settle(False, self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), first_byte_s=st.sampled_from([0.0, 0.01, 3.0]))
    def first_byte(self, data: st.DataObject, first_byte_s: float) -> None:
        one = self.open[data.draw(st.integers(0, len(self.open) - 1))]
        one.answered(self.now, first_byte_s)
        if one.probe:
            self.answered.add(one)

    @rule(
        order=st.sampled_from(["open", "close", "reset"]), at=st.integers(0, 2), for_s=st.sampled_from([5.0, 30.0, inf])
    )
    def order(self, order: str, at: int, for_s: float) -> None:
        self.workers[at].order(order, self.now, for_s)  # type: ignore[arg-type]
        self.forced = order != "reset"

    @rule(at=st.integers(0, 2))
    def sweep(self, at: int) -> None:
        self.workers[at].look(self.now)

    @invariant()
    def never_more_probes_in_flight_than_configured(self) -> None:
        holding = sum(one not in self.answered for one in self.probing)
        for breaker in self.workers:
            assert holding == breaker.view(self.now).probes_held <= self.config.probes

    @invariant()
    def all_workers_see_the_same(self) -> None:
        views = [breaker.view(self.now) for breaker in self.workers]
        assert views[0] == views[1] == views[2]
        assert (views[0].state, views[0].forced) == (self.state, self.forced)

    @invariant()
    def everything_passes_while_it_is_forced_closed(self) -> None:
        if self.forced and self.state is State.CLOSED:
            assert isinstance(self.workers[0].admit(self.now), Permit)

    def teardown(self) -> None:
        """Wherever it stands: once every request has ended, waiting and one good request after the other closes it."""
        for one in self.open:
            one.settle(None, self.now)
        if self.forced and self.state is State.OPEN:
            self.workers[0].order("reset", self.now)
        for number in range(100):
            self.now += self.config.max_open
            given = self.workers[number % 3].admit(self.now)
            if isinstance(given, Permit):
                given.settle(True, self.now)
        assert self.workers[0].state is State.CLOSED


_counts = st.integers(0, 50).map(float)


@given(
    state=st.sampled_from(SERVING),
    counts=st.tuples(_counts, _counts, _counts, _counts),
    first_bytes_s=st.floats(0.0, 5.0),
    num_refusals=st.integers(0, 5),
    harmed=st.booleans(),
)
def test_whatever_the_window_says_only_allowed_transitions_are_taken(
    state: State, counts: tuple[float, float, float, float], first_bytes_s: float, num_refusals: int, harmed: bool
) -> None:
    good, bad, cooled, shed = counts
    sums = Sums(good, bad, cooled, cooled + min(shed, bad), good, first_bytes_s * good)
    event = judge(state, sums, num_refusals, CONFIG, harmed=harmed)
    if event is None:
        return
    after = TRANSITIONS[state, event]
    assert after is not state
    assert harmed or after in SERVING  # nothing but harm opens or probes
    if after not in SERVING:
        assert bad > 0


TestAnyTraffic = AnyTraffic.TestCase


TestAnyTraffic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
