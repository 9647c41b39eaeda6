"""Paths and patterns."""

from __future__ import annotations

import pytest

from engine.http.message import Request, Response
from engine.http.router import Router, get, post


async def _model(request: Request) -> Response:
    return Response()


async def _infer(request: Request) -> Response:
    return Response()


async def _rest(request: Request) -> Response:
    return Response()


async def _statistics(request: Request) -> Response:
    return Response()


ROUTER = Router(
    [
        post("/v2/models/{model}/infer", _infer),
        get("/v2/models/stats", _statistics),
        get("/v2/models/{model}", _model),
        post("/v2/models/{model}", _infer),
        get("/v1/models/{model:.+}", _rest),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "handler", "names"),
    [
        ("POST", "/v2/models/m/infer", _infer, {"model": "m"}),
        ("GET", "/v2/models/stats", _statistics, {}),
        ("GET", "/v2/models/m", _model, {"model": "m"}),
        ("HEAD", "/v2/models/m", _model, {"model": "m"}),
        ("POST", "/v2/models/stats", _infer, {"model": "stats"}),
        ("GET", "/v2/models/a%2Fb%20%C3%A9", _model, {"model": "a/b é"}),
        ("GET", "/v1/models/a/b%2Fc", _rest, {"model": "a/b/c"}),
    ],
)
def test_a_path_means_the_first_route_that_fits(method: str, path: str, handler: object, names: dict[str, str]) -> None:
    for _ in range(2):  # as found, and as remembered
        found = ROUTER.find(method, path)
        assert (found.handler, found.names) == (handler, names)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v2/models/m/infer", ("POST",)),
        ("DELETE", "/v2/models/m", ("GET", "HEAD", "POST")),
        ("GET", "/v2/models/m/other", ()),
        ("GET", "/v2/models/", ()),
        ("GET", "/v2/models/m/", ()),
        ("GET", "/V2/models/m", ()),
        ("GET", "*", ()),
        ("GET", "http://engine/v2/models/m", ()),
    ],
)
def test_what_no_route_takes_says_what_is_taken(method: str, path: str, allowed: tuple[str, ...]) -> None:
    found = ROUTER.find(method, path)
    assert found.handler is None
    assert found.allowed == allowed


def test_of_many_paths_a_bounded_number_is_remembered() -> None:
    router = Router([get("/{name:.+}", _rest)])
    for number in range(5000):
        router.find("GET", f"/{number}")
        router.find("GET", f"/{'x' * 300}{number}")
    assert len(router._memo) <= 1024
    assert max(len(path) for _, path in router._memo) <= 256
