"""Which route takes a request: the order of hosts, then of paths, whatever the order of the list."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chain import Chain
from proxy.config_routes import Route as RouteConfig
from proxy.config_routes import cross_check, route_of
from proxy.paths import normalise
from proxy.patterns import parse_pattern
from proxy.route import Route, Router, fits_host
from tests.proxy.make import exchange, proxy_config

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
    found = router(MATCHES).find(exchange(path, host=host))
    assert found is not None
    assert found.name == name


def test_the_order_of_the_list_never_matters() -> None:
    matches = [(None, "/*"), ("a.example", "/*"), ("a.example", "/x"), ("*.example", "/x")]
    names = set()
    for shuffled in permutations(matches):
        found = router(list(shuffled)).find(exchange("/x", host="a.example"))
        assert found is not None
        names.add(found.name)
    assert names == {"a.example/x"}


def test_a_host_without_a_route_for_the_path_leaves_it_to_the_next() -> None:
    routes = router([("app.example.com", "/v1/*"), (None, "/health")])
    found = routes.find(exchange("/health", host="app.example.com"))
    assert found is not None
    assert found.name == "*/health"


def test_nothing_matches() -> None:
    assert router([("a.example", "/*")]).find(exchange("/", host="b.example")) is None


def test_B11_paths_are_case_sensitive_and_a_guarded_prefix_guards_itself() -> None:
    routes = router([(None, "/*"), (None, "/admin/*")])
    names = [found.name for path in ("/ADMIN", "/admin", "/admin/") if (found := routes.find(exchange(path, host="")))]
    assert names == ["*/*", "*/admin/*", "*/admin/*"]


APP = {"app": {"servers": ["http://127.0.0.1:1"]}}


def routed(*matches: dict[str, Any]) -> Router:
    """A router for these ``match`` tables; a route is named after its place."""
    routes = [{"name": str(i), "to": "app", "match": match} for i, match in enumerate(matches)]
    config = proxy_config(upstreams=APP, routes=routes)
    assert cross_check(config) == []
    return Router(route_of(table, i, config, Chain([])) for i, table in enumerate(config.routes))


def found(router: Router, target: str = "/", headers: list[tuple[str, str]] | None = None, **facts: Any) -> str | None:
    """The name of the route that takes the request."""
    route = router.find(exchange(target, headers, **facts))
    return route.name if route is not None else None


def test_segment_by_segment_text_is_before_a_placeholder_and_that_before_the_rest() -> None:
    router = routed(
        {"path": "/*"},
        {"path": "/{a}/{b}"},
        {"path": "/admin/*"},
        {"path": "/admin/{b}/x"},
        {"path": "/v{n}/x"},
        {"path": "/{a}/x"},
        {"path": "/{a}/{rest*}"},
        {"path": "/admin/u/x"},
    )
    expected = {
        "/": "0",
        "/x": "6",  # as /*/ takes the path that it guards
        "/x/y": "1",
        "/x/y/z": "6",
        "/x/x": "5",
        "/v1/x": "4",
        "/v/x": "5",
        "/admin": "2",
        "/admin/u": "2",  # no placeholder passes by a guarded prefix
        "/admin/x": "2",
        "/admin/7/x": "3",
        "/admin/u/x": "7",
        "/admin/u/y": "2",
    }
    assert {path: found(router, path) for path in expected} == expected


def test_a_search_comes_back_where_the_better_branch_ends() -> None:
    router = routed({"path": "/a/{x}/c"}, {"path": "/{y}/b/d"}, {"path": "/a/b/{z}/e"})
    assert found(router, "/a/b/c") == "0"
    assert found(router, "/a/b/d") == "1"
    assert found(router, "/a/b/c/e") == "2"
    assert found(router, "/a/b/x") is None


def test_more_conditions_are_before_fewer_and_what_fails_leaves_it_to_the_next() -> None:
    router = routed(
        {"path": "/x"},
        {"path": "/x", "methods": ["POST"]},
        {"path": "/x", "methods": ["POST"], "headers": {"X-Version": "2"}},
        {"path": "/*", "methods": ["DELETE"]},
    )
    assert found(router, "/x") == "0"
    assert found(router, "/x", method="POST") == "1"
    assert found(router, "/x", [("x-version", "2")], method="POST") == "2"
    assert found(router, "/x", [("x-version", "2")]) == "0"
    assert found(router, "/x", method="DELETE") == "0"
    assert found(router, "/y", method="DELETE") == "3"
    assert found(router, "/y") is None


def test_a_priority_is_before_host_and_path() -> None:
    router = routed(
        {"host": "a.example", "path": "/x"},
        {"path": "/*", "headers": {"X-Debug": {"present": True}}, "priority": 10},
        {"path": "/*", "priority": -1},
    )
    assert found(router, "/x") == "0"
    assert found(router, "/x", [("X-Debug", "")]) == "1"
    assert found(router, "/y") == "2"


def test_a_preflight_goes_where_its_request_will_go() -> None:
    router = routed({"path": "/x", "methods": ["GET"]}, {"path": "/x", "methods": ["PUT"]}, {"path": "/*"})
    asks = [("Access-Control-Request-Method", "PUT"), ("Origin", "https://b.example")]
    assert found(router, "/x", asks, method="OPTIONS") == "1"
    assert found(router, "/x", method="OPTIONS") == "2"
    own = routed({"path": "/x", "methods": ["PUT"]}, {"path": "/x", "methods": ["OPTIONS"]})
    assert found(own, "/x", asks, method="OPTIONS") == "1"


def test_which_methods_would_have_been_taken() -> None:
    router = routed(
        {"path": "/x", "methods": ["GET"]},
        {"path": "/x", "methods": ["PUT", "DELETE"]},
        {"path": "/x", "methods": ["PATCH"], "headers": {"A": "1"}},
        {"path": "/{y}", "methods": ["POST"]},
        {"host": "b.example", "path": "/x", "methods": ["REPORT"]},
    )
    assert router.find(exchange("/x", method="LINK")) is None
    assert router.allowed(exchange("/x", method="LINK")) == ("DELETE", "GET", "HEAD", "POST", "PUT")
    assert router.allowed(exchange("/x", [("A", "1")], method="LINK"))[3] == "PATCH"
    assert router.allowed(exchange("/y/z", method="LINK")) == ()


HOSTS = [None, "a.example", "*.example", "*.b.example", "c.b.example"]
PATTERNS = [
    "/*",
    "/",
    "/a",
    "/a/",
    "/a/*",
    "/{x}",
    "/{x}/*",
    "/a{x}",
    "/{x}a",
    "/a{x}a/*",
    "/a/{y}",
    "/{x}/a",
    "/b/{r*}",
]
CONDITIONS: list[dict[str, Any]] = [
    {},
    {},
    {"methods": ["GET"]},
    {"methods": ["POST"]},
    {"methods": ["OPTIONS"]},
    {"headers": {"A": "1"}},
    {"headers": {"A": {"present": False}}, "query": {"q": "1"}},
    {"methods": ["GET"], "query": {"q": {"like": "1*"}}},
]
MATCHES_OF = st.builds(
    lambda host, path, conditions, priority: {"host": host, "path": path, "priority": priority, **conditions},
    st.sampled_from(HOSTS),
    st.sampled_from(PATTERNS),
    st.sampled_from(CONDITIONS),
    st.sampled_from([0, 0, 0, 1]),
)
SEGMENTS = st.lists(st.sampled_from(["a", "b", "aa", "aba", "", "%2e", "%61", "a;x", "..."]), min_size=1, max_size=3)


def rank(route: Route) -> tuple[Any, ...]:
    """The order of routes as its rules say it, to compare those that take one request."""
    host = route.host or ""
    kind = (2, 0) if host and not host.startswith("*") else (1, len(host)) if host else (0, 0)
    pattern = parse_pattern(route.path)
    path = [(2, len(s.before), len(s.after)) if s.name else (3, 0, 0) for s in pattern.segments]
    path.append((1, 0, 0) if pattern.tail else (4, 0, 0))
    path = [(1.5, 0, 0) if each == (2, 0, 0) else each for each in path]
    conditions = route.conditions
    return (
        route.priority,
        kind,
        path,
        conditions.count if conditions else 0,
        conditions is not None and conditions.takes_options,
    )


@given(
    st.lists(MATCHES_OF, min_size=1, max_size=12),
    SEGMENTS,
    st.sampled_from(["a.example", "c.b.example", "x.b.example", "elsewhere", ""]),
    st.sampled_from(["GET", "HEAD", "POST", "OPTIONS"]),
    st.sampled_from([[], [("A", "1")], [("Access-Control-Request-Method", "POST")]]),
    st.sampled_from(["", "?q=1", "?q=12", "?q=1&q=2"]),
)
def test_the_router_is_a_scan_of_all_routes(
    matches: list[dict[str, Any]],
    segments: list[str],
    host: str,
    method: str,
    headers: list[tuple[str, str]],
    query: str,
) -> None:
    routes = [{"name": str(i), "to": "app", "match": match} for i, match in enumerate(matches)]
    config = proxy_config(upstreams=APP, routes=routes)
    refused = {place[1] for place, _ in cross_check(config)}
    built = [route_of(table, i, config, Chain([])) for i, table in enumerate(config.routes) if i not in refused]
    path, send_path = normalise("/" + "/".join(segments))
    x = exchange(f"/{query}", headers, method=method, host=host, path=path, send_path=send_path)
    taking = [
        route
        for route in built
        if fits_host(route.host, host)
        and parse_pattern(route.path).matches(path)
        and (route.conditions is None or route.conditions.hold(x))
    ]
    best = max(taking, key=rank, default=None)
    assert Router(built).find(x) is best
    assert Router(reversed(built)).find(x) is best
    assert len([route for route in taking if best and rank(route) == rank(best)]) <= 1  # what is left has no ties
    if best is None:
        allowed = Router(built).allowed(x)
        assert all(Router(built).find(exchange_with(x, each)) for each in allowed)


def exchange_with(x: Any, method: str) -> Any:
    """The same request with another method."""
    copy = exchange(host=x.host, path=x.path, query=x.query, headers=[], method=method)
    copy.headers, copy.fields = x.headers, x.fields
    return copy
