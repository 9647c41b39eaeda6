"""Problems between tables, each with its place; and which policies need one count for the box."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.config_routes import Problem, ProxyConfig, api_of, cross_check
from proxy.policy import POLICIES
from tests.proxy.make import proxy_config

APP = {"app": {"servers": ["http://127.0.0.1:1"]}, "vllm": {"servers": ["http://127.0.0.1:2"], "kind": "openai"}}
PER_KEY = {"per-key": {"key": "api_key", "requests": "600/min"}, "per-client": {"requests": "5/s"}}


def problems(**tables: Any) -> list[Problem]:
    return cross_check(proxy_config(**tables))


def test_a_configuration_with_every_table_holds_together_and_reads_back() -> None:
    text = (Path(__file__).parents[1] / "vectors/proxy/config.json").read_text()
    config = ProxyConfig.model_validate_json(text)
    assert cross_check(config) == []
    assert ProxyConfig.model_validate_json(config.model_dump_json()) == config
    policies = json.loads(text)["routes"][0]["policies"]
    assert list(policies) == [module.NAME for module in POLICIES]  # a new policy is added to the example


@pytest.mark.parametrize(
    ("tables", "loc", "message"),
    [
        (
            {"routes": [{"to": "ap"}], "upstreams": APP},
            ("routes", 0, "to"),
            "there is no upstream named 'ap'; did you mean 'app'?",
        ),
        ({"routes": [{"to": "zzz"}]}, ("routes", 0, "to"), "there is no upstream named 'zzz'; known: engine"),
        ({"routes": [{"to": "engine"}]}, ("routes", 0, "to"), "there is no engine: no models are configured"),
        (
            {"routes": [{"to": "app", "policies": {"rate_limit": ["per-clint"]}}], "upstreams": APP, "limits": PER_KEY},
            ("routes", 0, "policies", "rate_limit", 0),
            "there is no limit named 'per-clint'; did you mean 'per-client'?",
        ),
        (
            {"routes": [{"to": "app", "policies": {"rate_limit": ["per-key"]}}], "upstreams": APP, "limits": PER_KEY},
            ("routes", 0, "policies", "rate_limit", 0),
            "the limit 'per-key' counts per api_key, but this route has neither auth nor basic_auth",
        ),
        (
            {"routes": [{"to": "app", "policies": {"in_flight": {"max": 1, "key": "api_key"}}}], "upstreams": APP},
            ("routes", 0, "policies", "in_flight", "key"),
            "counts per api_key, but this route has neither auth nor basic_auth",
        ),
        (
            {"listeners": [{"address": "127.0.0.1:80"}, {"address": "127.0.0.1:80"}]},
            ("listeners", 1, "address"),
            "127.0.0.1:80 is also the address of listeners[0]",
        ),
        (
            {"routes": [{"to": "app"}, {"to": "vllm", "match": {"path": "/*"}}], "upstreams": APP},
            ("routes", 1, "match"),
            "the same host and path as routes[0]; which one is meant?",
        ),
        (
            {
                "routes": [
                    {"to": "app", "match": {"host": "A.example"}},
                    {"to": "app", "match": {"host": "a.example"}},
                ],
                "upstreams": APP,
            },
            ("routes", 1, "match"),
            "the same host and path as routes[0]; which one is meant?",
        ),
        (
            {
                "routes": [{"to": "app", "name": "x"}, {"to": "app", "name": "x", "match": {"path": "/y"}}],
                "upstreams": APP,
            },
            ("routes", 1, "name"),
            "'x' is also the name of routes[0]",
        ),
        (
            {"upstreams": {"engine": {"servers": ["http://a"]}}},
            ("upstreams", "engine"),
            "the name engine means the local engine; choose another",
        ),
        (
            {"upstreams": {"a": {"servers": ["http://a", "http://a/"]}}},
            ("upstreams", "a", "servers"),
            "http://a is listed twice",
        ),
        (
            {"upstreams": {"a": {"servers": ["http://a"], "breaker": {"open": "10m"}}}},
            ("upstreams", "a", "breaker", "max_open"),
            "is shorter than open; it bounds the doubling of open",
        ),
        (
            {
                "listeners": [
                    {
                        "address": "127.0.0.1:443",
                        "tls": {"certificates": [{"cert": "c", "key": "k"}]},
                        "redirect": "https",
                    }
                ]
            },
            ("listeners", 0, "redirect"),
            "a listener with tls is https already; remove redirect or tls",
        ),
    ],
)
def test_a_problem_has_its_place(tables: dict[str, Any], loc: tuple[str | int, ...], message: str) -> None:
    assert problems(**tables) == [(loc, message)]


def test_every_problem_is_told_at_once() -> None:
    assert len(problems(routes=[{"to": "a"}, {"to": "b"}, {"to": "c", "match": {"path": "/x"}}])) == 4


@pytest.mark.parametrize(
    "policies",
    [
        {"rate_limits": ["a"]},
        {"rate_limit": []},
        {"rate_limit": "per-key"},
        {"in_flight": {"max": 0}},
        {"access": {"allow": ["10.0.0.1/8"]}},
        {"access": {"deny": ["::ffff:10.0.0.0/104"]}},
        {"headers": {"request": {"set": {"X A": "1"}}}},
        {"headers": {"request": {"set": {"X-A": "a\r\nX-B: b"}}}},
        {"headers": {"response": {"set": {"Transfer-Encoding": "chunked"}}}},
        {"headers": {"request": {"remove": ["Host"]}}},
        {"size_limit": {"body": 100}},
        {"auth": {}},
    ],
)
def test_a_policy_table_that_makes_no_sense_is_refused(policies: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        proxy_config(routes=[{"to": "app", "policies": policies}])


def test_the_shape_of_errors_follows_the_target_unless_it_is_said() -> None:
    config = proxy_config(
        upstreams=APP,
        routes=[
            {"to": "engine"},
            {"to": "vllm", "match": {"path": "/a"}},
            {"to": "app", "match": {"path": "/b"}},
            {"to": "engine", "api": "oip", "match": {"path": "/v2/*"}},
            {"to": "vllm", "api": "none", "match": {"path": "/c"}},
        ],
    )
    assert [api_of(route, config.upstreams) for route in config.routes] == ["engine", "openai", "none", "oip", "none"]


def test_streams_and_websockets_are_looked_after_where_a_route_says_so() -> None:
    plain, quiet = proxy_config(
        upstreams=APP, routes=[{"to": "app"}, {"to": "app", "match": {"path": "/x"}, "ping": "15s", "websocket": {}}]
    ).routes
    assert (plain.ping, plain.websocket) == (None, None)
    assert quiet.websocket is not None
    assert (quiet.ping, quiet.websocket.idle) == (15.0, 600.0)


@pytest.mark.parametrize(
    "route",
    [
        {"to": "app", "ping": "0s"},
        {"to": "app", "ping": True},
        {"to": "app", "websocket": {"idle": "0s"}},
        {"to": "app", "websocket": True},
        {"to": "app", "websocket": {"max_message": "1MiB"}},
        {"respond": {}, "websocket": {}},
        {"redirect": {"to": "/"}, "ping": "15s"},
    ],
)
def test_a_ping_or_websocket_that_makes_no_sense_is_refused(route: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        proxy_config(routes=[route])
