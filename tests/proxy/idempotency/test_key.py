"""Idempotency keys as they are written, and what makes requests the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.idempotency.key import BadKey, fingerprint, key_of, place_of

UUID = b"8e03978e-40d5-43dd-bc93-6894a57f9324"


@pytest.mark.parametrize("name", [b"Idempotency-Key", b"X-Idempotency-Key", b"idempotency-KEY"])
@pytest.mark.parametrize("value", [UUID, b'"%b"' % UUID, b"  %b " % UUID])
def test_both_fields_and_both_spellings_name_the_same(name: bytes, value: bytes) -> None:
    assert key_of([(b"Host", b"x"), (name, value)]) == UUID


def test_a_quoted_key_may_hold_what_quotes_need() -> None:
    assert key_of([(b"Idempotency-Key", rb'"a \"b\" \\ c"')]) == rb'a "b" \ c'
    assert key_of([(b"Host", b"x")]) is None


@pytest.mark.parametrize(
    "value",
    [b"", b" ", b'""', b'"open', b'a"'[::-1], b"a\rb", b"a\x00", b"k\xc3\xa9", b"x" * 300, b'"' + b"x" * 256 + b'"'],
)
def test_L22_g_what_is_no_key_is_refused_and_not_repeated(value: bytes) -> None:
    with pytest.raises(BadKey) as refused:
        key_of([(b"Idempotency-Key", value)])
    assert "send" in str(refused.value) or "it may have" in str(refused.value)
    assert "xxx" not in str(refused.value)


def test_two_keys_that_differ_are_none_and_two_that_agree_are_one() -> None:
    assert key_of([(b"Idempotency-Key", b"a"), (b"X-Idempotency-Key", b'"a"'[1:-1])]) == b"a"
    with pytest.raises(BadKey, match="several"):
        key_of([(b"Idempotency-Key", b"a"), (b"X-Idempotency-Key", b"b")])


def test_L22_h_every_byte_counts() -> None:
    one = fingerprint("POST", "/v1/x", "", "application/json", b'{"a":1}')
    assert one == fingerprint("POST", "/v1/x", "", "application/json", b'{"a":1}')
    others = [
        fingerprint("POST", "/v1/x", "", "application/json", b'{"a": 1}'),
        fingerprint("PATCH", "/v1/x", "", "application/json", b'{"a":1}'),
        fingerprint("POST", "/v1/y", "", "application/json", b'{"a":1}'),
        fingerprint("POST", "/v1/x", "q", "application/json", b'{"a":1}'),
        fingerprint("POST", "/v1/x", "", "text/plain", b'{"a":1}'),
    ]
    assert len({one, *others}) == 6


@given(st.tuples(st.text(), st.text(), st.binary()), st.tuples(st.text(), st.text(), st.binary()))
def test_places_differ_where_route_sender_or_key_do(one: tuple[str, str, bytes], other: tuple[str, str, bytes]) -> None:
    assert (place_of(*one) == place_of(*other)) == (one == other)
    assert len(place_of(*one)) == 32
