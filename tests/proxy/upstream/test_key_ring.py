"""Which of an upstream's keys is used, on a virtual clock."""

from __future__ import annotations

from proxy.shared.record import LocalRecord
from proxy.upstream.key_ring import MAX_REST_S, MIN_REST_S, REFUSED_S, KeyRing


def ring(num_keys: int = 3) -> KeyRing:
    return KeyRing([b"Bearer %d" % i for i in range(num_keys)], LocalRecord(num_keys))


def test_the_first_usable_key_is_used_for_everything() -> None:
    keys = ring()
    assert [keys.choose(float(i)) for i in range(5)] == [0] * 5


def test_a_key_that_is_limited_rests_as_long_as_the_answer_says() -> None:
    keys = ring()
    keys.refused(0, 429, 30.0, 100.0)
    assert keys.choose(129.9) == 1
    assert keys.choose(130.0) == 0
    keys.refused(0, 429, 0.0, 200.0)
    assert keys.choose(200.0 + MIN_REST_S - 0.1) == 1
    keys.refused(1, 429, 1e9, 200.0)
    assert keys.choose(200.0 + MIN_REST_S - 0.1) == 2
    keys.refused(0, 429, 1e9, 200.0)
    assert keys.choose(200.0 + MAX_REST_S) == 0


def test_a_key_that_is_not_valid_is_asked_again_late() -> None:
    keys = ring()
    keys.refused(0, 401, 1.0, 0.0)
    assert keys.choose(REFUSED_S - 1.0) == 1
    assert keys.choose(REFUSED_S) == 0


def test_when_all_rest_the_one_that_rests_least_is_used() -> None:
    keys = ring()
    for index, rest_s in enumerate((50.0, 20.0, 90.0)):
        keys.refused(index, 429, rest_s, 0.0)
    assert keys.choose(1.0) == 1
    assert not keys.has_other(1.0, {1})
    assert keys.has_other(60.0, {1})


def test_a_request_tries_each_key_once() -> None:
    keys = ring(2)
    assert keys.choose(0.0, {0}) == 1
    assert not keys.has_other(0.0, {0, 1})


def test_workers_know_of_each_others_refusals() -> None:
    record = LocalRecord(2)
    one, two = KeyRing([b"a", b"b"], record), KeyRing([b"a", b"b"], record)
    one.refused(0, 401, 0.0, 0.0)
    assert two.choose(1.0) == 1
