"""Routes over the wire: which one takes a request, what its upstream receives, and what a route answers by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.explain import Asked, explain
from tests.wire.harness import OK, Edge, RawUpstream, answering, edge, raw_upstream


def request(target: str, method: str = "GET", host: str = "a.example", **fields: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n".encode()


@asynccontextmanager
async def routed(*routes: Mapping[str, Any]) -> AsyncIterator[tuple[Edge, RawUpstream]]:
    """An edge with these routes, and the upstream "app" that records what it receives."""
    async with raw_upstream(answering(OK)) as upstream:
        upstreams = {"app": {"servers": [f"http://127.0.0.1:{upstream.port}"]}}
        async with edge({"upstreams": upstreams, "routes": routes}) as running:
            yield running, upstream


def marked(name: str, **match: Any) -> dict[str, Any]:
    """A route that says which it was."""
    return {"name": name, "respond": {"body": name}, "match": match}


async def test_the_route_is_found_by_method_header_query_and_placeholder() -> None:
    routes = (
        marked("any"),
        marked("post", methods=["POST"], path="/x"),
        marked("version", methods=["GET"], headers={"X-Version": "2"}, path="/x"),
        marked("query", query={"v": {"like": "2*"}}, path="/x", priority=1),
        marked("user", path="/u/{id}"),
        marked("first", path="/u/me", priority=9, headers={"X-First": {"present": True}}),
    )
    asked = {
        request("/x"): b"any",
        request("/x", "POST", Content_Length="0"): b"post",
        request("/x", X_VERSION="2"): b"version",
        request("/x", X_Version="22"): b"any",
        request("/x?v=2.1", X_Version="2"): b"query",
        request("/u/7"): b"user",
        request("/u/"): b"any",
        request("/u/%2e%2e/x", X_Version="2"): b"version",
        request("/u/me", X_First=""): b"first",
    }
    async with routed(*routes) as (running, _):
        for raw, body in asked.items():
            answer = await running.ask(raw)
            assert (answer.status, answer.body) == (200, body), raw


async def test_a_method_that_no_route_takes_is_told_the_others() -> None:
    async with routed(marked("x", methods=["GET", "PUT"], path="/x")) as (running, _):
        answer = await running.ask(request("/x", "DELETE"))
        assert (answer.status, answer.get("Allow")) == (405, "GET, HEAD, PUT")
        assert (await running.ask(request("/y", "DELETE"))).status == 404
        assert (await running.ask(request("/x", "HEAD"), head_request=True)).status == 200


async def test_a_preflight_is_forwarded_where_its_request_would_be() -> None:
    to_app = {"to": "app", "match": {"methods": ["PUT"], "path": "/x"}}
    async with routed(to_app, marked("any")) as (running, upstream):
        asks = {"Origin": "https://b.example", "Access_Control_Request_Method": "PUT"}
        assert (await running.ask(request("/x", "OPTIONS", **asks))).body == b"ok"
        assert (await running.ask(request("/x", "OPTIONS"))).body == b"any"
        assert len(upstream.heads) == 1


REWRITES = [
    ({"strip_prefix": "/api"}, "/api/*", "/api/a%28b%29//%7e?q=%2B+&&x", "/a%28b%29//%7e?q=%2B+&&x"),
    ({"strip_prefix": "/api"}, "/api/*", "//%61pi//evil.example/x", "/evil.example/x"),
    ({"strip_prefix": "/api", "add_prefix": "/v2"}, "/api/*", "/api", "/v2"),
    ({"strip_prefix": "/api"}, "/api/*", "/x/../api/%2e%2e/api/y", "/y"),
    ({"path": "/of/{id}/{rest*}"}, "/u/{id}/{rest*}", "/u/%7e7/a//b/?", "/of/%7e7/a//b/?"),
    ({"query": {"set": {"k": "{id}"}, "remove": ["x"]}}, "/u/{id}", "/u/7?x=1&y=%26&k=2", "/u/7?y=%26&k=7"),
]


@pytest.mark.parametrize(("rewrite", "path", "target", "sent"), REWRITES)
async def test_B10_the_upstream_receives_the_rewritten_target(
    rewrite: dict[str, Any], path: str, target: str, sent: str
) -> None:
    async with routed({"to": "app", "match": {"path": path}, "rewrite": rewrite}) as (running, upstream):
        assert (await running.ask(request(target))).status == 200
        assert upstream.heads[0].startswith(f"GET {sent} HTTP/1.1\r\nHost: a.example\r\n".encode())
        # What `headrace route explain` says is what was sent.
        told = explain(running.config, Asked("GET", f"http://a.example:{running.port}{target}"))
        assert (
            told["sent"]["request_line"].encode() + b"\r\n" == upstream.heads[0][: upstream.heads[0].index(b"\n") + 1]
        )


async def test_B11_no_spelling_leaves_a_prefix() -> None:
    guarded = {"to": "app", "match": {"path": "/admin/*"}, "policies": {"access": {"deny": ["0.0.0.0/0"]}}}
    public = {"to": "app", "match": {"path": "/public/*"}, "rewrite": {"strip_prefix": "/public", "add_prefix": "/p"}}
    placeholder = {"to": "app", "match": {"path": "/{any}/{rest*}"}, "rewrite": {"path": "/x/{any}/{rest}"}}
    async with routed(guarded, public, placeholder) as (running, upstream):
        for target in ("/admin/x", "//admin/x", "/%61dmin/x", "/public/../admin/x", "/public/%2e%2e/admin", "/admin"):
            assert (await running.ask(request(target))).status == 403, target
        for target in ("/public/..%2fadmin", "/public/..;/admin", "/public\\..\\admin", "/public/%00"):
            assert (await running.ask(request(target))).status == 400, target
        assert upstream.heads == []
        await running.ask(request("/public/./x/../y"))
        await running.ask(request("/ADMIN/x"))
        lines = [head.split(b"\r\n")[0] for head in upstream.heads]
        assert lines == [b"GET /p/y HTTP/1.1", b"GET /x/ADMIN/x HTTP/1.1"]


async def test_A11_a_redirect_leads_where_its_target_says() -> None:
    routes = (
        {"redirect": {"to": "https://new.example{path}?{query}"}, "match": {"host": "*.old.example"}},
        {"redirect": {"to": "/n/{rest}", "status": 302}, "match": {"path": "/o/{rest*}"}},
        {"redirect": {"to": "/{rest}"}, "match": {"path": "/r/{rest*}"}},
        {"redirect": {"to": "https://{host}:8443/"}, "match": {"host": "b.example"}},
    )
    asked = {
        request("/a//%7e?q=%0d%0aX:1", host="x.old.example"): (308, "https://new.example/a//%7e?q=%0d%0aX:1"),
        request("/a", host="X.OLD.example:99"): (308, "https://new.example/a"),
        request("/o/a/b?c"): (302, "/n/a/b"),
        request("/r//evil.example/"): (308, "/evil.example/"),
        request("http://b.example/", host="evil.example"): (308, "https://b.example:8443/"),
    }
    async with routed(*routes) as (running, _):
        for raw, (status, location) in asked.items():
            answer = await running.ask(raw)
            assert (answer.status, answer.get("Location"), answer.body) == (status, location, b""), raw


async def test_a_fixed_response_passes_the_policies_and_keeps_the_connection() -> None:
    respond = {"status": 418, "body": "caf\u00e9", "headers": {"X-Fixed": "1"}}
    policies = {"headers": {"response": {"set": {"X-Policy": "2"}}}, "access": {"deny": ["127.0.0.2/32"]}}
    refused = {"respond": {}, "match": {"path": "/no"}, "policies": {"access": {"deny": ["127.0.0.1/32"]}}}
    async with routed({"respond": respond, "policies": policies}, refused) as (running, _):
        client = await running.connect()
        await client.send(request("/") + request("/", "HEAD"))
        first = await client.answer()
        assert (first.status, first.body, first.get("Content-Length")) == (418, "caf\u00e9".encode(), "5")
        assert (first.get("X-Fixed"), first.get("X-Policy")) == ("1", "2")
        assert first.get("Content-Type") == "text/plain; charset=utf-8"
        head = await client.answer(head_request=True)
        assert (head.status, head.get("Content-Length"), head.body) == (418, "5", b"")
        assert (await running.ask(request("/no"))).status == 403


async def test_a_fixed_response_to_a_body_that_is_not_read() -> None:
    async with routed(marked("x")) as (running, _):
        answer = await running.ask(request("/", "POST", Content_Length="5") + b"hello")
        assert (answer.status, answer.body) == (200, b"x")


async def test_B11_an_escaped_slash_passes_only_where_it_is_allowed_and_means_one_route() -> None:
    allowing = {"to": "app", "match": {"path": "/p/*"}, "encoded_slash": "allow", "rewrite": {"strip_prefix": "/p"}}
    every = {"to": "app", "match": {"path": "/*"}, "encoded_slash": "allow"}
    user = {"to": "app", "match": {"path": "/u/{id}", "host": "u.example"}, "encoded_slash": "allow"}
    guarded = {"to": "app", "match": {"path": "/admin/*"}}
    async with routed(allowing, every, user, guarded) as (running, upstream):
        for target in ("/p/a%2Fb/%2e", "/x%2fy"):
            assert (await running.ask(request(target))).status == 200, target
        lines = [head.split(b"\r\n")[0] for head in upstream.heads]
        assert lines == [b"GET /a%2Fb/ HTTP/1.1", b"GET /x%2fy HTTP/1.1"]
        for target in ("/admin%2Fx", "/admin%2fx", "/admin/a%2Fb", "/p/..%2fadmin", "/p/a%5Cb", "/p%2fa"):
            answer = await running.ask(request(target))
            assert answer.status == 400, target
        assert len(upstream.heads) == 2
        told = explain(running.config, Asked("GET", f"http://a.example:{running.port}/admin%2Fx"))
        assert (told["outcome"], told["status"]) == ("refused", 400)
    async with routed(guarded) as (running, upstream):
        assert (await running.ask(request("/admin/a%2Fb"))).status == 400
