"""The policies that pick one of several servers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config import HashBalance, Health
from proxy.upstream.balance import Member, pick_in_turn, pick_least
from proxy.upstream.balance_hash import Hash, cookie_of, hash_of, pick_by_hash
from proxy.upstream.state import ServerState
from tests.proxy.make import exchange, proxy_config


def members(*weights: int) -> list[Member]:
    names = [f"http://10.0.0.{index}:8080" for index in range(len(weights))]
    return [
        Member(index, ServerState(name, Health()), weight, hash_of(name))
        for index, (name, weight) in enumerate(zip(names, weights, strict=True))
    ]


def balance(text: object) -> HashBalance:
    table = {"servers": ["http://a:1"], "balance": {"hash": text}}
    parsed = proxy_config(upstreams={"u": table}).upstreams["u"].balance
    assert isinstance(parsed, HashBalance)
    return parsed


# Least requests


def test_of_two_drawn_the_one_with_fewer_requests_is_taken() -> None:
    pair = members(1, 1)
    pair[0].state.in_flight = 1
    assert {pick_least(pair, None, draw / 16).index for draw in range(16)} == {1}


def test_ties_go_to_the_first_drawn_so_that_all_get_their_share() -> None:
    assert [pick_least(members(1, 1, 1, 1), None, draw / 4).index for draw in range(4)] == [0, 1, 2, 3]


def test_the_busiest_of_many_is_never_taken() -> None:
    many = members(1, 1, 1, 1, 1)
    many[3].state.in_flight = 9
    assert 3 not in {pick_least(many, None, draw / 500).index for draw in range(500)}


def test_a_draw_reaches_every_pair() -> None:
    """Both draws come of one number: all ordered pairs of different servers must be as likely."""
    busy = members(1, 1, 1, 1)
    seen = Counter[tuple[int, int]]()
    for first in range(4):
        for other in busy:
            other.state.in_flight = 1
        busy[first].state.in_flight = 2  # drawn first, it loses to whoever is second
        for draw in range(120):
            at = (first + draw / 120) / 4
            seen[first, pick_least(busy, None, at).index] += 1
    assert len(seen) == 12
    assert all(39 <= times <= 41 for times in seen.values())


@pytest.mark.parametrize("weights", [(1, 1, 1), (5, 1, 1), (3, 2, 1), (100, 1, 50)])
def test_requests_that_stay_spread_by_weight(weights: tuple[int, ...]) -> None:
    many = members(*weights)
    draws = random.Random(7)
    total = sum(weights)
    for _ in range(20 * total):
        pick_least(many, None, draws.random()).state.in_flight += 1
    shares = [member.state.in_flight / (20 * total) for member in many]
    assert shares == pytest.approx([weight / total for weight in weights], abs=0.05)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=9), st.floats(0.0, 1.0, exclude_max=True))
def test_any_draw_takes_some_member(weights: list[int], draw: float) -> None:
    many = members(*weights)
    assert pick_least(many, None, draw) in many


# Round robin


def taken(many: Sequence[Member], times: int) -> str:
    return "".join("abcdef"[pick_in_turn(many, None, 0.0).index] for _ in range(times))


def test_round_robin_is_smooth_and_by_weight() -> None:
    assert taken(members(5, 1, 1), 14) == "aabacaa" * 2
    assert taken(members(1, 1, 1), 6) == "abcabc"
    assert taken(members(2, 1), 6) == "abaaba"


def test_round_robin_goes_on_without_one_and_with_it_again() -> None:
    many = members(1, 1, 1)
    assert taken(many, 2) == "ab"
    assert all(4 <= times <= 6 for times in Counter(taken([many[0], many[2]], 10)).values())
    assert len(Counter(taken(many, 9))) == 3


# Hashing


def spread(many: Sequence[Member], num_keys: int = 6000) -> dict[int, int]:
    return {key: pick_by_hash(many, hash_of(f"user-{key}")).index for key in range(num_keys)}


@pytest.mark.parametrize("count", [2, 5, 10])
def test_when_one_of_n_leaves_only_its_share_moves_and_returns_with_it(count: int) -> None:
    many = members(*[1] * count)
    before = spread(many)
    after = spread(many[1:])
    moved = {key for key in before if before[key] != after[key]}
    assert moved == {key for key, index in before.items() if index == 0}
    assert len(moved) / len(before) == pytest.approx(1 / count, rel=0.15)
    landed = Counter(after[key] for key in moved)
    for share in landed.values():
        assert share / len(moved) == pytest.approx(1 / (count - 1), rel=0.35)
    assert spread(many) == before


def test_when_one_joins_n_it_takes_its_share_and_nothing_else_moves() -> None:
    many = members(1, 1, 1, 1, 1)
    before, after = spread(many[:4]), spread(many)
    moved = [key for key in before if before[key] != after[key]]
    assert {after[key] for key in moved} == {4}
    assert len(moved) / len(before) == pytest.approx(1 / 5, rel=0.15)


def test_hashing_is_by_weight_and_the_same_everywhere() -> None:
    counts = Counter(spread(members(1, 2, 5)).values())
    assert [counts[i] / 6000 for i in range(3)] == pytest.approx([1 / 8, 2 / 8, 5 / 8], rel=0.1)
    assert hash_of("user-1").to_bytes(8, "little").hex() == "9aac5a8621eae188"  # as b2sum -l 64 says


def test_what_is_remembered_is_what_would_be_worked_out_and_ends_with_its_servers() -> None:
    pick = Hash(balance({"header": "X-User"}))
    many = tuple(members(1, 2, 1))
    for standing in (many, many[:2], many[1:], many):
        for _ in range(2):
            for key in range(300):
                x = exchange("/", [("X-User", f"u{key}")])
                assert pick(standing, x, 0.0) is pick_by_hash(standing, hash_of(f"u{key}"))
                without = [member for member in standing if member is not standing[0]]
                assert pick(without, x, 0.0) is pick_by_hash(without, hash_of(f"u{key}"))


@pytest.mark.parametrize(
    ("hashed", "headers", "value"),
    [
        ("client", [], "198.51.100.9"),
        ("path", [], "/a/b"),
        ({"header": "X-User"}, [("x-user", "ann")], "ann"),
        ({"header": "X-User"}, [], None),
        ({"header": "X-User"}, [("X-User", "")], None),
        ({"cookie": "sid"}, [("Cookie", "a=1; sid=42; sid=43")], "42"),
        ({"cookie": "sid"}, [("Cookie", "asid=1; SID=2")], None),
        ({"cookie": "sid"}, [], None),
    ],
)
def test_what_is_hashed(hashed: object, headers: list[tuple[str, str]], value: str | None) -> None:
    x = exchange("/a/b?q=1", headers, client="198.51.100.9")
    assert Hash(balance(hashed)).value_of(x) == value


def test_without_the_value_least_requests_decides() -> None:
    many = members(1, 1)
    many[0].state.in_flight = 1
    pick = Hash(balance({"header": "X-User"}))
    assert {pick(many, exchange(), draw / 8).index for draw in range(8)} == {1}
    assert pick(many, None, 0.0).index == 1
    with_value = exchange("/", [("X-User", "ann")])
    assert len({pick(many, with_value, draw / 8).index for draw in range(8)}) == 1


@pytest.mark.parametrize(
    ("fields", "value"),
    [("sid=1", "1"), ("a=b;sid=1", "1"), ("sid", None), ('sid="x y"', '"x y"'), ("sid=a=b", "a=b"), ("", None)],
)
def test_a_cookie_is_found(fields: str, value: str | None) -> None:
    assert cookie_of(fields, "sid") == value
