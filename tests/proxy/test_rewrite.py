"""What an upstream receives instead of the client's target; and what must hold of it for every path."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.config_match import Rewrite
from proxy.paths import BadPath, normalise
from proxy.patterns import parse_pattern
from proxy.rewrite import Rewriter
from tests.proxy.make import exchange


def sent(rewrite: dict[str, Any], path: str, target: str) -> str:
    """The target that goes upstream."""
    raw, mark, _ = target.partition("?")
    match, send = normalise(raw, encoded_slash=True)
    assert parse_pattern(path).matches(match)
    x = exchange(target, path=match, send_path=send)
    Rewriter(Rewrite.model_validate_json(json.dumps(rewrite)), path).apply(x)
    assert x.path == match  # what policies see stays what was matched
    return f"{x.send_path}?{x.query}" if x.query or mark else x.send_path


@pytest.mark.parametrize(
    ("rewrite", "path", "target", "expected"),
    [
        ({"strip_prefix": "/api"}, "/api/*", "/api/x?y=1", "/x?y=1"),
        ({"strip_prefix": "/api"}, "/api/*", "/api", "/"),
        ({"strip_prefix": "/api"}, "/api/*", "/api/", "/"),
        ({"strip_prefix": "/api"}, "/api/v1", "/api/v1", "/v1"),
        ({"strip_prefix": "/a/b"}, "/a/b/*", "/a/b/c/d/", "/c/d/"),
        ({"strip_prefix": "/api"}, "/api/*", "/%61p%69/x%2520y/%7e", "/x%2520y/%7e"),
        ({"strip_prefix": "/api"}, "/api/*", "//api/x", "/x"),
        ({"strip_prefix": "/a/b"}, "/a/b/*", "//a//%62//c//d", "/c//d"),
        ({"strip_prefix": "/api"}, "/api/*", "/api//evil.example/x", "/evil.example/x"),
        ({"strip_prefix": "/api"}, "/api/*", "/api////", "/"),
        ({"strip_prefix": "/caf%C3%A9"}, "/caf%C3%A9/*", "/caf%c3%a9/x", "/x"),
        ({"add_prefix": "/v2"}, "/*", "/x//y/", "/v2/x//y/"),
        ({"add_prefix": "/v2"}, "/*", "//x", "/v2//x"),
        ({"add_prefix": "/v2"}, "/*", "/", "/v2/"),
        ({"strip_prefix": "/api", "add_prefix": "/v2"}, "/api/*", "/api/x", "/v2/x"),
        ({"strip_prefix": "/api", "add_prefix": "/v2"}, "/api/*", "/api", "/v2"),
        ({"strip_prefix": "/api", "add_prefix": "/v2"}, "/api/*", "/api//x", "/v2//x"),
        ({"path": "/fixed"}, "/*", "/any/thing?q", "/fixed?q"),
        ({"path": "/posts/of/{id}"}, "/users/{id}/posts", "/users//%7e7;v=1/posts", "/posts/of/%7e7;v=1"),
        ({"path": "/u-{id}.html"}, "/u/{id}", "/u/7", "/u-7.html"),
        ({"path": "/new/{rest*}"}, "/old/{rest*}", "/old/a//b/?x", "/new/a//b/?x"),
        ({"path": "/new/{rest}"}, "/old/{rest*}", "/old", "/new/"),
        ({"path": "/{rest}"}, "/old/{rest*}", "/old//evil.example", "/evil.example"),
        ({"path": "/{b}/{a}/{rest}"}, "/{a}/{b}/{rest*}", "/1/2/3/4", "/2/1/3/4"),
        ({"query": {"set": {"k": "v"}}}, "/*", "/x", "/x?k=v"),
        ({"query": {"set": {"k": "a b&c=d+%"}}}, "/*", "/x?a=%7e&&b", "/x?a=%7e&&b&k=a%20b%26c%3Dd%2B%25"),
        ({"query": {"set": {"k": "v"}}}, "/*", "/x?k=1&a=2&%6b=3", "/x?a=2&k=v"),
        ({"query": {"remove": ["k"]}}, "/*", "/x?a&k&K", "/x?a&K"),
        ({"query": {"remove": ["k"]}}, "/*", "/x?k=1", "/x?"),
        ({"query": {"remove": ["k"]}}, "/*", "/x", "/x"),
        ({"query": {"set": {"id": "u-{id}"}}}, "/u/{id}", "/u/a&b=c%26d", "/u/a&b=c%26d?id=u-a%26b%3Dc%26d"),
        ({"path": "/u", "query": {"set": {"id": "{id}"}}}, "/u/{id}", "/u/%C3%A9", "/u?id=%C3%A9"),
    ],
)
def test_B10_what_is_sent(rewrite: dict[str, Any], path: str, target: str, expected: str) -> None:
    assert sent(rewrite, path, target) == expected


@pytest.mark.parametrize(
    ("rewrite", "path", "message"),
    [
        ({"strip_prefix": "/b"}, "/a/*", "not every path of this route begins with /b; its path is /a/*"),
        ({"strip_prefix": "/a/b"}, "/a/*", "not every path of this route begins with /a/b"),
        ({"strip_prefix": "/a"}, "/{x}/*", "not every path of this route begins with /a"),
        ({"strip_prefix": "/a"}, "/ab/*", "not every path of this route begins with /a"),
        ({"path": "x"}, "/*", "does not begin with a slash"),
        ({"path": "/a/../b"}, "/*", "without dot segments"),
        ({"path": "//a"}, "/*", "without dot segments, //"),
        ({"path": "/a?b"}, "/*", "cannot be sent"),
        ({"path": "/a#b"}, "/*", "cannot be sent"),
        ({"path": "/a b"}, "/*", "cannot be sent"),
        ({"path": "/%2F"}, "/*", "cannot be sent"),
        ({"path": "/..;{x}"}, "/{x}", "cannot be sent"),
        ({"path": "/{id}"}, "/*", "names {id}, which is not there; known: none"),
        ({"path": "/{host}"}, "/{id}", "names {host}, which is not there; known: {id}"),
        ({"path": "/{id"}, "/{id}", "brace"),
        ({"path": "/{rest}/x"}, "/{rest*}", "must be the last one"),
        ({"path": "/x{rest}"}, "/{rest*}", "must be the last one"),
        ({"path": "/{id}{rest}"}, "/{id}/{rest*}", "must be the last one"),
        ({"query": {"set": {"a": "{id}"}}}, "/*", "names {id}, which is not there"),
    ],
)
def test_what_does_not_fit_is_refused_at_check(rewrite: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Rewriter(Rewrite.model_validate_json(json.dumps(rewrite)), path)


@pytest.mark.parametrize(
    "rewrite",
    [
        {},
        {"path": "/x", "add_prefix": "/y"},
        {"strip_prefix": "/"},
        {"strip_prefix": "/a/"},
        {"strip_prefix": "/a/*"},
        {"strip_prefix": "/{a}"},
        {"add_prefix": "a"},
        {"add_prefix": "//a"},
        {"add_prefix": "/a/.."},
        {"add_prefix": "/a?b"},
        {"query": {"set": {"a": 1}}},
    ],
)
def test_a_table_that_makes_no_sense_is_refused(rewrite: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Rewrite.model_validate_json(json.dumps(rewrite))


PIECES = ["%2f", "a", "b", "..", ".", "%2e", "%61", "%41", "%25", ";", "", "...", "~", "%2A", "%2", "A"]
SEGMENTS = st.lists(st.sampled_from(PIECES), max_size=3).map("".join)
RULES: list[tuple[dict[str, Any], str]] = [
    ({"strip_prefix": "/a"}, "/a/*"),
    ({"strip_prefix": "/a/b"}, "/a/b/*"),
    ({"add_prefix": "/v"}, "/*"),
    ({"strip_prefix": "/a", "add_prefix": "/v"}, "/a/*"),
    ({"path": "/{x}"}, "/a{x}"),
    ({"path": "/.{x}"}, "/a{x}/*"),
    ({"path": "/{x}{y}"}, "/a{x}/{y}A"),
    ({"path": "/.{y}.{x}/{rest}"}, "/{x}/{y}/{rest*}"),
    ({"path": "/{rest}"}, "/a/{rest*}"),
]


@given(st.lists(SEGMENTS, max_size=5), st.booleans(), st.sampled_from(RULES))
def test_B11_a_rewrite_makes_no_dot_segment_no_authority_and_no_bytes_of_its_own(
    segments: list[str], below_a: bool, rule: tuple[dict[str, Any], str]
) -> None:
    rewrite, path = rule
    raw = "/" + "/".join(["a", *segments] if below_a else segments)
    try:
        match, send = normalise(raw, encoded_slash=True)
    except BadPath:
        return
    assume(parse_pattern(path).matches(match))
    out = sent(rewrite, path, raw)
    again, same = normalise(out, encoded_slash=True)
    assert same == out  # nothing an upstream would resolve, and no half escape
    assert not out.startswith("//") or not send.startswith(out)
    assert out[:2] != "//"
    if "strip_prefix" in rewrite or "add_prefix" in rewrite:
        added, taken = rewrite.get("add_prefix", ""), rewrite.get("strip_prefix", "")
        assert again == (added + match[len(taken) :] or "/")  # what was matched, less the one and with the other
        assert send.endswith(out[len(added) :].lstrip("/"))
