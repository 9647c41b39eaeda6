"""What is tried again, and what never is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import Retry
from proxy.upstream.retry import ENGINE_GONE_S, MAX_BACKOFF_S, Failure, RetryBudget, decide

CONFIG = Retry.model_validate({"attempts": 3, "budget": "20%"})


def tried_again(budget: RetryBudget | None = None, **facts: Any) -> float | None:
    asked: dict[str, Any] = {
        "attempt": 1,
        "method": "GET",
        "sent": True,
        "replayable": True,
        "failure": Failure.BROKE_OFF,
        "draw": 0.5,
        "now": 0.0,
    }
    return decide(CONFIG, budget or RetryBudget(), **asked | facts)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
def test_idempotent_methods_are_tried_again(method: str) -> None:
    assert tried_again(method=method) == pytest.approx(0.0125)


@pytest.mark.parametrize("method", ["POST", "PATCH", "get", "PURGE"])
def test_D02_others_only_when_nothing_was_sent(method: str) -> None:
    for failure in (Failure.BROKE_OFF, Failure.STALE):
        assert tried_again(method=method, failure=failure) is None
    assert tried_again(method=method, sent=False, failure=Failure.CONNECT) is not None


def test_inference_with_its_body_held_counts_as_idempotent() -> None:
    assert tried_again(method="POST", is_local=True) is not None
    assert tried_again(method="POST", is_local=True, replayable=False) is None


def test_all_that_an_engine_carried_is_tried_again_and_once() -> None:
    budget = RetryBudget()
    delays_s = [tried_again(budget, method="POST", is_local=True) for _ in range(50)]
    assert delays_s == [ENGINE_GONE_S + 0.0125] * 50
    assert tried_again(budget, method="POST", is_local=True, attempt=3) is None
    assert tried_again(budget) is not None  # and nothing of the budget was spent


@pytest.mark.parametrize("failure", [Failure.TIMEOUT, Failure.PROTOCOL])
def test_slow_and_malformed_answers_are_final(failure: Failure) -> None:
    assert tried_again(failure=failure) is None


def test_D01_a_stale_connection_is_replaced_at_once_outside_the_budget() -> None:
    budget = RetryBudget()
    assert [tried_again(budget, failure=Failure.STALE) for _ in range(50)] == [0.0] * 50
    assert tried_again(budget, failure=Failure.STALE, attempt=2) is not None


def test_attempts_are_bounded() -> None:
    assert tried_again(attempt=2) is not None
    assert tried_again(attempt=3) is None


def test_the_budget_is_a_fifth_with_a_floor_of_three() -> None:
    budget = RetryBudget()
    assert [tried_again(budget) is not None for _ in range(5)] == [True] * 3 + [False] * 2
    for _ in range(100):
        budget.request(5.0)
    assert sum(tried_again(budget, now=5.0) is not None for _ in range(50)) == 17  # 20 of 100, three spent
    assert sum(tried_again(budget, now=16.0) is not None for _ in range(50)) == 3


@given(attempt=st.integers(1, 2), draw=st.floats(0.0, 1.0, exclude_max=True))
def test_backoff_is_drawn_from_a_bounded_interval(attempt: int, draw: float) -> None:
    delay = tried_again(attempt=attempt, draw=draw)
    assert delay is not None
    assert 0.0 <= delay <= min(MAX_BACKOFF_S, 0.025 * 2 ** (attempt - 1))
