"""Which route takes a request: the order of hosts, then of paths, whatever the order of the list."""

from __future__ import annotations

from itertools import permutations

import pytest

from proxy.chain import Chain
from proxy.config_routes import Route as RouteConfig
from proxy.route import Route, Router

MATCHES = [
    (None, "/*"),
    (None, "/health"),
    ("*.example.com", "/*"),
    ("*.eu.example.com", "/*"),
    ("app.example.com", "/v1/*"),
    ("app.example.com", "/v1/models"),
    ("app.example.com", "/v1/models/*"),
]


def router(matches: list[tuple[str | None, str]]) -> Router:
    config = RouteConfig(to="app")
    return Router(
        Route(
            name=f"{host or '*'}{path}",
            index=i,
            host=host,
            path=path,
            upstream="app",
            api="none",
            chain=Chain([]),
            config=config,
        )
        for i, (host, path) in enumerate(matches)
    )


@pytest.mark.parametrize(
    ("host", "path", "name"),
    [
        ("app.example.com", "/v1/models", "app.example.com/v1/models"),
        ("app.example.com", "/v1/models/x", "app.example.com/v1/models/*"),
        ("app.example.com", "/v1/modelsx", "app.example.com/v1/*"),
        ("app.example.com", "/v1", "app.example.com/v1/*"),
        ("app.example.com", "/v1/", "app.example.com/v1/*"),
        ("app.example.com", "/v10", "*.example.com/*"),
        ("other.example.com", "/v1/models", "*.example.com/*"),
        ("a.eu.example.com", "/x", "*.eu.example.com/*"),
        ("example.com", "/x", "*/*"),
        ("evilexample.com", "/x", "*/*"),
        ("elsewhere", "/health", "*/health"),
        ("elsewhere", "/health/", "*/*"),
        ("", "/", "*/*"),
    ],
)
def test_the_most_specific_host_then_path(host: str, path: str, name: str) -> None:
    found = router(MATCHES).match(host, path)
    assert found is not None
    assert found.name == name


def test_the_order_of_the_list_never_matters() -> None:
    matches = [(None, "/*"), ("a.example", "/*"), ("a.example", "/x"), ("*.example", "/x")]
    names = set()
    for shuffled in permutations(matches):
        found = router(list(shuffled)).match("a.example", "/x")
        assert found is not None
        names.add(found.name)
    assert names == {"a.example/x"}


def test_a_host_without_a_route_for_the_path_leaves_it_to_the_next() -> None:
    found = router([("app.example.com", "/v1/*"), (None, "/health")]).match("app.example.com", "/health")
    assert found is not None
    assert found.name == "*/health"


def test_nothing_matches() -> None:
    assert router([("a.example", "/*")]).match("b.example", "/") is None


def test_B11_paths_are_case_sensitive_and_a_guarded_prefix_guards_itself() -> None:
    routes = router([(None, "/*"), (None, "/admin/*")])
    names = [found.name for path in ("/ADMIN", "/admin", "/admin/") if (found := routes.match("", path))]
    assert names == ["*/*", "*/admin/*", "*/admin/*"]
