"""Which servers may take a request: ejection, checks, panic, bounds, and what was tried already."""

from __future__ import annotations

from collections.abc import Container

import pytest

from proxy.config import Health
from proxy.shared.record import LocalRecord
from proxy.upstream.balance import Member, pick_least
from proxy.upstream.pool import VIEW_S, Pool
from proxy.upstream.state import MAX_COOL_S, RECORD_SIZE, Changes, ServerState


def servers(count: int) -> list[ServerState]:
    changes = Changes()
    return [ServerState(f"s{i}", Health(fails=3, eject="10s"), None, changes) for i in range(count)]


def pool_of(states: list[ServerState], panics: list[bool] | None = None) -> Pool:
    told = (panics if panics is not None else []).append
    return Pool([Member(i, state, 1) for i, state in enumerate(states)], pick_least, told)


def fail(state: ServerState, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        state.started()
        state.finished(False, now)


def chosen(pool: Pool, now: float = 0.0, tried: Container[str] = ()) -> set[int]:
    return {pool.choose(None, now, draw / 64, tried).index for draw in range(64)}


def test_failures_running_eject_and_a_success_in_between_does_not() -> None:
    states = servers(2)
    pool = pool_of(states)
    fail(states[0], 2)
    states[0].started()
    states[0].finished(True, 0.0)
    fail(states[0], 2)
    assert chosen(pool) == {0, 1}
    fail(states[0], 1)
    assert chosen(pool) == {1}
    assert chosen(pool, now=9.9) == {1}
    assert chosen(pool, now=10.0) == {0, 1}


def test_one_failure_after_the_ejection_ejects_again() -> None:
    states = servers(2)
    fail(states[0], 3)
    fail(states[0], 1, now=10.0)
    assert chosen(pool_of(states), now=19.9) == {1}
    assert states[0].num_ejections == 2


def test_a_client_that_left_says_nothing() -> None:
    states = servers(2)
    fail(states[0], 2)
    states[0].started()
    states[0].finished(None, 0.0)
    assert (states[0].in_flight, states[0].fails_running) == (0, 2)


@pytest.mark.parametrize(("count", "most"), [(2, 1), (3, 1), (4, 2), (5, 2), (6, 3)])
def test_half_may_be_left_out_and_with_one_more_all_are_used(count: int, most: int) -> None:
    states, panics = servers(count), list[bool]()
    pool = pool_of(states, panics)
    for state in states[:most]:
        fail(state, 3)
    assert chosen(pool) == set(range(most, count))
    assert panics == []
    fail(states[most], 3, now=1.0)
    assert chosen(pool, now=1.0) == set(range(count))
    assert pool.panic
    assert chosen(pool, now=10.0) == set(range(count)) - {most}
    assert panics == [True, False]


def test_a_server_that_is_down_is_left_out_like_an_ejected_one() -> None:
    states = servers(3)
    pool = pool_of(states)
    states[1].set_up(False)
    assert chosen(pool) == {0, 2}
    fail(states[0], 3)
    assert chosen(pool) == {0, 1, 2}
    states[1].set_up(True)
    assert chosen(pool) == {1, 2}


def test_tried_servers_are_not_tried_again_and_a_left_out_one_is_better_than_none() -> None:
    states = servers(2)
    pool = pool_of(states)
    fail(states[1], 3)
    assert chosen(pool, tried=["s0"]) == {1}
    assert chosen(pool, tried=["s0", "s1"]) == {0, 1}


def test_a_full_server_is_asked_only_when_all_are_full() -> None:
    states = servers(2)
    pool = pool_of(states)
    states[0].full = True
    assert chosen(pool) == {1}
    states[1].full = True
    assert chosen(pool) == {0, 1}
    states[0].full = False
    assert chosen(pool, tried=["s0"]) == {1}


def test_a_server_that_asks_for_time_is_left_out_for_it_whatever_else_succeeds() -> None:
    states = servers(2)
    pool = pool_of(states)
    states[0].cool(5.0, 0.0)
    assert chosen(pool) == {1}
    states[0].started()
    states[0].finished(True, 1.0)
    states[0].cool(1.0, 1.0)  # shorter than what it has asked for already
    assert chosen(pool, now=4.9) == {1}
    assert chosen(pool, now=5.0) == {0, 1}
    assert (states[0].fails_running, states[0].num_ejections) == (0, 0)
    states[0].cool(86400.0, 10.0)
    assert chosen(pool, now=10.0 + MAX_COOL_S) == {0, 1}


def test_one_server_is_no_choice() -> None:
    states = [ServerState("s0", Health(fails=3, eject="10s"), alone=True)]
    fail(states[0], 3)
    states[0].cool(5.0, 0.0)
    states[0].set_up(False)
    assert chosen(pool_of(states), tried=["s0"]) == {0}
    assert (states[0].left_out_until, states[0].num_ejections, states[0].in_flight) == (0.0, 0, 0)


def test_reset_brings_a_server_back_at_once() -> None:
    states = servers(2)
    pool = pool_of(states)
    fail(states[0], 3)
    assert chosen(pool) == {1}
    states[0].started()
    states[0].reset()
    assert states[0].ejected_until == 0.0
    assert states[0].in_flight == 1
    states[1].started()
    assert chosen(pool) == {0, 1}


def test_H05_workers_that_share_a_record_eject_as_one() -> None:
    """Three failures, each seen by another worker, eject once; all see it within a moment, and a success of one clears
    the failures of all."""
    records = [LocalRecord(RECORD_SIZE) for _ in range(2)]
    ejected: list[int] = []
    workers = []
    for worker in range(3):
        changes = Changes()
        workers.append(
            [
                ServerState(
                    f"s{i}", Health(fails=3, eject="10s"), record, changes, lambda worker=worker: ejected.append(worker)
                )
                for i, record in enumerate(records)
            ]
        )
    pools = [pool_of(states) for states in workers]
    for states in workers[:2]:
        fail(states[0], 1)
    workers[2][0].started()
    workers[2][0].finished(True, 0.0)
    for states in workers[:2]:
        fail(states[0], 1)
    assert [chosen(pool) for pool in pools] == [{0, 1}] * 3
    fail(workers[2][0], 1)
    assert ejected == [2]
    assert [chosen(pool, now=VIEW_S) for pool in pools] == [{1}] * 3
    assert [states[0].num_ejections for states in workers] == [1] * 3
