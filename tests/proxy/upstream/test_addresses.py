"""The addresses of a name, in turn."""

from __future__ import annotations

from proxy.upstream.addresses import MAX_ADDRESSES, MAX_TRIES, Addresses


def test_each_connection_begins_with_the_next_address() -> None:
    addresses = Addresses(["a", "b", "c"])
    assert ["".join(addresses.turn()) for _ in range(4)] == ["bca", "cab", "abc", "bca"]


def test_one_that_failed_is_tried_last_until_it_works_or_the_name_is_asked_for_again() -> None:
    addresses = Addresses(["a", "b"])
    addresses.told("b", False)
    assert ["".join(addresses.turn()) for _ in range(3)] == ["ab"] * 3
    addresses.told("b", True)
    assert {addresses.turn()[0] for _ in range(2)} == {"a", "b"}
    addresses.told("a", False)
    assert not addresses.replace(["b", "a"])
    assert {addresses.turn()[0] for _ in range(2)} == {"a", "b"}


def test_when_all_failed_all_are_tried_in_turn() -> None:
    addresses = Addresses(["a", "b"])
    addresses.told("a", False)
    addresses.told("b", False)
    assert {addresses.turn()[0] for _ in range(2)} == {"a", "b"}


def test_an_answer_in_another_order_is_the_same_and_doubles_count_once() -> None:
    addresses = Addresses()
    assert addresses.turn() == []
    assert addresses.replace(["b", "a", "b"])
    assert addresses.all == ("a", "b")
    assert not addresses.replace(["a", "b"])
    assert addresses.replace(["a"])


def test_what_fails_without_being_an_address_any_more_is_not_kept() -> None:
    addresses = Addresses(["a"])
    for number in range(1000):
        addresses.told(f"gone-{number}", False)
    assert addresses.turn() == ["a"]


def test_addresses_and_tries_are_bounded() -> None:
    addresses = Addresses()
    addresses.replace(f"10.0.0.{number}" for number in range(200))
    assert len(addresses.all) == MAX_ADDRESSES
    assert len(addresses.turn()) == MAX_TRIES
