"""Which server is chosen, and who is left out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from proxy.config import PassiveHealth
from proxy.upstream.pool import ServerState, choose

HEALTH = PassiveHealth.model_validate({"fails": 3, "eject": "10s"})


def servers(count: int) -> list[ServerState]:
    return [ServerState(f"http://s{i}", HEALTH) for i in range(count)]


def fail(server: ServerState, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        server.started()
        server.finished(False, now)


def names(pool: Sequence[ServerState], now: float = 0.0, tried: Sequence[str] = ()) -> set[str]:
    chosen = (choose(pool, now, draw / 16, tried) for draw in range(16))
    return {server.name[-1] for server in chosen if server is not None}


def test_the_fewest_in_flight_wins_and_ties_are_drawn() -> None:
    pool = servers(3)
    pool[0].started()
    assert names(pool) == {"1", "2"}
    pool[1].started()
    pool[2].started()
    pool[2].started()
    assert names(pool) == {"0", "1"}


def test_failures_running_eject_and_a_success_in_between_does_not() -> None:
    pool = servers(2)
    fail(pool[0], 2)
    pool[0].started()
    pool[0].finished(True, 0.0)
    fail(pool[0], 2)
    assert names(pool) == {"0", "1"}
    fail(pool[0], 1)
    assert names(pool) == {"1"}
    assert names(pool, now=10.0) == {"0", "1"}


def test_one_failure_after_the_ejection_ejects_again() -> None:
    pool = servers(2)
    fail(pool[0], 3)
    fail(pool[0], 1, now=10.0)
    assert names(pool, now=19.9) == {"1"}
    assert pool[0].num_ejections == 2


def test_a_client_that_left_says_nothing() -> None:
    pool = servers(2)
    fail(pool[0], 2)
    pool[0].started()
    pool[0].finished(None, 0.0)
    assert (pool[0].in_flight, pool[0].fails_running) == (0, 2)


@pytest.mark.parametrize(("count", "left"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_at_most_half_are_left_out(count: int, left: int) -> None:
    pool = servers(count)
    for i, server in enumerate(pool):
        fail(server, 3, now=float(i))
    kept = names(pool, now=float(count))
    assert kept == {str(i) for i in range(left)}  # those that would return first


def test_tried_servers_are_not_tried_again_and_an_ejected_one_is_better_than_none() -> None:
    pool = servers(2)
    fail(pool[1], 3)
    assert names(pool, tried=["http://s0"]) == {"1"}
    assert choose(pool, 0.0, 0.0, ["http://s0", "http://s1"]) is None
    assert choose(pool[:1], 0.0, 0.0, ["http://s0"]) is None
    assert choose([], 0.0, 0.0) is None


def test_reset_brings_a_server_back_at_once() -> None:
    pool = servers(2)
    fail(pool[0], 3)
    pool[0].started()
    pool[0].reset()
    assert pool[0].ejected_until == 0.0
    assert pool[0].in_flight == 1
