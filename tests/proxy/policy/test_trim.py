"""What a request carries no further, what stays as it was byte by byte, and how much that saved."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.cells import Cells
from proxy.exchange import Exchange
from proxy.headers import upstream_request_headers
from proxy.keys import hash_key
from tests.proxy.make import Fields, chain, exchange

METRIC = "headrace_request_header_bytes_trimmed_total"
OURS = (b"Host", b"X-Request-Id", b"traceparent", b"X-Forwarded-For", b"X-Forwarded-Proto", b"X-Forwarded-Host")


def sent(config: dict[str, Any], fields: Fields, cells: Cells | None = None, **policies: Any) -> Fields:
    """What of the client's fields, and of what replaces them, goes upstream."""
    x = admitted(config, fields, cells, **policies)
    return [(name.decode(), value.decode("latin-1")) for name, value in upstream_request_headers(x) if name not in OURS]


def admitted(config: dict[str, Any], fields: Fields, cells: Cells | None = None, **policies: Any) -> Exchange:
    x = exchange(headers=fields)
    materials = {"k": f"keys: [{{id: a, hash: '{hash_key('key')}', created: x}}]".encode()}
    served = chain({"trim": config, **policies}, materials=materials, cells=cells)
    assert served.admit(x, 0.0) is None
    return x


def trimmed(config: dict[str, Any], fields: Fields, **policies: Any) -> float:
    cells = Cells()
    sent(config, fields, cells, **policies)
    return cells.counter(METRIC, "", {"route": "r"}).value


FIELDS: Fields = [
    ("Accept", "*/*"),
    ("X-B3-TraceId", "1"),
    ("b3", "0"),
    ("X_Datadog_Origin", "rum"),
    ("tracestate", "a=1"),
    ("X-Internal-User", "u"),
    ("X-Internal", "i"),
    ("Content-Type", "text/plain"),
    ("Cookie", "a=1"),
]


@pytest.mark.parametrize(
    ("config", "left"),
    [
        ({}, "Accept X-B3-TraceId b3 X_Datadog_Origin tracestate X-Internal-User X-Internal Content-Type Cookie"),
        ({"headers": {"drop": ["x-internal"]}}, "Accept X-B3-TraceId b3 X_Datadog_Origin tracestate X-Internal-User "
         "Content-Type Cookie"),
        ({"headers": {"drop": ["X_Internal*", "COOKIE"]}}, "Accept X-B3-TraceId b3 X_Datadog_Origin tracestate "
         "Content-Type"),
        ({"headers": {"tracing": ["b3", "datadog", "w3c"]}}, "Accept X-Internal-User X-Internal Content-Type Cookie"),
        ({"headers": {"allow": ["accept", "x-internal-*"]}}, "Accept X-Internal-User Content-Type"),
        ({"headers": {"allow": ["X-*"], "drop": ["x-internal*"], "tracing": ["b3"]}}, "X_Datadog_Origin Content-Type"),
        ({"headers": {"allow": []}}, "Content-Type"),
    ],
)  # fmt: skip
def test_which_fields_go_upstream(config: dict[str, Any], left: str) -> None:
    assert [name for name, _ in sent(config, FIELDS)] == left.split()


def test_what_the_proxy_adds_is_never_trimmed() -> None:
    x = admitted(
        {"headers": {"allow": [], "drop": ["x-forwarded-*", "x-set"]}},
        [("X-Request-Id", "mine"), ("X-Forwarded-For", "6.6.6.6"), ("X-Set", "0")],
        headers={"request": {"set": {"X-Set": "1"}}},
    )
    forwarded = dict(upstream_request_headers(x))
    assert set(forwarded) == {*OURS, b"X-Set"}
    assert (forwarded[b"X-Request-Id"], forwarded[b"X-Set"]) == (b"mine", b"1")
    assert forwarded[b"X-Forwarded-For"] == b"203.0.113.7"


