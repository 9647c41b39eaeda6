"""When a batch waits, and that waiting pays: policies alone, and against each other under a virtual clock."""

import math
import random
from collections.abc import Callable

import pytest

from engine.batching.arrivals import Arrivals
from engine.batching.pace import Pace
from engine.batching.returns import Returns
from engine.batching.window import Adaptive, ByRate, Forming, Policy, Traffic
from tests.engine.batching.simulation import Outcome, bursts, poisson, simulate


def minilm_s(rows: int) -> float:
    """Texts of 16 tokens on two cores."""
    return 0.005 + 0.0024 * rows


def known_pace() -> Pace:
    pace = Pace(16)
    for turn in range(100):
        pace.observe(1 + turn % 16, 16, minilm_s(1 + turn % 16))
    return pace


def forming(rows: int = 1, *, full: bool = False, start_by: float = math.inf) -> Forming:
    return Forming(rows=rows, size=16, full=full, limit=16, since=1.0, start_by=start_by)


def traffic(rate: float, now: float = 1.0) -> Traffic:
    return Traffic(rate, Returns(), now)


def greedy(pace: Pace) -> Policy:
    return Adaptive(pace, 0.0)


def adaptive(pace: Pace) -> Policy:
    return Adaptive(pace, None)


def by_rate(pace: Pace) -> Policy:
    return ByRate()


def test_waits_only_where_the_next_comes_soon_enough() -> None:
    policy = Adaptive(known_pace(), None)
    assert policy.close(forming(), traffic(100)).trigger == "free"
    closing = policy.close(forming(), traffic(1000))
    assert (closing.trigger, closing.at) == ("window", pytest.approx(1.005, abs=1e-3))
    assert policy.close(forming(rows=15), traffic(400)).trigger == "free"
    assert policy.close(forming(rows=16, full=True), traffic(1000))[:2] == (1.0, "full")


def test_the_window_and_the_deadlines_bound_the_wait() -> None:
    assert Adaptive(known_pace(), 0.002).close(forming(), traffic(1000)).at == pytest.approx(1.002)
    assert Adaptive(known_pace(), 0.0).close(forming(), traffic(1000)).at <= 1.0
    assert Adaptive(known_pace(), None).close(forming(start_by=1.001), traffic(1000))[:2] == (1.001, "deadline")
    assert Adaptive(known_pace(), None).close(forming(), traffic(1000, now=1.1)).at <= 1.1


@pytest.mark.parametrize(("rate", "wanted"), [(50, 1), (200, 3), (400, 12), (800, 24), (1000, 50), (100_000, 128)])
def test_by_rate_is_the_plain_rule(rate: float, wanted: int) -> None:
    just_enough = forming(rows=wanted)._replace(limit=1000)
    assert ByRate().close(just_enough, traffic(rate))[:2] == (1.0, "full")
    if wanted > 1:
        delta_s = 0.015 if rate <= 200 else 0.030 if rate <= 800 else 0.050
        assert ByRate().close(forming(rows=wanted - 1), traffic(rate))[:2] == (1.0 + delta_s, "window")


def test_the_rate_follows_what_comes_and_fades() -> None:
    arrivals = Arrivals()
    assert arrivals.rate(0.0) == 0.0
    for turn in range(100):
        arrivals.come(turn * 0.01)
    assert arrivals.rate(0.99) == pytest.approx(100)
    assert arrivals.rate(10.99) == pytest.approx(0.1)
    for turn in range(20):
        arrivals.come(3600 + turn * 0.01)
    assert arrivals.rate(3600.2) > 50


def test_returns_are_told_from_chance() -> None:
    regular, chance = Returns(), Returns()
    draw = random.Random(1)
    for turn in range(60):
        regular.answered(turn * 0.02, 4)
        chance.answered(turn * 0.02, 4)
        for client in range(4):
            regular.come(turn * 0.02 + 0.001 + client * 1e-4)
        for offset_s in sorted(draw.random() * 0.02 for _ in range(4)):
            chance.come(turn * 0.02 + offset_s)
    regular.answered(1.2, 4)
    chance.answered(1.2, 4)
    assert max(expected for _, expected in regular.expected(1.203, 200.0)) == pytest.approx(4)
    assert max((expected for _, expected in chance.expected(1.203, 200.0)), default=0) < 2


def run(make_policy: Callable[[Pace], Policy], rate: float) -> Outcome:
    return simulate(make_policy, minilm_s, poisson(rate), num_jobs=2000)


@pytest.mark.parametrize("rate", [20, 80, 150, 250, 320])
def test_adaptive_beats_the_plain_rule_at_any_load(rate: float) -> None:
    """Poisson arrivals, to 90 % of what the device can do. At a low load the two are one."""
    ours, plain, at_once = run(adaptive, rate), run(by_rate, rate), run(greedy, rate)
    assert ours.mean_s <= plain.mean_s
    assert ours.quantile_s(0.99) <= plain.quantile_s(0.99)
    assert ours.mean_s <= 1.03 * at_once.mean_s


def test_at_a_tenth_of_the_load_waiting_costs_nothing() -> None:
    outcome = run(adaptive, 0.1 * 16 / minilm_s(16))
    assert outcome.quantile_s(0.5) <= 1.1 * minilm_s(1) + 0.001


@pytest.mark.parametrize(("num_clients", "gain"), [(4, 1.1), (8, 1.02), (16, 1.03), (64, 0.99)])
def test_clients_that_come_back_at_once_are_waited_for(num_clients: int, gain: float) -> None:
    """A closed loop: those of the last batch ask again some 2 ms after their answers."""

    def serve(make_policy: Callable[[Pace], Policy]) -> float:
        draw = random.Random(3)
        begins = iter([0.0001 * client for client in range(num_clients)])
        again = lambda: 0.001 + draw.expovariate(2000)  # noqa: E731
        return simulate(make_policy, minilm_s, begins, num_jobs=2000, again=again).throughput

    assert serve(adaptive) >= gain * serve(greedy)
    if num_clients <= 8:
        assert serve(adaptive) >= 1.2 * serve(by_rate)


def test_a_group_that_comes_together_runs_together() -> None:
    together = simulate(adaptive, minilm_s, bursts(0.1, 8, 0.002), num_jobs=800)
    assert sum(together.batches) / len(together.batches) > 7
    at_once = simulate(greedy, minilm_s, bursts(0.1, 8, 0.002), num_jobs=800)
    assert together.quantile_s(0.99) < at_once.quantile_s(0.99)
