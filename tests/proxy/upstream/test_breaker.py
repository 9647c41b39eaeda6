"""The breaker as conversations, and its laws under any interleaving of arrivals, ends, orders, workers and time."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.config import Breaker as BreakerConfig
from proxy.shared.columns import LocalColumns, Row
from proxy.shared.record import LocalRecord
from proxy.upstream.breaker import RECORD_SIZE, Breaker
from proxy.upstream.breaker_report import Change
from proxy.upstream.breaker_table import PROBE_SHARE, SERVING, TRANSITIONS, Event, State
from proxy.upstream.permit import Permit, Probe, Refused
from proxy.upstream.window import ROW_SIZE

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
    while breaker.state in SERVING:
        permit(breaker, now).settle(False, now)


def opened(config: BreakerConfig = CONFIG) -> Breaker:
    breaker = Breaker(config)
    trip(breaker, 0.0)
    return breaker


def crew(size: int, config: BreakerConfig = CONFIG) -> list[Breaker]:
    """The breakers of so many workers, which share one record."""
    record = LocalRecord(RECORD_SIZE)
    rows: list[Row] = [[0.0] * ROW_SIZE for _ in range(size)]
    return [Breaker(config, None, record, worker(rows, n), owner=n + 1.0) for n in range(size)]


def worker(rows: list[Row], number: int) -> LocalColumns:
    columns = LocalColumns(0, tuple(rows))
    columns.mine = rows[number]
    return columns


def counts(breaker: Breaker, now: float) -> tuple[float, float]:
    sums = breaker.view(now).sums
    return sums.good, sums.bad


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


# Warning, degraded, and refusals


def refuse(breaker: Breaker, now: float, ok: bool | None = None, retry_after_s: float = 0.0) -> None:
    permit(breaker, now).settle(ok, now, True, retry_after_s)


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


# When to come back


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


# Orders


def test_forced_open_refuses_until_another_word() -> None:
    breaker = Breaker(CONFIG)
    early = permit(breaker, 0.0)
    breaker.order("open", 1.0)
    assert refused(breaker, 1e9) == CONFIG.open
    early.settle(True, 2.0)
    breaker.reset(3.0)  # the upstream is a new one: the order stands
    view = breaker.view(3.0)
    assert (view.state, view.forced, view.since_s, view.next_probe_s) == (State.OPEN, True, 2.0, inf)
    breaker.order("reset", 4.0)
    assert isinstance(breaker.admit(4.0), Permit)
    assert not breaker.view(4.0).forced


def test_forced_open_for_a_time_probes_afterwards() -> None:
    breaker = Breaker(CONFIG)
    breaker.order("open", 0.0, 300.0)
    assert refused(breaker, 100.0) == 200.0
    probe = permit(breaker, 300.0)
    assert probe.probe
    assert not breaker.view(300.0).forced
    probe.settle(False, 300.0)
    assert refused(breaker, 300.0) == 10.0


def test_forced_closed_admits_everything_until_a_reset() -> None:
    breaker = opened()
    breaker.order("close", 1.0)
    for _ in range(50):
        permit(breaker, 1.0).settle(False, 1.0)
        permit(breaker, 1.0).answered(1.0, 9.0)
        refuse(breaker, 1.0)
    assert breaker.view(1.0).forced
    breaker.order("reset", 2.0)
    trip(breaker, 2.0)
    assert refused(breaker, 2.0) == 10.0


def test_an_order_that_every_worker_is_given_is_obeyed_once() -> None:
    one, two = crew(2)
    one.order("reset", 1.0, number=7.0)
    trip(two, 1.0)
    two.order("reset", 1.0, number=7.0)
    assert one.state is State.OPEN
    two.order("reset", 1.0, number=8.0)
    assert one.state is State.CLOSED


# Several workers, and reloads


def test_failures_of_all_workers_count_together() -> None:
    workers = crew(4)
    for each in workers:
        assert all(other.state is State.CLOSED for other in workers)
        permit(each, 0.0).settle(False, 0.0)
    assert [each.state for each in workers] == [State.OPEN] * 4


def test_successes_of_all_workers_count_together() -> None:
    one, two = crew(2)
    for _ in range(4):
        permit(two, 0.0).settle(True, 0.0)
    for _ in range(3):
        permit(one, 0.0).settle(False, 0.0)
    assert one.state is State.CLOSED
    permit(one, 0.0).settle(False, 0.0)
    assert two.state is State.OPEN


def test_a_transition_is_told_once_in_the_box() -> None:
    record, rows = LocalRecord(RECORD_SIZE), [[0.0] * ROW_SIZE for _ in range(2)]
    told: list[tuple[int, Change]] = []
    one, two = (
        Breaker(CONFIG, lambda change, n=n: told.append((n, change)), record, worker(rows, n), n + 1.0)
        for n in range(2)
    )
    trip(one, 0.0)
    permit(two, 10.0).settle(True, 11.0)
    assert one.state is State.CLOSED
    assert [(n, change[:3]) for n, change in told] == [
        (0, (Event.TRIPPED, State.CLOSED, State.OPEN)),
        (1, (Event.WAITED, State.OPEN, State.HALF_OPEN)),
        (1, (Event.PROBES_PASSED, State.HALF_OPEN, State.CLOSED)),
    ]
    assert told[0][1].sums.bad == 4
    assert told[0][1].open_s == 10.0


def test_I01_a_thousand_arrivals_at_four_workers_get_the_permits_of_one() -> None:
    for probes, permits in ((1, 1), (10, 10), (100, 50)):
        workers = crew(4, CONFIG.model_copy(update={"probes": probes}))
        trip(workers[0], 0.0)
        given = [workers[n % 4].admit(10.0) for n in range(1000)]
        assert sum(isinstance(each, Permit) for each in given) == permits
        assert workers[3].view(10.0).probes_held == permits


def test_I02_the_probe_of_a_killed_worker_is_free_when_its_successor_begins() -> None:
    record, rows = LocalRecord(RECORD_SIZE), [[0.0] * ROW_SIZE for _ in range(2)]
    one = Breaker(CONFIG, None, record, worker(rows, 0), owner=101.0)
    two = Breaker(CONFIG, None, record, worker(rows, 1), owner=102.0)
    trip(one, 0.0)
    permit(one, 10.0)
    given = [two.admit(10.0) for _ in range(40)]
    assert not any(isinstance(each, Permit) for each in given)
    Breaker(CONFIG, None, record, worker(rows, 0), owner=101.0)  # a reload in the same worker frees nothing
    assert isinstance(two.admit(10.0), Refused)
    Breaker(CONFIG, None, record, worker(rows, 0), owner=103.0)
    assert permit(two, 10.0).probe


def test_what_a_killed_worker_counted_still_counts() -> None:
    record, rows = LocalRecord(RECORD_SIZE), [[0.0] * ROW_SIZE for _ in range(2)]
    lost = Breaker(CONFIG, None, record, worker(rows, 0), owner=101.0)
    for _ in range(3):
        permit(lost, 0.0).settle(False, 0.0)
    successor = Breaker(CONFIG, None, record, worker(rows, 0), owner=103.0)
    permit(successor, 1.0).settle(False, 1.0)
    assert successor.state is State.OPEN


def test_a_reload_replaces_the_table_and_keeps_the_state() -> None:
    breaker = opened()
    breaker.use(CONFIG.model_copy(update={"open": 1.0, "window": 2.0}))
    assert refused(breaker, 5.0) == 5.0
    permit(breaker, 10.0).settle(True, 10.0)
    assert counts(breaker, 10.0) == (0, 0)
    trip(breaker, 10.0)
    assert refused(breaker, 10.0) == 1.0


def test_a_reload_keeps_what_the_window_holds_and_judges_it_by_the_new_numbers() -> None:
    breaker = Breaker(CONFIG)
    for second in range(10):
        permit(breaker, second + 0.5).settle(True, second + 0.5)
    breaker.use(CONFIG.model_copy(update={"window": 3.0, "failures": 0.25}))
    assert counts(breaker, 9.6) == (3, 0)
    permit(breaker, 9.6).settle(False, 9.6)
    assert breaker.state is State.OPEN


def test_a_view_of_an_open_breaker_tells_what_opened_it() -> None:
    breaker = Breaker(CONFIG)
    for ok in (True, True, False, False):
        permit(breaker, 0.0).settle(ok, 0.0)
    view = breaker.view(4.0)
    assert view.cause is Event.TRIPPED
    assert (view.since_s, view.num_ended, view.num_failed, view.next_probe_s) == (4.0, 4, 2, 6.0)
    fresh = Breaker(CONFIG).view(4.0)
    assert (fresh.since_s, fresh.cause, fresh.next_probe_s) == (inf, None, None)


def test_a_fault_within_a_decision_leaves_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    record = LocalRecord(RECORD_SIZE)
    breaker = Breaker(CONFIG, None, record)
    with pytest.raises(KeyError):
        breaker.order("shut", 0.0)  # type: ignore[arg-type]
    breaker.order("open", 0.0)
    assert breaker.state is State.OPEN


class CountingRecord(LocalRecord):
    """Counts how often its lock is entered."""

    num_begun = 0

    def begin(self) -> list[float]:
        self.num_begun += 1
        return super().begin()


def test_while_all_is_well_nothing_is_locked_and_nothing_is_made() -> None:
    record = CountingRecord(RECORD_SIZE)
    breaker = Breaker(CONFIG, None, record)
    permits = set()
    for number in range(1000):
        now = number * 0.01
        given = permit(breaker, now)
        given.answered(now, 0.02)
        given.settle(True, now)
        permits.add(id(given))
    assert len(permits) == 1
    assert record.num_begun == 0
    trip(breaker, 10.0)
    before = record.num_begun
    assert all(isinstance(breaker.admit(11.0), Refused) for _ in range(1000))
    assert record.num_begun == before  # nor while it is open


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


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
