"""The policy ``tokens`` in any order of requests and ends: nothing of what is reserved is lost or given twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.exchange import Exchange
from tests.proxy.make import COMPLETE
from tests.proxy.policy.token_requests import FAILED, GONE, HI, admit, answer, end, left, limited, post, told

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "end", "leave", "fail"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 40),  # tokens of the answer that are reserved, or which of the open ones ends
        st.integers(0, 60),  # tokens that it has used
    ),
    max_size=40,
)


@settings(deadline=None)
@given(STEPS, st.sampled_from(["gcra", "sliding"]))
def test_reserving_and_settling_conserves(steps: list[tuple[str, str, int, int]], algorithm: str) -> None:
    """While no time passes a key has used what its open requests have reserved and its ended ones have used, up to what
    may be owed; it is the same whoever of them leaves, fails or ends; and no key ever draws on another's."""
    served_by = limited(tokens="200/day", algorithm=algorithm)
    open_: dict[str, list[tuple[Exchange, int]]] = {"a": [], "b": [], "c": []}
    used = dict.fromkeys(open_, 0)
    for act, key, size, tokens in steps:
        mine = open_[key]
        if act == "begin":
            x = post({"model": "m", "prompt": [1] * 3, "max_tokens": size}, "/v1/completions", key=key)
            head = admit(served_by, x)
            fits = used[key] + 3 + size <= 200
            assert head.status == (200 if fits else 429)
            assert left(head) == max(0, 200 - used[key] - fits * (3 + size))
            if fits:
                mine.append((x, 3 + size))
                used[key] += 3 + size
            else:
                end(served_by, x)
        elif mine:
            x, reserved = mine.pop(size % len(mine))
            x.connected_at = 1.0
            outcome, now_used = COMPLETE, tokens
            if act == "end":
                answer(x, told(0, tokens))
            elif act == "leave":
                outcome, now_used = GONE, 3
            else:
                outcome, now_used = FAILED, 0
            end(served_by, x, outcome)
            used[key] += min(now_used - reserved, max(0, 400 - used[key]))


GCRA: dict[str, Any] = {"tokens": "10/s", "burst": 100}
SLIDING: dict[str, Any] = {"tokens": "100/min", "algorithm": "sliding"}


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 90), st.integers(0, 90), st.floats(0, 20)), max_size=40),
    st.sampled_from([GCRA, SLIDING]),
)
def test_what_is_given_back_is_given_once(steps: list[tuple[float, int, int, float]], limit: dict[str, Any]) -> None:
    """However long requests take and whatever they leave over: what they have used, or reserve while they are open, is
    no more than the window gives, of a sliding one; of a bucket no more than its burst and what has come back since the
    begin, and in no stretch more than one further burst. After a pause a key has its whole burst, and not more."""
    served_by = limited(**limit)
    now = began = 1000.0
    ledger: list[tuple[float, int]] = []  # when a request was admitted, and its tokens
    open_: list[tuple[float, Exchange, int, int]] = []  # when it ends, its row, what it will have used

    def settle(until: float) -> None:
        for each in sorted(open_, key=lambda each: each[0]):
            at, x, row, tokens = each
            if at <= until:
                answer(x, told(0, tokens))
                end(served_by, x, COMPLETE, at)
                ledger[row] = ledger[row][0], tokens
                open_.remove(each)

    def spent(since: float) -> int:
        return sum(tokens for at, tokens in ledger if at >= since)

    for pause_s, reserve, use, lasts_s in steps:
        now += pause_s
        settle(now)
        x = post({"model": "m", "prompt": [1], "max_tokens": reserve}, "/v1/completions", now=now)
        if admit(served_by, x, now).status != 200:
            end(served_by, x, COMPLETE, now)
            continue
        open_.append((now + lasts_s, x, len(ledger), min(use, 1 + reserve)))
        ledger.append((now, 1 + reserve))
        if limit is SLIDING:
            assert spent(now - 59.9) <= 100
        else:
            assert spent(began) <= 100 + 10 * (now - began) + 1e-3
            assert all(spent(at) <= 200 + 10 * (now - at) + 1e-3 for at, _ in ledger)
    settle(now + 20.0)
    later = now + 100.0
    x = post({"model": "m", "prompt": [1], "max_tokens": 99}, "/v1/completions", now=later)
    assert admit(served_by, x, later).status == 200
    assert admit(served_by, post(HI, now=later), later).status == 429


@pytest.mark.parametrize(("algorithm", "rate"), [("gcra", "10/s"), ("sliding", "100/min")])
def test_a_reservation_that_time_has_forgiven_is_not_given_back(algorithm: str, rate: str) -> None:
    served_by = limited(tokens=rate, algorithm=algorithm, **({"burst": 100} if algorithm == "gcra" else {}))
    first = post({"model": "m", "prompt": [1], "max_tokens": 99}, "/v1/completions")
    assert admit(served_by, first).status == 200
    later = 70.0  # all of it is forgiven, and another request has the whole burst
    second = post({"model": "m", "prompt": [1], "max_tokens": 99}, "/v1/completions", now=later)
    assert admit(served_by, second, later).status == 200
    answer(first, told(1, 0))
    end(served_by, first, COMPLETE, later)
    assert admit(served_by, post(HI, now=later), later).status == 429
