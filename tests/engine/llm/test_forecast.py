"""What the work inside will take, by the measured cost of reading and answering."""

from __future__ import annotations

import pytest

from engine.llm.forecast import Forecast
from tests.engine.llm.sequences import TOKEN_S, scheduler, sequence, step, step_cost


def test_the_work_inside_is_what_is_unread_and_what_answers_still_get() -> None:
    forecast = Forecast(4, step_cost(4))
    short = sequence(100, 10)
    assert forecast.work_s([]) == 0.0
    assert forecast.work_s([short]) == pytest.approx(100 * TOKEN_S + 10 * 0.01)
    four = [sequence(100, 1000) for _ in range(8)]
    assert forecast.work_s(four) == pytest.approx(800 * TOKEN_S + 8 * 100 * 0.04 / 4)  # the first guess: 100 tokens


def test_the_expected_length_follows_the_answers_that_have_ended() -> None:
    forecast = Forecast(4, step_cost(4))
    for _ in range(100):
        ended = sequence(3, 1000)
        ended.tokens += [5] * 7
        forecast.ended(ended)
    assert forecast.answer_tokens(sequence(3, 1000)) == 7
    assert forecast.answer_tokens(sequence(3, 4)) == 4


def test_a_first_token_comes_after_the_reading_ahead_and_the_steps_that_decode_meanwhile() -> None:
    queue = scheduler(slots=2)
    queue.add(sequence(10, 50))
    step(queue)
    new = sequence(100)
    queue.add(new)
    alone_s = queue.forecast.first_token_s(new, running=[], ahead=[], allowance_s=0.1)
    beside_s = queue.forecast.first_token_s(new, running=queue.running, ahead=[], allowance_s=0.1)
    behind_s = queue.forecast.first_token_s(new, running=queue.running, ahead=[sequence(50)], allowance_s=0.1)
    assert alone_s == pytest.approx(100 * TOKEN_S)
    assert beside_s == pytest.approx(100 * TOKEN_S + 2 * 0.01)  # two chunks of 50 tokens, each with a step
    assert behind_s == pytest.approx(150 * TOKEN_S + 3 * 0.01 + 1 * 100 * 0.01)  # and one must leave before


def test_a_short_prompt_does_not_wait_for_long_ones_that_are_being_read() -> None:
    queue = scheduler(slots=3)
    queue.add(sequence(1000))
    step(queue, allowance_s=0.1)
    short, longer = sequence(10, arrived_at=60.0), sequence(990, arrived_at=60.0)
    for each in (short, longer):
        queue.add(each)
    waits_s = [
        queue.forecast.first_token_s(each, running=queue.running, ahead=[], allowance_s=0.1) for each in (short, longer)
    ]
    assert waits_s == pytest.approx([2 * 10 * TOKEN_S, (950 + 990) * TOKEN_S])  # the shortest in every second step
