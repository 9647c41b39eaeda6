"""Passwords, pages of other origins, and addresses behind trusted proxies, as bytes on the wire."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Iterator
from typing import Any

import bcrypt
import pytest

from proxy.keys import hash_key
from tests.wire.harness import OK, Answer, answering, app, edge, eventually, raw_upstream

USERS = b"alice:" + bcrypt.hashpw(b"secret", bcrypt.gensalt(4)) + b"\n"
SLOW_USERS = b"alice:" + bcrypt.hashpw(b"secret", bcrypt.gensalt(9)) + b"\n"
KEYS = f"keys: [{{id: laptop, hash: '{hash_key('key')}'}}]".encode()


def guarded(port: int, policies: dict[str, Any], **listener: Any) -> dict[str, Any]:
    return {**app(port), "routes": [{"to": "app", "policies": policies}], "listener": listener}


def request(*fields: str, method: str = "GET", body: str = "") -> bytes:
    return "\r\n".join([f"{method} / HTTP/1.1", "Host: x", *fields, "", body]).encode("latin-1")


def basic(credentials: str) -> str:
    return "Authorization: Basic " + base64.b64encode(credentials.encode()).decode()


@pytest.fixture
def log_pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


async def test_K02_a_password_opens_and_goes_neither_upstream_nor_into_the_log(log_pipe: tuple[int, int]) -> None:
    reading, writing = log_pipe
    async with raw_upstream(answering(OK)) as upstream:
        config = guarded(upstream.port, {"basic_auth": {"users": "u", "realm": "The vault"}})
        async with edge(config, materials={"u": USERS}, access_log_fd=writing) as running:
            refused = await running.ask(request())
            assert (refused.status, refused.get("www-authenticate")) == (
                401,
                'Basic realm="The vault", charset="UTF-8"',
            )
            assert (await running.ask(request(basic("alice:wrong")))).status == 401
            assert upstream.heads == []
            for _ in range(2):  # hashed, then remembered
                assert (await running.ask(request(basic("alice:secret")))).status == 200
            assert b"authorization" not in upstream.received.lower()
        log = os.read(reading, 65536)
        assert log.count(b'"key":"alice"') == 2
        for credentials in ("alice:secret", "alice:wrong"):
            assert credentials.partition(":")[2].encode() not in log
            assert base64.b64encode(credentials.encode()) not in log


async def test_a_request_behind_one_that_is_being_judged_waits_its_turn() -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = guarded(upstream.port, {"basic_auth": {"users": "u"}})
        async with edge(config, materials={"u": SLOW_USERS}) as running:
            client = await running.connect()
            post = request(basic("alice:secret"), "Content-Length: 4", method="POST", body="body")
            await client.send(post + request(basic("alice:wrong")) + request(basic("alice:secret")))
            assert [(await client.answer()).status for _ in range(3)] == [200, 401, 200]
            assert upstream.received.count(b"body") == 1


async def test_a_client_that_leaves_while_its_password_is_judged_costs_nobody_anything() -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = guarded(upstream.port, {"basic_auth": {"users": "u"}, "in_flight": {"max": 1}})
        async with edge(config, materials={"u": SLOW_USERS}) as running:
            client = await running.connect()
            await client.send(request(basic("alice:secret")))
            client.reset()
            assert (await running.ask(request(basic("alice:secret")))).status == 200
            assert (await running.ask(request(basic("alice:secret")))).status == 200


async def test_others_are_served_while_passwords_are_judged() -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = guarded(upstream.port, {"basic_auth": {"users": "u", "wrong": "100/min"}})
        config["routes"].append({"to": "app", "match": {"path": "/open"}})
        async with edge(config, materials={"u": SLOW_USERS}) as running:
            guesses = [asyncio.create_task(running.ask(request(basic(f"alice:{i}")))) for i in range(6)]
            await asyncio.sleep(0)
            answer = await running.ask(b"GET /open HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer.status == 200
            assert [(await guess).status for guess in guesses] == [401] * 6


async def test_either_a_key_or_a_password_suffices_where_both_are_asked_for() -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = guarded(upstream.port, {"basic_auth": {"users": "u"}, "auth": {"keys": "k"}})
        async with edge(config, materials={"u": USERS, "k": KEYS}) as running:
            statuses = [
                (await running.ask(request(*fields))).status
                for fields in (["X-API-Key: key"], [basic("alice:secret")], [basic("alice:x"), "X-API-Key: key"], [])
            ]
            assert statuses == [200, 200, 200, 401]
            assert b"x-api-key" not in upstream.received.lower()
            assert b"authorization" not in upstream.received.lower()


@pytest.mark.parametrize("credentials", [basic("alice:secret"), "Authorization: Bearer key"])
async def test_B01_what_connection_lists_goes_first_and_what_the_proxy_found_out_arrives(
    credentials: str,
) -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = guarded(upstream.port, {"basic_auth": {"users": "u"}, "auth": {"keys": "k"}})
        config["upstreams"]["app"]["key"] = {"secret": "ours"}
        async with edge(config, materials={"u": USERS, "k": KEYS, "secret:ours": b"sk-ours"}) as running:
            listed = "Connection: close, X-Forwarded-For, X-Real-IP, X-Request-Id, Authorization"
            answer = await running.ask(request(listed, credentials, "X-Forwarded-For: 6.6.6.6", "X-Real-IP: 6.6.6.6"))
            assert answer.status == 200
        [head] = upstream.heads
        assert head.count(b"uthorization: ") == 1
        assert b"Authorization: Bearer sk-ours\r\n" in head
        assert b"X-Forwarded-For: 127.0.0.1\r\n" in head
        assert b"X-Request-Id: " in head
        assert b"6.6.6.6" not in head
        assert b"X-Real-IP" not in head


def cors_fields(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.fields if name.lower().startswith(("access-control-", "vary"))}


async def test_a_preflight_is_answered_before_anybody_is_asked_who_it_is() -> None:
    upstreams_word = b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nVary: Accept\r\nContent-Length: 2\r\n\r\nok"
    async with raw_upstream(answering(upstreams_word)) as upstream:
        cors = {"origins": ["https://*.example.com"], "methods": ["PUT"], "headers": ["X-API-Key"], "credentials": True}
        config = guarded(upstream.port, {"cors": cors, "auth": {"keys": "k"}})
        async with edge(config, materials={"k": KEYS}) as running:
            client = await running.connect()
            asked = ["Origin: https://a.example.com", "Access-Control-Request-Method: PUT"]
            await client.send(request(*asked, method="OPTIONS"))
            answer = await client.answer()
            assert answer.status == 204
            assert answer.get("content-length") is None
            assert cors_fields(answer) == {
                "Access-Control-Allow-Origin": "https://a.example.com",
                "Access-Control-Allow-Credentials": "true",
                "Access-Control-Allow-Methods": "PUT",
                "Access-Control-Allow-Headers": "X-API-Key",
                "Access-Control-Max-Age": "600",
                "Vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
            }
            assert upstream.heads == []
            # The same connection goes on; a refusal can be read by the page, an answer has one set of fields.
            await client.send(request("Origin: https://a.example.com", method="PUT"))
            refused = await client.answer()
            assert (refused.status, refused.get("access-control-allow-origin")) == (401, "https://a.example.com")
            await client.send(request("Origin: https://a.example.com", "X-API-Key: key", method="PUT"))
            answer = await client.answer()
            assert (answer.status, answer.get("access-control-allow-origin")) == (200, "https://a.example.com")
            assert [value for name, value in answer.fields if name == "Vary"] == ["Accept", "Origin"]
            await client.send(request("Origin: https://evil.example", "X-API-Key: key", method="PUT"))
            assert (await client.answer()).get("access-control-allow-origin") is None
            await client.send(request("Origin: https://evil.example", asked[1], method="OPTIONS"))
            assert (await client.answer()).status == 403


async def served_from(policies: dict[str, Any], trusted: list[str], *fields: str) -> tuple[int, bytes]:
    """(the status of a request with these fields, what the upstream received of it)."""
    async with raw_upstream(answering(OK)) as upstream:
        async with edge(guarded(upstream.port, policies, trusted_proxies=trusted)) as running:
            answer = await running.ask(request(*fields))
        return answer.status, upstream.received


@pytest.mark.parametrize(
    ("hops", "status"),
    [
        (["X-Forwarded-For: 198.51.100.7"], 200),
        (["X-Forwarded-For: 9.9.9.9, 198.51.100.7"], 200),
        (["X-Forwarded-For: 198.51.100.7, 9.9.9.9"], 403),
        (["X-Forwarded-For: 198.51.100.7, 127.0.0.9"], 200),
        (["X-Forwarded-For: 9.9.9.9", "X-Forwarded-For: 198.51.100.7"], 200),
        (["X-Forwarded-For: 198.51.100.7", "X-Forwarded-For: 9.9.9.9"], 403),
        (["x-forwarded-FOR: 198.51.100.7", "X-Forwarded-For: 127.0.0.9, 127.0.0.8"], 200),
        (["X-Forwarded-For: 198.51.100.7:4711"], 200),
        (["X-Forwarded-For: ::ffff:198.51.100.7"], 200),
        (["X-Forwarded-For: 2001:DB8::7"], 200),
        (["X-Forwarded-For: [2001:db8::7]"], 200),
        (["X-Forwarded-For: [2001:db8::7]:443"], 200),
        (["X-Forwarded-For: [2001:db8:0::7%25eth0]:443"], 200),
        (["X-Forwarded-For: 2001:db8::7%eth0"], 200),
        (["X-Forwarded-For: [2001:db9::7]:443"], 403),
        (["X-Forwarded-For: 198.51.100.66"], 403),  # denied although allowed
        (["X-Forwarded-For: unknown"], 403),  # the peer itself
        (["X-Forwarded-For: 198.51.100.7, unknown"], 403),
        (["X-Forwarded-For: unknown, 198.51.100.7"], 200),
        (["X-Forwarded-For: 198.51.100.7,"], 403),
        (["X-Forwarded-For: 198.51.100.7, _hidden"], 403),
        (["X-Forwarded-For: \"[2001:db8::7]\""], 403),
        (["X-Forwarded-For: [2001:db8::7"], 403),
        (["X-Forwarded-For: 198.51.100.7:99999"], 403),
        (["Forwarded: for=198.51.100.7"], 403),  # one source: X-Forwarded-For
        (["X-Real-IP: 198.51.100.7"], 403),
        (["X-Forwarded-For: 9.9.9.9", "Forwarded: for=198.51.100.7"], 403),
        ([], 403),
    ],
)  # fmt: skip
async def test_B05_behind_a_trusted_proxy_access_judges_the_first_hop_that_is_not_one(
    hops: list[str], status: int
) -> None:
    access = {"allow": ["198.51.100.0/24", "2001:db8::/32"], "deny": ["198.51.100.66/32"]}
    assert (await served_from({"access": access}, ["127.0.0.0/8"], *hops))[0] == status


@pytest.mark.parametrize(
    "field", ["X-Forwarded-For: 198.51.100.7", "Forwarded: for=198.51.100.7", "X-Real-IP: 198.51.100.7"]
)
async def test_B05_a_peer_that_is_not_trusted_is_judged_by_its_own_address(field: str) -> None:
    spoofed = {"access": {"allow": ["198.51.100.0/24"]}}
    assert (await served_from(spoofed, [], field))[0] == 403
    assert (await served_from(spoofed, ["10.0.0.0/8"], field))[0] == 403
    status, received = await served_from({"access": {"allow": ["127.0.0.1/32"]}}, [], field)
    assert status == 200
    assert b"198.51.100.7" not in received
    assert b"X-Forwarded-For: 127.0.0.1\r\n" in received


async def test_B05_what_a_trusted_proxy_says_is_continued() -> None:
    policies = {"headers": {"forward": ["x-forwarded", "forwarded"]}}
    _, received = await served_from(
        policies, ["127.0.0.0/8"], "X-Forwarded-For: 9.9.9.9", "X-Forwarded-For: 198.51.100.7",
        "Forwarded: for=198.51.100.7;proto=https", "X-Forwarded-Proto: https",
    )  # fmt: skip
    assert b"X-Forwarded-For: 9.9.9.9, 198.51.100.7, 127.0.0.1\r\n" in received
    assert b"X-Forwarded-Proto: https\r\n" in received
    assert b'Forwarded: for=198.51.100.7;proto=https, for=127.0.0.1;proto=http;host="x"\r\n' in received


@pytest.mark.parametrize(
    ("trusted", "lines"),
    [
        ([], ["X-Forwarded-For: 9.9.9.%d"]),
        ([], ["Forwarded: for=9.9.9.%d"]),
        (["127.0.0.0/8"], ["X-Forwarded-For: 9.9.9.%d, 198.51.100.7"]),
        (["127.0.0.0/8"], ["X-Forwarded-For: 9.9.9.%d", "X-Forwarded-For: 198.51.100.7, 127.0.0.2"]),
        (["127.0.0.0/8"], ["X-Forwarded-For: 9.9.9.%d, unknown"]),
        (["127.0.0.0/8"], ["X-Forwarded-For: 198.51.100.7:1%d"]),
        (["127.0.0.0/8"], ["X-Forwarded-For: [2001:db8::%d]:443"]),  # one /64 is one client
        (["127.0.0.0/8"], ["X-Forwarded-For: fe80::1%%eth%d"]),
        (["127.0.0.0/8"], ["X-Forwarded-For: 198.51.100.7", "Forwarded: for=9.9.9.%d"]),
    ],
)
async def test_B05_no_field_chooses_the_bucket(trusted: list[str], lines: list[str]) -> None:
    async with raw_upstream(answering(OK)) as upstream:
        config = guarded(upstream.port, {"rate_limit": ["few"]}, trusted_proxies=trusted)
        config["limits"] = {"few": {"key": "client", "requests": "5/min"}}
        async with edge(config) as running:
            client = await running.connect()
            statuses = []
            for i in range(7):
                await client.send(request(*(line % i if "%d" in line else line for line in lines)))
                statuses.append((await client.answer()).status)
            assert statuses == [200] * 5 + [429] * 2
            await eventually(lambda: len(upstream.heads) == 5)