@pytest.mark.parametrize(
    ("cookies", "lines", "left"),
    [
        ({"drop": ["b"]}, ["a=1; b=2; c=3"], ["a=1; c=3"]),
        ({"drop": ["a"]}, ['a=1; b=2;c="x y" ;  d'], ['b=2;c="x y" ;  d']),
        ({"drop": ["_ga*"]}, ["_ga=1; _ga_X=2; _g=3; __ga=4"], ["_g=3; __ga=4"]),
        ({"drop": ["B"]}, ["b=2"], ["b=2"]),
        ({"drop": ["b"]}, ["b=1; a=b; b=2; ab=3"], ["a=b; ab=3"]),
        ({"drop": ["b"]}, ["b=1"], []),
        ({"drop": ["b"]}, ["a=1", "b=2", "c=3; b=4"], ["a=1", "c=3"]),
        ({"drop": ["b"]}, ["a=\xe9=; ;b=2"], ["a=\xe9=; "]),
        ({"allow": ["session", "csrf*"]}, ["x=1; session=2; csrf_a=3; sessions=4; nameless"], ["session=2; csrf_a=3"]),
        ({"allow": ["s*"], "drop": ["secret"]}, ["s=1; secret=2"], ["s=1"]),
        ({"allow": []}, ["a=1"], []),
        ({"drop": ["z"]}, ["a=1;;b = 2 ; "], ["a=1;;b = 2 ; "]),
    ],
)
def test_which_cookies_go_upstream_and_the_others_stay_as_they_were(
    cookies: dict[str, Any], lines: list[str], left: list[str]
) -> None:
    kept = sent({"cookies": cookies}, [("Accept", "a"), *(("Cookie", line) for line in lines)])
    assert [value.strip() for name, value in kept if name == "Cookie"] == [line.strip() for line in left]
    before = sum(len(line) + 10 for line in lines)
    after = sum(len(line.strip()) + 10 for line in left)
    if lines != left:
        assert trimmed({"cookies": cookies}, [("Cookie", line) for line in lines]) == before - after


NAMES = st.sets(st.sampled_from(["a", "b", "ab", "a*", "_*", "a.b"]))


@given(st.lists(st.text('ab.= \t"_', max_size=6), max_size=8), NAMES, st.none() | NAMES)
def test_whatever_cookies_look_like_what_is_kept_stays_in_order(
    pairs: list[str], drop: set[str], allow: set[str] | None
) -> None:
    def goes(pair: str) -> bool:
        name = pair.partition("=")[0].strip(" \t")
        is_one_of = [
            any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in names)
            for names in (drop, allow or ())
        ]
        return is_one_of[0] or (allow is not None and not is_one_of[1])

    config = {"drop": sorted(drop), "allow": None if allow is None else sorted(allow)}
    kept = sent({"cookies": config}, [("Cookie", ";".join(pairs))])
    expected = ";".join(pair for pair in pairs if not goes(pair)).strip(" \t")
    assert [value.strip(" \t") for _, value in kept] in ([expected], [] if not expected else [expected])


def test_B01_cookies_that_connection_lists_do_not_come_back() -> None:
    fields: Fields = [("Cookie", "a=1; b=2"), ("Connection", "close, cookie")]
    assert sent({"cookies": {"drop": ["b"]}}, fields) == []


def test_a_cookie_that_the_operator_sets_stays() -> None:
    kept = sent(
        {"cookies": {"drop": ["b"]}}, [("Cookie", "a=1; b=2")], headers={"request": {"set": {"Cookie": "ours=1"}}}
    )
    assert kept == [("Cookie", "ours=1")]


def test_the_bytes_saved_are_counted() -> None:
    assert trimmed({"headers": {"drop": ["x-a"]}}, [("X-A", "12345"), ("x_a", "1"), ("X-B", "1")]) == 12 + 8
    # What is consumed here counts; what is of one hop, or replaced, does not.
    fields: Fields = [
        ("Authorization", "Bearer key"),
        ("X-API-Key", "key"),
        ("X-Request-Id", "mine"),
        ("Connection", "keep-alive"),
        ("Content-Length", "0"),
    ]
    assert trimmed({}, fields, auth={"keys": "k"}) == 27 + 16
    assert trimmed({"headers": {"allow": []}}, fields[2:]) == 0
    assert trimmed({}, fields) == 0


def test_names_are_remembered_within_bounds() -> None:
    served = chain({"trim": {"headers": {"drop": ["x-1*"]}}})
    for start in range(0, 5000, 100):
        fields: Fields = [(f"X-{number}", "v") for number in range(start, start + 100)]
        x = exchange(headers=[*fields, ("X-1" + "y" * 100, "v")])
        assert served.admit(x, 0.0) is None
        gone = {name.lower().encode() for name, _ in fields if name.startswith("X-1")}
        assert gone <= x.drop
    [policy] = [each for each in served.policies if type(each).__name__ == "Trim"]
    assert len(policy._judged) <= 2048  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"headers": {"drop": ["a b"]}}, "is not a header name"),
        ({"headers": {"drop": ["*"]}}, "is not a header name"),
        ({"headers": {"drop": ["Host"]}}, "never forwarded as the client sent it"),
        ({"headers": {"tracing": ["zipkin"]}}, "Input should be"),
        ({"cookies": {"drop": ["a*b"]}}, "is not the name of a cookie"),
        ({"cookies": {"drop": ["a=b"]}}, "is not the name of a cookie"),
        ({"headers": {"allow": ["accept"]}, "cookies": {"allow": ["a"]}}, "leaves out the field Cookie"),
    ],
)
def test_what_check_refuses(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        chain({"trim": config})
