"""Which fields cross the proxy, by vectors for requests and one by one for answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.headers import joined, read_response_headers, upstream_request_headers
from tests.proxy.make import exchange

VECTORS = yaml.safe_load((Path(__file__).parents[1] / "vectors/proxy/request_headers.yaml").read_text())


def raw(pairs: list[list[str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in pairs]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["id"])
def test_request_headers(vector: dict[str, Any]) -> None:
    x = exchange(headers=[(name, value) for name, value in vector["received"]], trusted=vector.get("trusted", False))
    x.drop |= {name.encode() for name in vector.get("drop", [])}
    x.add += raw(vector.get("add", []))
    assert upstream_request_headers(x) == [(b"Host", b"a.example"), *raw(vector["sent"])]


def test_A11_host_is_made_from_the_authority_that_was_routed() -> None:
    x = exchange(headers=[("Host", "internal.example")], authority="allowed.example:8080")
    assert upstream_request_headers(x) == [(b"Host", b"allowed.example:8080")]


def test_B07_three_cookies_reach_the_client_as_three_lines_in_order() -> None:
    lines = raw([["Set-Cookie", "a=1"], ["set-cookie", "b=2"], ["Set-Cookie", "c=3"]])
    assert read_response_headers(lines).kept == lines


def test_B08_content_coding_is_left_alone_and_framing_is_not() -> None:
    received = raw([["Content-Encoding", "gzip"], ["Content-Length", "9"], ["Transfer-Encoding", "chunked"]])
    read = read_response_headers(received)
    assert read.kept == raw([["Content-Encoding", "gzip"]])
    assert (read.length, read.coding, read.dated) == (b"9", b"chunked", False)


def test_contradicting_lines_of_framing_are_all_told() -> None:
    received = raw([["Content-Length", "5"], ["date", "x"], ["content-length", "6"], ["Transfer-Encoding", "a"]])
    received += raw([["Transfer-Encoding", "b"]])
    read = read_response_headers(received)
    assert (read.kept, read.length, read.coding, read.dated) == (raw([["date", "x"]]), b"5,6", b"a,b", True)


def test_what_an_answers_connection_lists_stays_here() -> None:
    received = raw([["Connection", "close, X-Hop"], ["X-Hop", "1"], ["Keep-Alive", "x"], ["X-End", "2"]])
    assert read_response_headers(received).kept == raw([["X-End", "2"]])


def test_lines_of_one_field_are_joined() -> None:
    assert joined(raw([["X-A", "1"], ["Host", "h"], ["x-a", "2"]]), b"x-a") == b"1, 2"
    assert joined([], b"x-a") == b""
