"""The ``upstreams:`` tables: what they take, and what they say of what they do not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.config import HashBalance, HashOf, Upstream
from proxy.config_routes import cross_check
from tests.proxy.make import proxy_config


def upstream(**keys: Any) -> Upstream:
    return Upstream.model_validate_json(json.dumps({"servers": ["http://a:1"], **keys}))


def problem(**keys: Any) -> str:
    """Place and text of the one problem."""
    with pytest.raises(ValidationError) as found:
        upstream(**keys)
    errors = [error for error in found.value.errors() if error["type"] != "too_short"]
    assert len(errors) == 1, errors
    place = ".".join(str(part) for part in errors[0]["loc"] if part not in ("text", "table"))
    return f"{place}: {errors[0]['msg'].removeprefix('Value error, ')}"


def test_a_server_is_a_url_or_a_table_with_a_weight() -> None:
    servers = upstream(servers=["http://a:1/", {"url": "unix:/run/b.sock", "weight": 3}]).servers
    assert [(server.url, server.weight) for server in servers] == [("http://a:1", 1), ("unix:/run/b.sock", 3)]


@pytest.mark.parametrize(
    ("balance", "parsed"),
    [
        ("least_requests", "least_requests"),
        ("round_robin", "round_robin"),
        ({"hash": "client"}, HashBalance(hash="client")),
        ({"hash": "path"}, HashBalance(hash="path")),
        ({"hash": {"header": "X-User"}}, HashBalance(hash=HashOf(header="X-User"))),
        ({"hash": {"cookie": "sid"}}, HashBalance(hash=HashOf(cookie="sid"))),
    ],
)
def test_balance(balance: object, parsed: object) -> None:
    assert upstream(balance=balance).balance == parsed


def test_what_was_read_is_spelt_as_it_was_written() -> None:
    keys = {
        "servers": ["http://a:1", {"url": "http://b:2", "weight": 0}],
        "balance": {"hash": {"header": None, "cookie": "sid"}},
        "health": {"path": "/healthz", "status": ["200", "300-399"]},
        "dns": {"ttl": "5s"},
    }
    read = upstream(**keys)
    spelt = json.loads(read.model_dump_json())
    assert (spelt["servers"], spelt["balance"]) == (keys["servers"], keys["balance"])
    assert spelt["health"]["status"] == ["200", "300-399"]
    assert spelt["dns"] == {"ttl": "5s"}
    assert Upstream.model_validate_json(json.dumps(spelt)) == read


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"servers": ["a:1"]}, "servers.0: 'a:1' is not a server; write http://HOST:PORT"),
        ({"servers": [{"weight": 2}]}, "servers.0.url: Field required"),
        ({"servers": [{"url": "http://a:1", "weight": 1001}]}, "servers.0.weight: Input should be less than or equal"),
        ({"servers": [{"url": "http://a:1", "wight": 1}]}, "servers.0.wight: Extra inputs are not permitted"),
        ({"servers": [7]}, "servers.0: Input should be"),
        ({"balance": "random"}, "balance: Input should be 'least_requests' or 'round_robin'"),
        ({"balance": {"hash": "cookie"}}, "balance.hash: Input should be 'client' or 'path'"),
        ({"balance": {"hash": {}}}, "balance.hash: name one of header and cookie"),
        ({"balance": {"hash": {"header": "a", "cookie": "b"}}}, "balance.hash: name one of header and cookie"),
        ({"balance": {"hash": {"header": "a b"}}}, "balance.hash.header: String should match"),
        ({"max_connections": 0}, "max_connections: Input should be greater than or equal to 1"),
        ({"pending": -1}, "pending: Input should be greater than or equal to 0"),
        ({"pending_timeout": 5}, "pending_timeout: 5 is not understood; write a number with a unit"),
        ({"dns": {"ttl": "0s"}}, "dns.ttl: Input should be greater than 0"),
        ({"health": {"interval": "0s"}}, "health.interval: Input should be greater than 0"),
        ({"health": {"rise": 0}}, "health.rise: Input should be greater than or equal to 1"),
        ({"health": {"host": "a\r\nb"}}, "health.host: String should match"),
        ({"health": {"status": ["2xx"]}}, "health.status.0: '2xx' is not a status; write one like 200, or a range"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(keys: dict[str, Any], text: str) -> None:
    assert problem(**keys).startswith(text)


def test_weights_that_leave_nobody_are_a_problem() -> None:
    table = {"servers": [{"url": "http://a:1", "weight": 0}, {"url": "http://b:1", "weight": 0}]}
    assert cross_check(proxy_config(upstreams={"app": table})) == [
        (("upstreams", "app", "servers"), "every weight is 0, so that none takes a request; give one a weight")
    ]


def test_a_server_listed_twice_is_one_too_many_however_it_is_written() -> None:
    table = {"servers": ["http://a:1", {"url": "http://a:1/", "weight": 2}]}
    assert [text for _, text in cross_check(proxy_config(upstreams={"app": table}))] == ["http://a:1 is listed twice"]
