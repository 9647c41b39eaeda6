"""Which pages may use a route: preflights answered, answers marked, everybody else left alone."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from proxy.exchange import Head
from tests.proxy.make import COMPLETE, Fields, answer, chain, exchange

APP = "https://app.example.com"
CREDENTIALS = {"origins": [APP], "credentials": True, "expose": ["X-Total"], "max_age": "1h"}


def preflight(config: dict[str, Any], origin: str, method: str = "PUT", headers: str = "x-a, content-type") -> Head:
    fields: Fields = [("Origin", origin), ("Access-Control-Request-Method", method)]
    if headers:
        fields.append(("Access-Control-Request-Headers", headers))
    return answer(chain({"cors": config}), exchange(headers=fields, method="OPTIONS"))


def relayed(config: dict[str, Any], fields: Fields, upstream: list[tuple[bytes, bytes]], method: str = "GET") -> Head:
    """The head that a client sees of the upstream's answer with these fields."""
    served = chain({"cors": config, "request_id": {}})
    x = exchange(headers=fields, method=method)
    assert served.admit(x, 0.0) is None
    head = Head(200, list(upstream))
    served.respond(x, head, 0.0)
    served.settle(x, COMPLETE, 0.0)
    return head


@pytest.mark.parametrize(
    ("allowed", "origin", "passes"),
    [
        (APP, APP, True),
        (APP, "https://app.example.com:443", False),
        (APP, "http://app.example.com", False),
        (APP, "https://app.example.com.evil.example", False),
        (APP, "https://APP.example.com", False),
        (APP, "null", False),
        ("http://[::1]:8080", "http://[::1]:8080", True),
        ("https://*.example.com", "https://a.example.com", True),
        ("https://*.example.com", "https://a.b-c.example.com", True),
        ("https://*.example.com", "https://example.com", False),
        ("https://*.example.com", "https://evil-example.com", False),
        ("https://*.example.com", "https://a.exampleXcom", False),
        ("https://*.example.com", "https://a.example.com:8443", False),
        ("https://*.example.com", "https://evil.example/a.example.com", False),
        ("https://*.example.com", "https://evil.example#.example.com", False),
        ("https://*.example.com", "https://u@a.example.com", False),
        ("https://*.example.com", "https://" + "a." * 300 + "example.com", False),
        ("https://*.example.com:8443", "https://a.example.com:8443", True),
        ("*", "https://whoever.example", True),
        ("*", "null", True),
    ],
)
def test_which_origins_pass(allowed: str, origin: str, passes: bool) -> None:
    head = preflight({"origins": ["https://other.example", allowed]}, origin)
    said = head.get(b"access-control-allow-origin")
    assert (head.status, said is not None) == ((204, True) if passes else (403, False))
    assert said in (None, b"*", origin.encode())
    relayed_head = relayed({"origins": [allowed]}, [("Origin", origin)], [])
    assert (relayed_head.get(b"access-control-allow-origin") is not None) is passes


def test_a_preflight_is_answered_here_with_all_that_it_asks() -> None:
    head = preflight({**CREDENTIALS, "methods": ["GET", "PUT"], "headers": ["X-A", "Content-Type"]}, APP)
    assert head.status == 204
    assert dict(head.headers) | {b"X-Request-Id": b""} == {
        b"Access-Control-Allow-Origin": APP.encode(),
        b"Access-Control-Allow-Credentials": b"true",
        b"Access-Control-Allow-Methods": b"GET, PUT",
        b"Access-Control-Allow-Headers": b"X-A, Content-Type",
        b"Access-Control-Max-Age": b"3600",
        b"Vary": b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
        b"X-Request-Id": b"",
    }


def test_any_method_and_any_header_are_told_by_name() -> None:
    config = {**CREDENTIALS, "methods": ["*"], "headers": ["*"]}
    head = preflight(config, APP)
    assert head.get(b"access-control-allow-methods") == b"PUT"
    assert head.get(b"access-control-allow-headers") == b"x-a, content-type"
    for unfit in ("x-a\tb", "a b", "x-a,", "\xe9", ",".join(["x-a"] * 101)):
        assert preflight(config, APP, headers=unfit).get(b"access-control-allow-headers") is None


