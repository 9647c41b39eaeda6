"""How a refusal looks: one shape per api, by Accept only where no api says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.chain import Chain
from proxy.config_routes import route_of
from proxy.errors import Kind, preferred, refuse, retry_after
from proxy.exchange import Reply
from tests.proxy.make import exchange, proxy_config

NASTY = 'a <script>alert("x")</script> & b'


def header(reply: Reply, name: bytes) -> bytes | None:
    return dict(reply.headers).get(name)


@pytest.mark.parametrize("kind", Kind)
def test_L17_every_kind_has_the_openai_shape(kind: Kind) -> None:
    reply = refuse(exchange(), kind, "What happened.", api="openai", retry_after_s=2.0)
    error: dict[str, Any] = json.loads(reply.body)["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["message"], error["param"]) == ("What happened.", None)
    assert isinstance(error["type"], str)
    assert isinstance(error["code"], str)
    assert header(reply, b"Content-Type") == b"application/json"
    assert 400 <= reply.status < 600


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_the_oip_shape(kind: Kind) -> None:
    assert json.loads(refuse(exchange(), kind, "What happened.", api="oip").body) == {"error": "What happened."}


@pytest.mark.parametrize(
    ("path", "api", "shape"),
    [
        ("/v1/embeddings", None, "openai"),
        ("/", None, "openai"),
        ("/v2", None, "oip"),
        ("/v2/models/m/infer", None, "oip"),
        ("/v20", None, "openai"),
        ("/v2/models/m/infer", "openai", "openai"),
        ("/v1/embeddings", "oip", "oip"),
    ],
)
def test_the_engines_errors_follow_the_api_that_is_asked(path: str, api: str | None, shape: str) -> None:
    config = proxy_config(routes=[{"to": "engine", "api": api}])
    x = exchange(path)
    x.route = route_of(config.routes[0], 0, config, Chain([]))
    for made in (refuse(x, Kind.ENGINE_DOWN, "m"), refuse(x, Kind.RATE_LIMITED, "m")):
        error = json.loads(made.body)["error"]
        assert (error if shape == "oip" else error["message"]) == "m"


def test_param_and_code_can_be_said_more_exactly() -> None:
    reply = refuse(None, Kind.BAD_REQUEST, "m", api="openai", param="model", code="model_not_found")
    error = json.loads(reply.body)["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")


def test_a_problem_names_its_registered_type_and_the_violated_policies() -> None:
    reply = refuse(exchange(), Kind.RATE_LIMITED, "m", violated=("burst", "daily"))
    assert json.loads(reply.body) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "m",
        "code": "rate_limit_exceeded",
        "violated-policies": ["burst", "daily"],
    }
    assert header(reply, b"Content-Type") == b"application/problem+json"


def test_reduced_capacity_has_its_own_type() -> None:
    for kind in (Kind.CAPACITY, Kind.BREAKER_OPEN, Kind.ENGINE_DOWN, Kind.DRAINING):
        body = json.loads(refuse(None, kind, "m").body)
        assert body["type"] == "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        assert body["status"] == 503


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("", "application/problem+json"),
        ("*/*", "application/problem+json"),
        ("application/json", "application/json"),
        ("application/problem+json", "application/problem+json"),
        ("text/plain", "text/plain"),
        ("text/*", "text/html"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html"),
        ("*/*, text/html", "text/html"),
        ("application/*;q=0.9, text/html;q=0.8", "application/problem+json"),
        ("text/plain;q=0.1, application/json;q=0.9", "application/json"),
        ("TEXT/HTML", "text/html"),
        ("text/html;level=1;q=1", "text/html"),
        ("text/html;q=0", "application/problem+json"),
        ("text/html;q=nonsense", "application/problem+json"),
        ("text/html;q=nan", "application/problem+json"),
        ("image/png", "application/problem+json"),
        ("," * 100_000, "application/problem+json"),
    ],
)
def test_accept_chooses(accept: str, media_type: str) -> None:
    assert preferred(accept) == media_type


def test_nothing_is_echoed_unescaped() -> None:
    page = refuse(exchange(headers=[("Accept", "text/html")]), Kind.BAD_REQUEST, NASTY).body
    assert b"<script>" not in page
    assert b"&lt;script&gt;" in page
    for api in ("openai", "oip", "none"):
        reply = refuse(exchange(), Kind.BAD_REQUEST, NASTY, api=api)
        assert NASTY in json.dumps(json.loads(reply.body)).replace('\\"', '"')
        assert header(reply, b"X-Content-Type-Options") == b"nosniff"


def test_a_lone_surrogate_in_a_message_is_no_crash() -> None:
    assert json.loads(refuse(None, Kind.BAD_REQUEST, "a\udcffb").body)["detail"] == "a?b"


@pytest.mark.parametrize(("seconds", "sent"), [(0.0, 1), (0.4, 1), (1.0, 1), (1.9, 2), (2.0, 2), (2.000001, 3)])
def test_H02_retry_after_is_the_ceiling_and_never_0(seconds: float, sent: int) -> None:
    assert retry_after(seconds) == sent
    assert header(refuse(None, Kind.CAPACITY, "m", retry_after_s=seconds), b"Retry-After") == b"%d" % sent


def test_errors_are_not_stored_by_caches() -> None:
    assert header(refuse(None, Kind.NOT_FOUND, "m"), b"Cache-Control") == b"no-store"
