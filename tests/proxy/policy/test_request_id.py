"""Ids: whose is used, what is sent on, what comes back."""

from __future__ import annotations

import pytest

from proxy.headers import upstream_request_headers
from tests.proxy.make import Fields, answer, chain, exchange

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
DRAWN = "11" * 16


def sent(fields: Fields, policies: dict[str, object] | None = None) -> dict[str, str]:
    x = exchange(headers=fields)
    head = answer(chain(policies or {}), x)
    assert (b"X-Request-Id", x.request_id.encode()) in head.headers
    return {name.decode().lower(): value.decode() for name, value in upstream_request_headers(x)}


@pytest.mark.parametrize("given", ["abc-123", "a" * 128, "urn:x/1+2=3@h"])
def test_a_well_formed_id_is_kept(given: str) -> None:
    assert sent([("X-Request-Id", given)])["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", 'a"b', "a\x1bb", "{}", "ä", "a,b"])
def test_K01_anything_else_is_replaced(given: str) -> None:
    assert sent([("X-Request-Id", given)])["x-request-id"] == DRAWN


def test_without_one_it_is_made_and_the_trace_begins() -> None:
    made = sent([])
    assert made["x-request-id"] == DRAWN
    assert made["traceparent"] == f"00-{DRAWN}-{'11' * 8}-00"


@pytest.mark.parametrize(
    ("given", "continued"),
    [
        (f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{'11' * 8}-01"),
        (f"00-{TRACE}-{PARENT}-00", f"00-{TRACE}-{'11' * 8}-00"),
        (f"00-{TRACE}-{PARENT}-ff", f"00-{TRACE}-{'11' * 8}-01"),
        (f"cc-{TRACE}-{PARENT}-01-what-the-future-brings", f"00-{TRACE}-{'11' * 8}-01"),
    ],
)
def test_a_trace_is_continued_with_this_hop_as_parent(given: str, continued: str) -> None:
    assert sent([("traceparent", given)])["traceparent"] == continued


@pytest.mark.parametrize(
    "given",
    [
        "",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01 ",
        f"cc-{TRACE}-{PARENT}-01-" + "x" * 1000,
    ],
)
def test_a_broken_trace_is_begun_anew(given: str) -> None:
    assert sent([("traceparent", given)])["traceparent"] == f"00-{DRAWN}-{'11' * 8}-00"


def test_nothing_is_accepted_where_that_is_configured() -> None:
    fields: Fields = [("X-Request-Id", "abc"), ("traceparent", f"00-{TRACE}-{PARENT}-01")]
    made = sent(fields, {"request_id": {"accept": False}})
    assert made["x-request-id"] == DRAWN
    assert TRACE not in made["traceparent"]
