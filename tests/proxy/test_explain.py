"""What `headrace route explain` tells: the same gate, router and rewrite as serve, and the rule behind each answer."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.config_routes import ProxyConfig, cross_check
from proxy.explain import Asked, explain
from proxy.policy import POLICIES
from tests.proxy.make import proxy_config

LISTENERS = [
    {"address": "0.0.0.0:443", "tls": {"certificates": [{"cert": "a.pem", "key": "a.key"}]}},
    {"address": "0.0.0.0:80", "redirect": "https"},
    {"address": "127.0.0.1:8080", "trusted_proxies": ["10.0.0.0/8"]},
    {"address": "unix:/run/x.sock"},
]
TABLES: dict[str, Any] = {
    "listeners": LISTENERS,
    "upstreams": {
        "app": {"servers": ["http://10.0.0.5:8080"], "timeouts": {"first_byte": "5s"}, "retry": {"attempts": 3}},
        "other": {"servers": ["http://10.0.0.6:8080"]},
    },
    "limits": {"few": {"requests": "5/s"}},
    "routes": [
        {
            "name": "api",
            "to": "app",
            "match": {"host": "a.example", "path": "/api/*"},
            "rewrite": {"strip_prefix": "/api", "query": {"set": {"from": "edge"}}},
            "policies": {"rate_limit": ["few"], "size_limit": {"body": "1MiB"}},
        },
        {"name": "b", "to": "other", "match": {"host": "b.example"}, "timeouts": {"connect": "1s"}},
        {"name": "user", "to": "other", "match": {"path": "/api/{id}", "priority": -1}},
        {"name": "any", "to": "other", "match": {"path": "/api/*", "methods": ["GET"]}},
        {"name": "moved", "redirect": {"to": "/new?{query}"}, "match": {"path": "/old"}},
        {"name": "put", "respond": {"status": 204}, "match": {"path": "/p", "methods": ["PUT"]}},
        {"name": "engine", "to": "engine", "match": {"path": "/v1/*"}},
    ],
    "engine_socket": "engine.sock",
}


@pytest.fixture(scope="module")
def config() -> ProxyConfig:
    made = proxy_config(**TABLES)
    assert cross_check(made) == []
    return made


def test_which_route_and_why_and_what_is_sent(config: ProxyConfig) -> None:
    told = explain(config, Asked("GET", "https://a.example//%61pi//x?y=%7e", client="203.0.113.9"))
    assert (told["outcome"], told["listener"], told["client"]) == ("forward", "0.0.0.0:443", "203.0.113.9")
    assert (told["host"], told["path"], told["query"]) == ("a.example", "/api/x", "y=%7e")
    assert told["route"]["name"] == "api"
    assert told["route"]["why"] == ["host a.example fits a.example", "path /api/x fits /api/*"]
    assert told["sent"] == {"request_line": "GET /x?y=%7e&from=edge HTTP/1.1", "host": "a.example"}
    assert {each["name"]: each["why_not"] for each in told["routes"]} == {
        "api": None,
        "b": "the host is not b.example",
        "user": "it fits, but routes[0] has the higher priority",
        "any": "it fits, but routes[0] says more of the host",
        "moved": "the path does not fit /old",
        "put": "the path does not fit /p",
        "engine": "the path does not fit /v1/*",
    }


def test_the_rule_that_put_one_before_the_other() -> None:
    routes = [
        {"name": name, "to": "app", "match": match}
        for name, match in {
            "path": {"path": "/x/*"},
            "plain": {"path": "/x/{id}"},
            "best": {"path": "/x/{id}", "headers": {"X-Key": "s3cret"}, "query": {"v": "2"}},
            "host": {"host": "*.example", "path": "/x/{id}", "methods": ["POST"]},
        }.items()
    ]
    told = explain(
        proxy_config(upstreams=TABLES["upstreams"], routes=routes),
        Asked("GET", "http://a.example:8080/x/7?v=2", (("x-key", "s3cret"),)),
    )
    assert [each["why_not"] for each in told["routes"]] == [
        "it fits, but routes[2] says more of the path",
        "it fits, but routes[2] has more conditions",
        None,
        "the method is not POST",
    ]
    assert told["route"]["why"] == [
        "host a.example fits any",
        "path /x/7 fits /x/{id}, {id} is '7'",
        "header x-key is '***'",
        "query parameter v is '2'",
    ]


def test_policies_in_the_order_in_which_they_are_asked(config: ProxyConfig) -> None:
    policies = explain(config, Asked("GET", "https://a.example/api"))["policies"]
    names = [module.NAME for module in POLICIES]
    told = [each["name"] for each in policies]
    assert told == sorted(told, key=names.index)
    assert {"access_log", "rate_limit", "size_limit"} <= set(told)
    settings = {each["name"]: each["settings"] for each in policies}
    assert settings["size_limit"] == {"body": "1MiB"}
    assert settings["rate_limit"]["few"]["requests"] == "5/s"


def test_the_upstream_as_the_route_has_it(config: ProxyConfig) -> None:
    upstream = explain(config, Asked("GET", "https://a.example/api"))["upstream"]
    assert (upstream["name"], upstream["servers"]) == ("app", ["http://10.0.0.5:8080"])
    assert (upstream["timeouts"]["first_byte"], upstream["retry"]["attempts"]) == ("5s", 3)
    other = explain(config, Asked("GET", "https://b.example/"))["upstream"]
    assert (other["timeouts"]["connect"], other["retry"]["attempts"]) == ("1s", 2)
    engine = explain(config, Asked("POST", "https://c.example/v1/x"))["upstream"]
    assert (engine["name"], engine["timeouts"]["first_byte"]) == ("engine", "10m")


@pytest.mark.parametrize(
    ("method", "url", "headers", "expected"),
    [
        ("GET", "http://a.example/api", (), {"outcome": "redirect", "status": 308, "listener": "0.0.0.0:80"}),
        ("GET", "http://c.example:8080/none", (), {"outcome": "no_route", "status": 404, "allow": []}),
        ("GET", "http://c.example:8080/p", (), {"outcome": "no_route", "status": 405, "allow": ["PUT"]}),
        (
            "PUT",
            "http://c.example:8080/p",
            (),
            {"outcome": "answer", "status": 204, "headers": [], "body_bytes": 0},
        ),
        (
            "GET",
            "http://c.example:8080/old?a",
            (),
            {"outcome": "answer", "status": 308, "headers": [["Location", "/new?a"]], "body_bytes": 0},
        ),
        ("GET", "/old", (("Host", "c.example"),), {"outcome": "answer", "listener": "0.0.0.0:443"}),
        ("GET", "http://c.example:8080", (), {"outcome": "no_route", "path": "/"}),
        ("GET", "http://c.example:99/old", (), {"outcome": "answer", "listener": None}),
        ("GET", "https://x.example/api/1", (("Host", "b.example"),), {"host": "b.example"}),
    ],
)
def test_other_ends(
    config: ProxyConfig, method: str, url: str, headers: tuple[tuple[str, str], ...], expected: dict[str, Any]
) -> None:
    told = explain(config, Asked(method, url, headers))
    assert {key: told[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("method", "url", "headers", "status"),
    [
        ("GET", "http://a.example:8080/public/..%2fadmin", (), 400),
        ("GET", "http://a.example:8080/public/..;/admin", (), 400),
        ("GET", "http://a.example:8080/public#/../admin", (), 400),
        ("GET", "http://a.example:8080/a b", (), 400),
        ("GET", "http://a.example:8080/\u043f\u0443\u0442\u044c", (), 400),
        ("GET", "/x", (), 400),
        ("GET", "http://a.example:8080/x", (("Host", "a"), ("Host", "b")), 400),
        ("GET", "http://a.example:8080/x", (("X", "y" * 70000),), 431),
        ("get", "http://a.example:8080/x", (), 405),
        ("TRACE", "http://a.example:8080/x", (), 405),
    ],
)
def test_B11_what_the_edge_refuses_is_refused(
    config: ProxyConfig, method: str, url: str, headers: tuple[tuple[str, str], ...], status: int
) -> None:
    told = explain(config, Asked(method, url, headers))
    assert (told["outcome"], told["status"]) == ("refused", status)
    assert "route" not in told


def test_the_client_is_found_behind_the_listeners_trusted_proxies(config: ProxyConfig) -> None:
    headers = (("X-Forwarded-For", "198.51.100.7"),)
    assert explain(config, Asked("GET", "http://c:8080/old", headers, "10.0.0.1"))["client"] == "198.51.100.7"
    assert explain(config, Asked("GET", "http://c:8080/old", headers, "192.0.2.1"))["client"] == "192.0.2.1"


def test_why_not_a_listener(config: ProxyConfig) -> None:
    told = explain(config, Asked("GET", "http://c.example:443/old"))
    assert [each["why_not"] for each in told["listeners"]] == [
        "it speaks https, not http",
        "its port is 80, not 443",
        "its port is 8080, not 443",
        "it is a unix socket, which has no URL",
    ]
    assert explain(config, Asked("GET", "https://[::1]/old"))["listener"] == "0.0.0.0:443"
