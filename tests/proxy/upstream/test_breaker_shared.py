"""One breaker for several workers, over reloads and kills, and under an operator's orders."""

from __future__ import annotations

from math import inf

import pytest

from proxy.shared.record import LocalRecord
from proxy.upstream.breaker import RECORD_SIZE, Breaker
from proxy.upstream.breaker_report import Change
from proxy.upstream.breaker_table import Event, State
from proxy.upstream.permit import Permit, Refused
from proxy.upstream.window import ROW_SIZE
from tests.proxy.upstream.breaker_play import CONFIG, counts, crew, opened, permit, refuse, refused, trip, worker


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
