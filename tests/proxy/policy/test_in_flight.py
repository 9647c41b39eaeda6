"""Permits: taken once, given back once, whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chain import Chain
from proxy.exchange import Exchange
from proxy.shared.layout import Geometry
from proxy.shared.table import SharedTable
from tests.proxy.make import COMPLETE, answer, chain, exchange


def limited(key: str, most: int, shared: SharedTable | None = None, **more: Any) -> Chain:
    return chain({"in_flight": {"max": most, "key": key}, **more}, shared=shared)


def test_a_full_route_is_the_boxs_doing_503() -> None:
    served = limited("route", 2)
    open_now = [exchange(peer=f"192.0.2.{i}") for i in range(3)]
    heads = [answer(served, x) for x in open_now]
    assert [head.status for head in heads] == [200, 200, 503]
    assert heads[2].get(b"retry-after") == b"1"
    served.settle(open_now[2], COMPLETE, 0.0)
    assert answer(served, exchange()).status == 503
    served.settle(open_now[0], COMPLETE, 0.0)
    assert answer(served, exchange()).status == 200


@pytest.mark.parametrize(("key", "fact"), [("client", "client"), ("api_key", "key_id")])
def test_a_clients_own_limit_is_its_own_429(key: str, fact: str) -> None:
    served = chain({"in_flight": {"max": 1, "key": key}})
    assert answer(served, exchange(**{fact: "192.0.2.1"})).status == 200
    refused = answer(served, exchange(**{fact: "192.0.2.1"}))
    assert (refused.status, refused.get(b"retry-after")) == (429, b"1")
    assert answer(served, exchange(**{fact: "192.0.2.2"})).status == 200


def test_a_request_over_its_concurrency_is_not_charged_to_its_rate() -> None:
    served = chain(
        {"in_flight": {"max": 1, "key": "client"}, "rate_limit": ["two"]}, limits={"two": {"requests": "2/h"}}
    )
    first = exchange()
    assert answer(served, first).status == 200
    for _ in range(5):
        assert answer(served, exchange()).get(b"ratelimit") is None
    served.settle(first, COMPLETE, 0.0)
    assert answer(served, exchange()).get(b"ratelimit") == b'"two";r=0;t=1800'


def test_a_request_over_its_rate_gives_its_permit_back() -> None:
    served = chain({"in_flight": {"max": 1}, "rate_limit": ["one"]}, limits={"one": {"requests": "1/h"}})
    for status in (200, 429, 429):
        x = exchange()
        assert answer(served, x).status == status
        served.settle(x, COMPLETE, 0.0)


def test_permits_taken_before_a_reload_are_given_back_after_it() -> None:
    shared = SharedTable.alone()
    old = limited("route", 2, shared)
    flying = [exchange(), exchange()]
    assert [answer(old, x).status for x in flying] == [200, 200]
    new = limited("route", 2, shared)
    assert answer(new, exchange()).status == 503
    old.settle(flying[0], COMPLETE, 0.0)
    assert answer(new, exchange()).status == 200


@given(st.lists(st.tuples(st.sampled_from(["arrive", "end"]), st.integers(0, 3)), max_size=60))
def test_no_permit_is_lost_or_given_twice(steps: list[tuple[str, int]]) -> None:
    shared = SharedTable.alone(Geometry(permits=64))
    served = limited("client", 2, shared)
    flying: dict[int, list[Exchange]] = {client: [] for client in range(4)}
    for step, client in steps:
        if step == "arrive":
            x = exchange(peer=f"192.0.2.{client}")
            admitted = served.admit(x, 0.0) is None
            assert admitted == (len(flying[client]) < 2)
            if admitted:
                flying[client].append(x)
            else:
                served.settle(x, COMPLETE, 0.0)
        elif flying[client]:
            x = flying[client].pop()
            served.settle(x, COMPLETE, 0.0)
            served.settle(x, COMPLETE, 0.0)
    for exchanges in flying.values():
        for x in exchanges:
            served.settle(x, COMPLETE, 0.0)
    assert [shared.permits("client r").open(f"192.0.2.{client}") for client in range(4)] == [0] * 4
