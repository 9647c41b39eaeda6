"""`headrace route explain`: a configuration asked without a server."""

from __future__ import annotations

import json

import pytest

from appliance import exit_codes
from appliance.cli import run
from tests.appliance.config_files import LISTENER, ConfigFiles

Capture = pytest.CaptureFixture[str]
CONFIG = (
    LISTENER
    + """
upstreams: {app: {servers: ['http://10.0.0.5:8080']}}
routes:
  - to: app
    match: {path: '/api/*', headers: {X-Token: s3cret}}
    rewrite: {strip_prefix: /api}
    policies: {headers: {request: {set: {X-Api-Key: hush}}}}
  - {to: app, match: {host: other.example}}
  - {respond: {body: hello}, match: {path: /hello, methods: [GET]}}
"""
)


def test_the_story_in_lines(place: ConfigFiles, capsys: Capture) -> None:
    path = place.file("headrace.yaml", CONFIG)
    asked = ["GET", "http://a.example:8080//api/x?y", "-H", "x-token: s3cret", "--client", "10.1.1.1"]
    assert run(["route", "explain", *asked, "-c", str(path)]) == exit_codes.OK
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "s3cret" not in captured.out
    assert "hush" not in captured.out
    lines = captured.out.splitlines()
    assert lines[:8] == [
        "request    GET http://a.example:8080//api/x?y",
        "client     10.1.1.1",
        "listener   127.0.0.1:8080",
        "matched    host a.example, path /api/x, query y",
        "route      routes[0] */api/* X-Token",
        "           because host a.example fits any",
        "           because path /api/x fits /api/*",
        "           because header x-token is '***'",
    ]
    assert "not        routes[2] GET */hello: the path does not fit /hello" in lines
    assert "not        1 of other hosts" in lines
    assert lines[lines.index("sent       GET /x?y HTTP/1.1") :][:3] == [
        "sent       GET /x?y HTTP/1.1",
        "           Host: a.example:8080",
        "upstream   app: http://10.0.0.5:8080",
    ]


@pytest.mark.parametrize(
    ("asked", "last"),
    [
        (["GET", "http://a:8080/hello"], "           Content-Type: text/plain; charset=utf-8"),
        (["PUT", "http://a:8080/hello"], "answer     405: routes take it with another method: GET, HEAD"),
        (["GET", "http://a:8080/"], "answer     404: no route takes this host and path"),
        (["GET", "http://a:8080/..%2f"], "answer     400: the path contains an escaped slash, backslash or NUL"),
    ],
)
def test_how_it_ends(place: ConfigFiles, capsys: Capture, asked: list[str], last: str) -> None:
    path = place.file("headrace.yaml", CONFIG)
    assert run(["route", "explain", *asked, "-c", str(path)]) == exit_codes.OK
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_for_scripts(place: ConfigFiles, capsys: Capture) -> None:
    path = place.file("headrace.yaml", CONFIG)
    asked = ["GET", "http://a.example:8080/api/x", "-H", "X-Token: s3cret", "--json"]
    assert run(["route", "explain", *asked, "-c", str(path)]) == exit_codes.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["outcome"], told["route"]["index"]) == ("forward", 0)
    [headers] = [each["settings"] for each in told["policies"] if each["name"] == "headers"]
    assert headers["request"]["set"] == {"X-Api-Key": "***"}


def test_a_configuration_that_is_wrong_explains_nothing(place: ConfigFiles, capsys: Capture) -> None:
    path = place.file("headrace.yaml", "listeners: []\n")
    assert run(["route", "explain", "GET", "/", "-c", str(path)]) == exit_codes.CANNOT_BOOT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "listeners: is empty" in captured.err


@pytest.mark.parametrize("options", [["-H", "nonsense"], ["-H", " X: y"], ["-H", "X: a\nb: c"], ["--client", "me"]])
def test_options_that_are_not_understood(place: ConfigFiles, capsys: Capture, options: list[str]) -> None:
    path = place.file("headrace.yaml", CONFIG)
    assert run(["route", "explain", "GET", "/", *options, "-c", str(path)]) == exit_codes.USAGE
    assert capsys.readouterr().out == ""


def test_a_dump_shows_no_value_that_a_match_compares_with_a_secret(place: ConfigFiles, capsys: Capture) -> None:
    path = place.file("headrace.yaml", CONFIG)
    assert run(["check", "--print", "-c", str(path)]) == exit_codes.OK
    out = capsys.readouterr().out
    assert "X-Token: '***'" in out
    assert "s3cret" not in out


BY_MODEL = (
    LISTENER
    + """
upstreams: {a: {servers: ['http://10.0.0.5']}, b: {servers: ['http://10.0.0.6']}}
model_routes:
  chat:
    aliases: [gpt-4o]
    upstreams: [{to: a, priority: 1}, {to: b, model: org/chat, weight: 3}, {to: a, model: old}]
    balance: prefix
    fallback: [light]
    degrade_to: light
  light: {upstreams: [{to: b}]}
  other: {upstreams: [{to: b}]}
routes: [{to: {models: [chat], default: chat}}]
"""
)


def test_a_route_by_models_tells_who_is_asked_for_each(place: ConfigFiles, capsys: Capture) -> None:
    path = place.file("headrace.yaml", BY_MODEL)
    asked = ["POST", "http://a:8080/v1/chat/completions", "-c", str(path)]
    assert run(["route", "explain", *asked]) == exit_codes.OK
    lines = capsys.readouterr().out.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("model"))
    assert lines[begin : begin + 4] == [
        "model      chat, gpt-4o, or none: a, then b as org/chat (weight 3) or a as old by the beginning of the prompt"
        ", then the model light",
        "           while it is slow, the model light first: first_token_p95 1200ms, window 1m, min_requests 20",
        "model      light: b",
        "upstream   a: http://10.0.0.5",
    ]
    assert [line for line in lines if line.startswith("upstream")][1].startswith("upstream   b: ")
    assert run(["route", "explain", *asked, "--json"]) == exit_codes.OK
    told = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in told["upstreams"]] == ["a", "b"]
    assert set(told["models"]) == {"chat", "light"}
