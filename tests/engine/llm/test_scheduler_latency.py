"""What readers see of the scheduler, on a device that takes exactly what the cost model says: first tokens and gaps."""

from __future__ import annotations

from random import Random
from statistics import median
from typing import NamedTuple

import pytest

from engine.llm import scheduler as module
from engine.llm.scheduler import READING_S, Scheduler
from engine.llm.sequence import Sequence
from tests.engine.llm.sequences import run, scheduler, sequence, step_cost

SLOTS = 16
MAX_STALL_S, IDLE_ALLOWANCE_S = 0.1, 0.5
LONGEST_DECODE_S = 0.04  # of step_cost


class Seen(NamedTuple):
    first_token_s: dict[int, list[float]]  # by the length of the prompt
    longest_gap_s: float


def serve(queue: Scheduler, arrivals: list[Sequence], *, chunked: bool = True) -> Seen:
    """Run until all have ended. Not chunked: a prompt is read in one step, whoever waits."""
    cost = step_cost(SLOTS)
    first_token_s: dict[int, list[float]] = {}
    token_at: dict[Sequence, float] = {}
    longest_gap_s = now = 0.0
    arrivals = sorted(arrivals, key=lambda each: each.arrived_at, reverse=True)
    while arrivals or queue.ready(now):
        while arrivals and (arrivals[-1].arrived_at <= now or not queue.ready(now)):
            now = max(now, arrivals[-1].arrived_at)
            queue.add(arrivals.pop())
        allowance_s = MAX_STALL_S if queue.decoding() else IDLE_ALLOWANCE_S
        plan = queue.plan(allowance_s if chunked else 1e9, now)
        num_decodes = sum(each.decoding for each, _ in plan.shares)
        num_read = sum(num_tokens for _, num_tokens in plan.shares) - num_decodes
        now += cost.decode_s(num_decodes) + cost.read_s(num_read)
        run(queue, plan)
        for each, _ in plan.shares:
            if each.num_unread == 1:
                if each in token_at:
                    longest_gap_s = max(longest_gap_s, now - token_at[each])
                else:
                    first_token_s.setdefault(each.num_prompt_tokens, []).append(now - each.arrived_at)
                token_at[each] = now
    return Seen(first_token_s, longest_gap_s)


def poisson(random: Random, rate: float, num_prompt: int, max_tokens: int, seconds: float = 60.0) -> list[Sequence]:
    arrived_at, found = 0.0, []
    while (arrived_at := arrived_at + random.expovariate(rate)) < seconds:
        found.append(sequence(num_prompt, max_tokens, arrived_at=arrived_at))
    return found


def mixed() -> list[Sequence]:
    """A short question twice a second, and every eight seconds two long prompts, which take three seconds each."""
    long = [sequence(1500, 40, arrived_at=8.0 * number) for number in range(6) for _ in range(2)]
    return long + [sequence(32, 20, arrived_at=0.5 * number + 0.1) for number in range(96)]


def test_short_requests_beside_long_prompts_begin_much_sooner_than_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = serve(scheduler(SLOTS, max_held=100_000), mixed())
    monkeypatch.setattr(module, "due_at", lambda sequence, read_s: sequence.arrived_at)
    in_order = serve(scheduler(SLOTS, max_held=100_000), mixed(), chunked=False)
    assert median(in_order.first_token_s[32]) >= 4 * median(ours.first_token_s[32])
    assert max(ours.first_token_s[1500]) <= 1.5 * max(in_order.first_token_s[1500])
    assert in_order.longest_gap_s > 10 * (LONGEST_DECODE_S + MAX_STALL_S)  # else the test would show nothing


def test_short_requests_begin_soon_also_where_long_prompts_are_read_and_hardly_anybody_decodes() -> None:
    long = [sequence(1024, 2, arrived_at=2.2 * number) for number in range(16)]
    short = [sequence(32, 2, arrived_at=0.37 * number) for number in range(90)]
    seen = serve(scheduler(SLOTS, max_held=100_000), long + short)
    alone_s = step_cost(SLOTS).decode_s(0) + step_cost(SLOTS).read_s(32)
    assert median(seen.first_token_s[32]) <= 1.5 * READING_S + alone_s


@pytest.mark.parametrize("seed", range(3))
def test_no_reader_waits_longer_than_a_step_and_the_stall_that_is_allowed(seed: int) -> None:
    random = Random(seed)
    arrivals = [each for num in (32, 128, 512) for each in poisson(random, 0.7, num, 60)]
    seen = serve(scheduler(SLOTS, max_held=100_000), arrivals)
    assert seen.longest_gap_s <= LONGEST_DECODE_S + MAX_STALL_S
