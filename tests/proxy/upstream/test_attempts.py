"""The number of an attempt across all who repeat a request, and answers that want it again."""

from __future__ import annotations

import pytest

from proxy.exchange import Head
from proxy.upstream.attempts import asks_again, attempt_field, tell_attempts, tried_before, wait_of
from tests.proxy.make import exchange


@pytest.mark.parametrize(
    ("fields", "trusted", "count"),
    [
        ([], True, 0),
        ([("X-Envoy-Attempt-Count", "1")], True, 0),
        ([("x-envoy-attempt-count", "3")], True, 2),
        ([("X-Envoy-Attempt-Count", "3")], False, 0),
        ([("X-Envoy-Attempt-Count", "-3")], True, 0),
        ([("X-Envoy-Attempt-Count", "9" * 30)], True, 0),
        ([("X-Envoy-Attempt-Count", "999999999")], True, 999),
        ([("x-stainless-retry-count", "2")], False, 2),
        ([("x-stainless-retry-count", "2"), ("X-Envoy-Attempt-Count", "2")], True, 2),
        ([("x-stainless-retry-count", "²")], False, 0),
    ],
)
def test_what_was_tried_before(fields: list[tuple[str, str]], trusted: bool, count: int) -> None:
    assert tried_before(exchange(headers=fields, trusted=trusted)) == count


def test_the_number_goes_on_where_another_has_left_it() -> None:
    x = exchange(headers=[("X-Envoy-Attempt-Count", "2")], trusted=True, attempts=2)
    assert attempt_field(x) == (b"x-envoy-attempt-count", b"3")


def test_only_a_trusted_proxy_is_told_how_often_it_was_tried() -> None:
    head = Head(502, [(b"X-Envoy-Attempt-Count", b"5")])
    tell_attempts(exchange(attempts=2), head)
    assert head.headers == [(b"X-Envoy-Attempt-Count", b"5")]
    tell_attempts(exchange(attempts=2, trusted=True), head)
    assert head.headers == [(b"x-envoy-attempt-count", b"5")]
    tell_attempts(exchange(attempts=7, trusted=True), head)
    assert head.headers == [(b"x-envoy-attempt-count", b"7")]


@pytest.mark.parametrize(
    ("fields", "wait_s"),
    [
        ([], 0.0),
        ([(b"Retry-After", b"7")], 7.0),
        ([(b"Retry-After", b"7"), (b"retry-after-ms", b"250")], 0.25),
        ([(b"retry-after-ms", b"1500.5")], 1.5005),
        ([(b"Retry-After", b"7"), (b"retry-after-ms", b"soon")], 7.0),
        ([(b"retry-after-ms", b"999999999999")], 3600.0),
    ],
)
def test_how_long_an_answer_wants_to_be_left_alone(fields: list[tuple[bytes, bytes]], wait_s: float) -> None:
    assert wait_of(Head(429, fields), 0.0) == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("fields", "again_s"),
    [
        ([(b"x-should-retry", b"true")], 0.0),
        ([(b"X-Should-Retry", b" TRUE"), (b"retry-after-ms", b"250")], 0.25),
        ([(b"x-should-retry", b"true"), (b"Retry-After", b"1")], 1.0),
        ([(b"x-should-retry", b"true"), (b"Retry-After", b"2")], None),
        ([(b"x-should-retry", b"false")], None),
        ([(b"Retry-After", b"1")], None),
    ],
)
def test_an_answer_asks_for_its_request_again(fields: list[tuple[bytes, bytes]], again_s: float | None) -> None:
    assert asks_again(Head(503, fields), 0.0) == again_s
