"""bench/policy.py measures every policy that there is, and its sums are right."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.admitted import Quota, _row
from bench.chats import chat
from bench.policies import LEFT_OUT, TABLES, routes
from proxy.policy import POLICIES


def test_every_policy_is_measured_or_left_out_for_a_reason() -> None:
    assert {*TABLES, *LEFT_OUT} == {module.NAME for module in POLICIES}


def test_a_route_has_all_policies_one_of_them_or_all_but_one() -> None:
    found = routes()
    assert found["all"].keys() == TABLES.keys()
    assert found["without-auth"].keys() == TABLES.keys() - {"auth"}
    assert found["only-auth"].keys() - found["bare"].keys() == {"auth"}


def test_a_request_has_the_bytes_that_are_asked_for_and_words_of_its_own() -> None:
    assert [len(chat(number)) for number in range(3)] == [2048] * 3
    assert chat(1) != chat(2)
    assert chat(1) == chat(1)


@pytest.mark.parametrize(
    ("arrived", "cut", "difference"), [(100, 0, 0), (101, 0, 1), (101, 5, 1), (99, 0, -1), (99, 1, 0), (95, 3, -2)]
)
def test_a_cut_request_may_have_been_counted_and_makes_no_room(arrived: int, cut: int, difference: int) -> None:
    assert _row(Quota("r", 100), arrived, Counter({0: cut}))["difference"] == difference
