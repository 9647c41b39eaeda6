"""How limits are written, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.config import Limit
from proxy.config_routes import cross_check
from tests.proxy.make import proxy_config


def limit(**table: Any) -> Limit:
    return Limit.model_validate_json(json.dumps(table))


@pytest.mark.parametrize(
    ("key", "kinds"),
    [
        ("client/24", ("client/24",)),
        ("client/0/128", ("client/0/128",)),
        ("header:X-Tenant", ("header:X-Tenant",)),
        (["api_key", "model"], ("api_key", "model")),
    ],
)
def test_keys_as_they_are_written(key: str | list[str], kinds: tuple[str, ...]) -> None:
    made = limit(key=key, requests="1/s")
    assert made.kinds == kinds
    assert Limit.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize("key", ["clients", "client/33", "client/24/129", "header:", "header:a b", "", ["user"], []])
def test_a_key_that_is_none_is_refused(key: str | list[str]) -> None:
    with pytest.raises(ValidationError):
        limit(key=key, requests="1/s")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({}, "say how many"),
        ({"requests": "5/s", "algorithm": "sliding", "burst": 2}, "a sliding window has no burst"),
        ({"tokens": "1073741824/s", "algorithm": "sliding"}, "counts to 1073741823 at most"),
    ],
)
def test_tables_that_make_no_sense(table: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        limit(**table)


def test_who_must_be_known_for_a_key() -> None:
    config = proxy_config(
        upstreams={"app": {"servers": ["http://192.0.2.1"]}},
        limits={"a": {"key": ["tenant", "api_key"], "requests": "1/s"}},
        routes=[
            {"match": {"path": "/1"}, "to": "app", "policies": {"rate_limit": ["a"]}},
            {"match": {"path": "/2"}, "to": "app", "policies": {"rate_limit": ["a"], "basic_auth": {"users": "f"}}},
            {"match": {"path": "/3"}, "to": "app", "policies": {"rate_limit": ["a"], "auth": {"keys": "f"}}},
        ],
    )
    assert [(loc[1], message) for loc, message in cross_check(config)] == [
        (0, "the limit 'a' counts per api_key, but this route has neither auth nor basic_auth"),
        (0, "the limit 'a' counts per tenant, but this route has no auth"),
        (1, "the limit 'a' counts per tenant, but this route has no auth"),
    ]
