"""Redirects and fixed responses: where they lead, and where nobody can make them lead."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.answers import Redirector, Responder
from proxy.config_match import Match, Redirect, Respond
from proxy.exchange import Reply
from proxy.paths import BadPath, normalise
from proxy.patterns import parse_pattern
from tests.proxy.make import exchange


def redirector(to: str, path: str = "/*", host: str | None = "a.example", **options: Any) -> Redirector:
    table = Redirect.model_validate_json(json.dumps({"to": to, **options}))
    return Redirector(table, Match.model_validate_json(json.dumps({"path": path, "host": host})))


def location(to: str, path: str, target: str, **facts: Any) -> str:
    raw, _, query = target.partition("?")
    match, send = normalise(raw)
    assert parse_pattern(path).matches(match)
    reply = redirector(to, path).answer(exchange(target, path=match, send_path=send, query=query, **facts))
    [(name, value)] = reply.headers
    assert name == b"Location"
    return value.decode("ascii")


@pytest.mark.parametrize(
    ("to", "path", "target", "expected"),
    [
        ("https://new.example/", "/*", "/x?y", "https://new.example/"),
        ("https://new.example{path}?{query}", "/*", "/x//%7e?y=%26", "https://new.example/x//%7e?y=%26"),
        ("https://new.example{path}?{query}", "/*", "/x", "https://new.example/x"),
        ("https://new.example{path}?{query}&from=old", "/*", "/x?y", "https://new.example/x?y&from=old"),
        ("https://new.example{path}?{query}&from=old", "/*", "/x", "https://new.example/x?from=old"),
        ("https://new.example{path}?from=old&{query}", "/*", "/x", "https://new.example/x?from=old"),
        ("https://new.example{path}?{query}#top", "/*", "/x", "https://new.example/x#top"),
        ("https://{host}:8443{path}", "/*", "/x", "https://a.example:8443/x"),
        ("https://www.{host}/x", "/*", "/", "https://www.a.example/x"),
        ("https://new.example?back={path}", "/*", "/x%26y&z", "https://new.example?back=/x%2526y%26z"),
        ("/login?next={path}&host={host}", "/*", "/a?b", "/login?next=/a&host=a.example"),
        ("/people/{id}", "/users/{id}", "/users/%7e7;v", "/people/%7e7;v"),
        ("/find?id={id}", "/users/{id}", "/users/a&b=%26", "/find?id=a%26b%3D%26"),
        ("/{rest*}", "/old/{rest*}", "/old//evil.example/x", "/evil.example/x"),
        ("{path}", "/*", "//evil.example/x", "/evil.example/x"),
        ("https://new.example/{rest}", "/old/{rest*}", "/old//evil.example/x", "https://new.example//evil.example/x"),
    ],
)
def test_where_it_leads(to: str, path: str, target: str, expected: str) -> None:
    assert location(to, path, target) == expected


def test_what_a_query_brings_stays_one_line_of_visible_ascii() -> None:
    x = exchange("/x", query="a=\u00e9\r\nSet-Cookie: x=1\\")
    [(_, value)] = redirector("https://new.example{path}?{query}").answer(x).headers
    assert value == b"https://new.example/x?a=%C3%A9%0D%0ASet-Cookie:%20x=1%5C"


def test_its_status_keeps_the_method_unless_it_is_said() -> None:
    assert redirector("/x").answer(exchange()).status == 308
    assert redirector("/x", status=302).answer(exchange()).status == 302


@pytest.mark.parametrize(
    ("to", "host", "message"),
    [
        ("https://{host}/x", None, "leads wherever a request's Host says; set match.host"),
        ("//new.example/x", "a.example", "write https://HOST/PATH or /PATH"),
        ("new.example/x", "a.example", "write https://HOST/PATH or /PATH"),
        ("javascript:alert(1)", "a.example", "write https://HOST/PATH or /PATH"),
        ("{query}", "a.example", "write https://HOST/PATH or /PATH"),
        ("https://{id}/x", "a.example", "must name its host"),
        ("https://new.example{id}", "a.example", "must name its host"),
        ("https://new.example{query}", "a.example", "must name its host"),
        ("https://me@new.example/", "a.example", "must name its host"),
        ("https:///x", "a.example", "must name its host"),
        ("https://{path}", "a.example", "must name its host"),
        ("https://new.example/\\x", "a.example", "is not a target"),
        ("https://new.example/a b", "a.example", "is not a target"),
        ("https://new.example/\r\nX: y", "a.example", "is not a target"),
        ("https://new.example{path}{query}", "a.example", "stands behind a question mark"),
        ("/x/{user}", "a.example", "names {user}, which is not there; known: {host}, {id}, {path}, {query}"),
        ("/x/{id", "a.example", "brace"),
    ],
)
def test_what_could_lead_anywhere_is_refused_at_check(to: str, host: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        redirector(to, "/u/{id}", host)


TARGETS = st.text(st.sampled_from("/.%2ef5C;@:?&ae\\"), max_size=14).map(lambda text: "/" + text)


@given(
    TARGETS,
    st.sampled_from(
        [
            ("/*", "{path}"),
            ("/{rest*}", "/{rest}"),
            ("/{id}", "/{id}"),
            ("/e{id}", "/{id}?{query}"),
            ("/*", "https://a.example{path}?{query}"),
        ]
    ),
)
def test_no_request_leads_a_redirect_to_another_host(target: str, rule: tuple[str, str]) -> None:
    path, to = rule
    raw, _, query = target.partition("?")
    try:
        match, send = normalise(raw)
    except BadPath:
        return
    assume(parse_pattern(path).matches(match))
    [(_, value)] = redirector(to, path).answer(exchange(target, path=match, send_path=send, query=query)).headers
    led = urlsplit(urljoin("https://a.example/start", value.decode("ascii")))
    assert (led.scheme, led.netloc) == ("https", "a.example")
    assert b"\\" not in value


def test_a_fixed_response() -> None:
    table = {"body": "caf\u00e9\n", "headers": {"Cache-Control": "no-store"}}
    reply = Responder(Respond.model_validate_json(json.dumps(table))).answer(exchange())
    fields = ((b"Content-Type", b"text/plain; charset=utf-8"), (b"Cache-Control", b"no-store"))
    assert reply == Reply(200, fields, "caf\u00e9\n".encode())
    assert Responder(Respond.model_validate_json('{"status": 410}')).answer(exchange()) == Reply(410)


@pytest.mark.parametrize(
    "table",
    [
        {"status": 101},
        {"status": 600},
        {"status": "200"},
        {"status": 204, "body": "x"},
        {"body": "x" * 65537},
        {"content_type": "a\nb"},
        {"headers": {"A B": "1"}},
        {"headers": {"A": "1\r\nB: 2"}},
        {"headers": {"Content-Length": "1"}},
        {"headers": {"Transfer-Encoding": "chunked"}},
    ],
)
def test_a_response_that_makes_no_sense_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Respond.model_validate_json(json.dumps(table))
