"""The cost of a step: learned from steps, and never useless whatever was measured."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.llm.sequences import TOKEN_S, step_cost

tokens = st.integers(0, 4096)


@given(
    steps=st.lists(
        st.tuples(st.lists(tokens, max_size=4), st.lists(st.tuples(st.integers(1, 512), tokens)), st.floats(0, 10))
    )
)
def test_no_measurement_makes_it_useless(steps: list[tuple[list[int], list[tuple[int, int]], float]]) -> None:
    cost = step_cost(4)
    for decodes, chunks, took_s in steps:
        cost.observe(decodes, chunks, took_s)
    assert cost.read_s(1) > 0
    assert 0 <= cost.chunk_tokens(0.1, 4096) <= cost.chunk_tokens(0.1) <= cost.chunk_tokens(0.2)
    assert all(0 < cost.decode_s(rows) <= cost.decode_s(rows, 4096) for rows in range(1, 5))


@given(allowance_s=st.floats(0, 1), num_before=tokens)
def test_a_chunk_is_the_longest_that_the_allowance_pays_for(allowance_s: float, num_before: int) -> None:
    cost = step_cost(4)
    for _ in range(20):
        cost.observe([], [(64, 2048)], 0.4)
    num_tokens = cost.chunk_tokens(allowance_s, num_before)
    assert cost.read_s(num_tokens, num_before) <= allowance_s * (1 + 1e-9)
    assert cost.read_s(num_tokens + 1, num_before) > allowance_s * (1 - 1e-9)


def test_it_learns_from_steps() -> None:
    cost = step_cost(4)
    assert [round(cost.decode_s(rows), 3) for rows in range(5)] == [0.01, 0.01, 0.02, 0.03, 0.04]
    for _ in range(100):
        cost.observe([0] * 4, [], 0.06)
        cost.observe([0] * 4, [(20, 0)], 0.14)
    assert cost.decode_s(4) == pytest.approx(0.06)
    assert cost.read_s(20) == pytest.approx(0.08)


def test_so_much_less_is_planned_that_one_step_in_a_hundred_takes_longer_than_is_allowed() -> None:
    random = Random(3)
    even, uneven, wild = step_cost(4), step_cost(4), step_cost(4)
    assert even.planned_s(0.1, 4) == pytest.approx(0.1)
    overruns = 0
    for number in range(5000):
        even.observe([0] * 4, [(50, 0)], (0.04 + 50 * TOKEN_S) * 0.999)
        num_tokens = uneven.chunk_tokens(uneven.planned_s(0.1, 4))
        took_s = (0.04 + num_tokens * TOKEN_S) * (random.gauss(1.0, 0.1) + (random.random() < 0.02) * 0.3)
        overruns += number > 500 and took_s > 0.14
        uneven.observe([0] * 4, [(num_tokens, 0)], took_s)
        wild.observe([0] * 4, [(50, 0)], (0.04 + 50 * TOKEN_S) * random.choice((0.2, 5.0)))
    assert even.planned_s(0.1, 4) == pytest.approx(0.1)
    assert 0.05 < uneven.planned_s(0.1, 4) < 0.075
    assert 0 < overruns <= 45  # one in a hundred; half of them if it were planned as it is allowed
    assert wild.planned_s(0.1, 4) == pytest.approx(0.1 / 3)


def test_steps_of_reading_alone_say_nothing_of_how_long_readers_wait() -> None:
    cost = step_cost(4)
    for number in range(200):
        cost.observe([], [(50, 0)], 50 * TOKEN_S * (0.5 if number % 2 else 1.5))
    assert cost.planned_s(0.1, 4) == pytest.approx(0.1)


def test_it_learns_what_the_tokens_before_cost_though_lengths_and_rows_change_all_the_time() -> None:
    def truth(decodes: list[int], chunks: list[tuple[int, int]]) -> float:
        decode_s = 0.01 + 0.003 * len(decodes) + 0.010 * sum(decodes) / 1024
        return decode_s + sum(num * (TOKEN_S + 0.0012 * (before + num / 2) / 1024) for num, before in chunks)

    random = Random(5)
    cost = step_cost(8)
    for _ in range(1000):
        decodes = [random.randrange(2000) for _ in range(random.randrange(1, 9))]
        chunks = [(random.randrange(16, 64), random.choice((0, 500, 1900)))] * random.randrange(2)
        cost.observe(decodes, chunks, truth(decodes, chunks) * random.uniform(0.95, 1.05))
    for before in (500, 1900):
        assert cost.read_s(50, before) == pytest.approx(truth([], [(50, before)]) - 0.01, rel=0.1)
        assert cost.decode_s(8, 8 * before) == pytest.approx(truth([before] * 8, []), rel=0.1)
