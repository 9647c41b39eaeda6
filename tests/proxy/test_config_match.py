"""What routes take and do beyond host and path, judged together, each problem with its place."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from proxy.chain import Chain
from proxy.config_routes import Problem, cross_check, route_of
from tests.proxy.make import exchange, proxy_config

APP = {"app": {"servers": ["http://127.0.0.1:1"]}}


def problems(**tables: Any) -> list[Problem]:
    return cross_check(proxy_config(**tables))


@pytest.mark.parametrize(
    ("tables", "loc", "message"),
    [
        (
            {
                "routes": [
                    {"to": "app", "match": {"path": "/u/{id}", "headers": {"A": "1"}}},
                    {"to": "app", "match": {"path": "/u/{name}", "methods": ["GET"]}},
                ],
                "upstreams": APP,
            },
            ("routes", 1, "match"),
            "some requests fit this and routes[0], and neither asks for more; give one of them a `priority`",
        ),
        (
            {
                "routes": [
                    {"to": "app", "match": {"path": "/u/{id}"}},
                    {"to": "app", "match": {"path": "/u/{name}"}},
                ],
                "upstreams": APP,
            },
            ("routes", 1, "match"),
            "the same host and path as routes[0]; which one is meant?",
        ),
        (
            {
                "routes": [
                    {"to": "app", "match": {"headers": {"A": "1"}}},
                    {"to": "app", "match": {"headers": {"A": "2"}}},
                ],
                "upstreams": APP,
            },
            ("routes", 1, "name"),
            "'*/* A' is also the name of routes[0]; give one of them a `name`",
        ),
        (
            {"routes": [{"to": "app", "match": {"path": "/a/*"}, "rewrite": {"strip_prefix": "/b"}}], "upstreams": APP},
            ("routes", 0, "rewrite"),
            "strip_prefix: not every path of this route begins with /b; its path is /a/*",
        ),
        (
            {"routes": [{"redirect": {"to": "https://{host}/"}}]},
            ("routes", 0, "redirect"),
            "to: 'https://{host}/' leads wherever a request's Host says; set match.host, or write the host",
        ),
    ],
)
def test_a_problem_has_its_place(tables: dict[str, Any], loc: tuple[str | int, ...], message: str) -> None:
    assert problems(**tables) == [(loc, message)]


def test_routes_that_differ_by_a_condition_live_side_by_side() -> None:
    matches: list[dict[str, Any]] = [
        {"methods": ["GET"]},
        {"methods": ["POST", "PUT"]},
        {"methods": ["POST"], "headers": {"X-Version": "2"}},
        {"methods": ["POST"], "headers": {"X-Version": "3"}, "host": "a.example"},
        {"methods": ["GET"], "priority": 1},
        {},
    ]
    routes = [{"to": "app", "match": match} for match in matches[:4]]
    routes += [{"to": "app", "name": f"r{i}", "match": match} for i, match in enumerate(matches[4:])]
    assert problems(upstreams=APP, routes=routes) == []
    labels = [route.label for route in proxy_config(upstreams=APP, routes=routes).routes]
    assert labels == ["GET */*", "POST,PUT */*", "POST */* X-Version", "POST a.example/* X-Version", "r0", "r1"]


@pytest.mark.parametrize(
    "route",
    [
        {},
        {"to": "app", "respond": {}},
        {"to": "app", "redirect": {"to": "/x"}},
        {"redirect": {"to": "/x"}, "respond": {}},
        {"respond": {}, "rewrite": {"add_prefix": "/x"}},
    ],
)
def test_a_route_does_exactly_one_thing(route: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        proxy_config(upstreams=APP, routes=[route])


def test_a_route_as_requests_use_it_answers_or_rewrites() -> None:
    config = proxy_config(
        upstreams=APP,
        routes=[
            {"to": "app", "match": {"path": "/a/*", "priority": 3}, "rewrite": {"strip_prefix": "/a"}},
            {"redirect": {"to": "/x"}},
            {"respond": {"body": "hello"}, "match": {"path": "/b"}, "api": "openai"},
        ],
    )
    rewriting, redirecting, responding = (route_of(each, i, config, Chain([])) for i, each in enumerate(config.routes))
    assert (rewriting.upstream, rewriting.priority, rewriting.answer) == ("app", 3, None)
    x = exchange("/a/b")
    assert rewriting.rewrite is not None
    rewriting.rewrite(x)
    assert x.send_path == "/b"
    assert (redirecting.upstream, redirecting.rewrite, redirecting.api) == ("", None, "none")
    assert redirecting.answer is not None
    assert redirecting.answer(x).status == 308
    assert responding.answer is not None
    assert (responding.answer(x).body, responding.api) == (b"hello", "openai")


def test_every_table_reads_back() -> None:
    match = {"methods": ["GET"], "headers": {"A": "1", "B": {"present": False}}, "query": {"c": {"like": "x*"}}}
    query = {"set": {"k": "{id}"}, "remove": ["d"]}
    config = proxy_config(
        upstreams=APP,
        routes=[
            {"to": "app", "match": {**match, "host": "*.a.example", "path": "/u/{id}/{rest*}", "priority": -2}},
            {"to": "app", "match": {"path": "/u/{id}"}, "rewrite": {"path": "/{id}", "query": query}},
            {"to": "app", "match": {"path": "/b/*"}, "rewrite": {"strip_prefix": "/b", "add_prefix": "/c"}},
            {"redirect": {"to": "https://{host}{path}?{query}", "status": 303}, "match": {"host": "b.example"}},
            {"respond": {"status": 404, "body": "no", "content_type": "text/html", "headers": {"X": "y"}}},
        ],
    )
    assert cross_check(config) == []
    assert type(config).model_validate_json(config.model_dump_json()) == config