def test_a_preflight_needs_no_key_and_costs_no_limit() -> None:
    served = chain(
        {"cors": {"origins": [APP]}, "auth": {"keys": "k"}, "rate_limit": ["one"]},
        materials={"k": b"keys: []"},
        limits={"one": {"requests": "1/day"}},
    )
    fields: Fields = [("Origin", APP), ("Access-Control-Request-Method", "POST")]
    assert [answer(served, exchange(headers=fields, method="OPTIONS")).status for _ in range(3)] == [204] * 3
    refused = answer(served, exchange(headers=[("Origin", APP)], method="POST"))
    assert (refused.status, refused.get(b"access-control-allow-origin")) == (401, APP.encode())


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("OPTIONS", [("Origin", APP)]),
        ("OPTIONS", [("Access-Control-Request-Method", "GET")]),
        ("GET", [("Origin", APP), ("Access-Control-Request-Method", "GET")]),
    ],
)
def test_what_is_no_preflight_goes_upstream(method: str, fields: Fields) -> None:
    relayed({"origins": [APP]}, fields, [], method)


def test_the_upstreams_own_word_is_replaced_and_not_doubled() -> None:
    upstream = [
        (b"Access-Control-Allow-Origin", b"*"),
        (b"access-control-allow-credentials", b"true"),
        (b"Access-Control-Expose-Headers", b"X-Secret"),
        (b"X-A", b"1"),
    ]
    head = relayed(CREDENTIALS, [("Origin", APP)], upstream)
    assert [field for field in head.headers if field[0] != b"X-Request-Id"] == [
        (b"X-A", b"1"),
        (b"Vary", b"Origin"),
        (b"Access-Control-Allow-Origin", APP.encode()),
        (b"Access-Control-Allow-Credentials", b"true"),
        (b"Access-Control-Expose-Headers", b"X-Total"),
    ]
    other = relayed(CREDENTIALS, [("Origin", "https://evil.example")], upstream)
    assert [name for name, _ in other.headers if name.lower().startswith(b"access-control-")] == []


@pytest.mark.parametrize(
    ("origins", "upstream", "vary"),
    [
        ([APP], [], [b"Origin"]),
        ([APP], [(b"Vary", b"Accept-Encoding")], [b"Accept-Encoding", b"Origin"]),
        ([APP], [(b"vary", b"accept, ORIGIN")], [b"accept, ORIGIN"]),
        ([APP], [(b"Vary", b"*")], [b"*"]),
        (["*"], [], []),
    ],
)
def test_caches_are_told_that_the_answer_depends_on_the_origin(
    origins: list[str], upstream: list[tuple[bytes, bytes]], vary: list[bytes]
) -> None:
    head = relayed({"origins": origins}, [], upstream)  # also where there was no Origin
    assert [value for name, value in head.headers if name.lower() == b"vary"] == vary


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"origins": []}, "at least 1"),
        ({"origins": ["app.example.com"]}, "is not an origin"),
        ({"origins": ["https://app.example.com/"]}, "is not an origin"),
        ({"origins": ["https://APP.example.com"]}, "is not an origin"),
        ({"origins": ["https://*.com"]}, "is not an origin"),
        ({"origins": ["https://a.*.com"]}, "is not an origin"),
        ({"origins": ["null"]}, "is not an origin"),
        ({"origins": ["*", APP], "credentials": True}, "would let every web page act as its visitor"),
        ({"origins": [APP], "credentials": True, "expose": ["*"]}, "list the fields"),
        ({"origins": [APP], "methods": ["A B"]}, "is not a method"),
        ({"origins": [APP], "headers": ["a b"]}, "is not a header name"),
    ],
)
def test_what_check_refuses(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        chain({"cors": config})
