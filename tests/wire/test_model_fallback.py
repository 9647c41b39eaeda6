"""Another upstream answers as long as the client has seen nothing of the first one's content, and never after."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.harness import OK, RawUpstream, Script, app, edge, raw_upstream
from tests.wire.models import (
    DONE,
    ERROR,
    ROLE,
    STREAM,
    Recording,
    answer,
    chat,
    chunks,
    get,
    keys_file,
    model_routes,
    sends,
    text,
)

GOOD = STREAM + chunks(ROLE, text(b"from b"), DONE)
KEY = "Authorization: Bearer hr_test"


@pytest.mark.parametrize(
    "script",
    [
        sends(answer(b"500 Internal Server Error")),
        sends(answer(b"503 Service Unavailable", b"{}", b"Retry-After: 7")),
        sends(answer(b"429 Too Many Requests", b"{}", b"Retry-After: 7")),
        sends(answer(b"401 Unauthorized")),
        sends(answer(b"404 Not Found")),
        sends(b"", then="close"),
        sends(b"", then="reset"),
        sends(b"HTP/1.1 200 OK\r\n\r\n"),
        sends(STREAM, then="reset"),
        sends(STREAM + chunks(b": ping\n\n", ROLE, end=False), then="close"),
        sends(STREAM + chunks(ROLE, ERROR, DONE)),
        sends(STREAM + chunks(ROLE, end=False), chunks(ERROR, end=False), then="silence"),
        sends(STREAM + chunks(ROLE)),
        sends(STREAM + chunks(ROLE, end=False) + b"zz\r\n"),
    ],
)
async def test_an_upstream_that_fails_before_its_first_content_is_not_seen(script: Script) -> None:
    async with (
        raw_upstream(script) as a,
        raw_upstream(Recording(GOOD)) as b,
        edge(model_routes(a.port, b.port)) as running,
    ):
        said = await running.ask(chat())
        assert (said.status, said.body) == (200, ROLE + text(b"from b") + DONE)
        assert said.get("headrace-upstream") == "b"
        assert len(a.heads) == len(b.heads) == 1


async def test_an_upstream_that_cannot_be_reached_is_passed_over() -> None:
    async with raw_upstream(Recording(GOOD)) as b:
        async with raw_upstream(sends(OK)) as gone:
            port = gone.port
        async with edge(model_routes(port, b.port)) as running:
            assert (await running.ask(chat())).get("headrace-upstream") == "b"


@pytest.mark.parametrize(
    ("status", "body"),
    [(b"400 Bad Request", b'{"error": 1}'), (b"422 Unprocessable Content", b"{}"), (b"200 OK", b'{"choices": []}')],
)
async def test_what_the_request_is_answered_is_its_answer(status: bytes, body: bytes) -> None:
    async with (
        raw_upstream(sends(answer(status, body))) as a,
        raw_upstream(Recording(GOOD)) as b,
        edge(model_routes(a.port, b.port)) as running,
    ):
        said = await running.ask(chat(stream=False))
        assert (said.status, said.body) == (int(status[:3]), body)
        assert not b.heads


async def test_after_the_first_content_nobody_else_is_asked() -> None:
    async with (
        raw_upstream(sends(STREAM + chunks(ROLE, text(b"from a"), end=False), then="reset")) as a,
        raw_upstream(Recording(GOOD)) as b,
        edge(model_routes(a.port, b.port)) as running,
    ):
        client = await running.connect()
        await client.send(chat())
        received, ending = await client.rest()
        assert ending == "rst"
        assert text(b"from a") in received
        assert b"[DONE]" not in received
        assert not b.heads


async def test_start_up_events_are_not_held_for_ever() -> None:
    async with (
        raw_upstream(sends(STREAM + chunks(*[ROLE] * 64, end=False), chunks(ERROR))) as a,
        raw_upstream(Recording(GOOD)) as b,
        edge(model_routes(a.port, b.port)) as running,
    ):
        said = await running.ask(chat())
        assert said.body == ROLE * 64 + ERROR
        assert not b.heads


async def test_the_last_upstreams_answer_is_the_clients() -> None:
    async with (
        raw_upstream(sends(answer(b"500 Internal Server Error"))) as a,
        raw_upstream(sends(answer(b"429 Too Many Requests", b'{"error": "b"}', b"Retry-After: 7"))) as b,
        edge(model_routes(a.port, b.port)) as running,
    ):
        said = await running.ask(chat())
        assert (said.status, said.body, said.get("retry-after")) == (429, b'{"error": "b"}', "7")
        assert said.get("headrace-upstream") == "b"


async def test_each_upstream_gets_its_own_name_for_the_model_and_nothing_else_changes() -> None:
    good = Recording(GOOD)
    async with raw_upstream(sends(answer(b"500 Internal Server Error"))) as a, raw_upstream(good) as b:
        config = model_routes(a.port, b.port, aliases=["gpt-4o"])
        config["model_routes"]["chat"]["upstreams"][1]["model"] = "org/llama"
        async with edge(config) as running:
            body = b'{"temperature": 1.0, "model" : "gpt-4o", "messages":[{"role":"user","content":"\\u00e9"}]}'
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            said = await running.ask(head + body)
    assert said.get("headrace-model") == "chat"
    assert good.raw == [body.replace(b'"gpt-4o"', b'"org/llama"')]


async def test_a_fallback_model_answers_and_the_answer_says_so() -> None:
    async with raw_upstream(sends(answer(b"503 Service Unavailable"))) as a, raw_upstream(Recording(GOOD)) as b:
        config = model_routes(a.port, b.port, fallback=["small"])
        config["model_routes"]["chat"]["upstreams"].pop()
        config["model_routes"]["small"] = {"upstreams": [{"to": "b", "model": "tiny"}]}
        async with edge(config) as running:
            said = await running.ask(chat())
    assert (said.get("headrace-model"), said.get("headrace-upstream")) == ("small", "b")
    assert ("Cache-Control", "private, no-store") in said.fields
    assert said.get("vary") == "Authorization, X-API-Key, X-Prompt-Route"


async def test_an_open_breaker_is_passed_over() -> None:
    async with raw_upstream(sends(b"", then="reset")) as a, raw_upstream(Recording(GOOD)) as b:
        config = model_routes(a.port, b.port)
        config["upstreams"]["a"]["breaker"] = {"min_requests": 2}
        async with edge(config) as running:
            for _ in range(5):
                assert (await running.ask(chat())).get("headrace-upstream") == "b"
    assert len(a.heads) == 2


async def _asked(upstream: RawUpstream, raw: bytes, status: int, code: str | None, **allow: object) -> None:
    config = model_routes(upstream.port)
    config["routes"][0]["policies"] = {"auth": {"keys": "keys.yaml"}}
    async with edge(config, materials={"keys.yaml": keys_file(**allow)}) as running:
        said = await running.ask(raw)
        assert said.status == status, said.body
        assert code is None or f'"code":"{code}"'.encode() in said.body


async def test_L17_a_model_that_is_not_there_and_one_that_is_not_allowed_look_the_same() -> None:
    async with raw_upstream(Recording(GOOD)) as a:
        await _asked(a, chat("other", KEY), 404, "model_not_found")
        await _asked(a, chat("chat", KEY), 404, "model_not_found", models=["small"])
        await _asked(a, chat("", KEY), 400, "bad_request")
        assert not a.heads
        await _asked(a, chat("chat", KEY), 200, None, models=["ch*"])


async def test_a_key_that_may_chooses_its_upstream() -> None:
    choice = "X-Prompt-Route: b"
    async with raw_upstream(Recording(GOOD)) as a, raw_upstream(Recording(GOOD)) as b:
        config = model_routes(a.port, b.port)
        config["routes"][0]["policies"] = {"auth": {"keys": "keys.yaml"}}
        async with edge(config, materials={"keys.yaml": keys_file(upstreams=["b", "x"])}) as running:
            assert (await running.ask(chat("chat", KEY, choice))).get("headrace-upstream") == "b"
            assert (await running.ask(chat("chat", KEY))).get("headrace-upstream") == "a"
            assert (await running.ask(chat("chat", KEY, "X-Prompt-Route: a"))).status == 403
            assert (await running.ask(chat("chat", KEY, "X-Prompt-Route: x"))).status == 400
        assert b"x-prompt-route" not in b.received.lower()
        async with edge(config, materials={"keys.yaml": keys_file()}) as running:
            assert (await running.ask(chat("chat", KEY, choice))).status == 403


async def test_the_list_of_models_is_what_the_key_may_use() -> None:
    async with raw_upstream(Recording(GOOD)) as a:
        config = model_routes(a.port, aliases=["gpt-4o"])
        config["model_routes"]["small"] = {"upstreams": [{"to": "a"}]}
        config["routes"][0] = {"to": {"models": ["chat", "small"]}, "policies": {"auth": {"keys": "keys.yaml"}}}
        async with edge(config, materials={"keys.yaml": keys_file(models=["chat", "gpt-4o"])}) as running:
            listed = await running.ask(get("/v1/models", KEY))
            assert listed.body.count(b'"id"') == 2
            assert b'"id":"chat"' in listed.body
            assert (await running.ask(get("/v1/models/gpt-4o", KEY))).body.startswith(b'{"id":"gpt-4o"')
            assert (await running.ask(get("/v1/models/small", KEY))).status == 404
            assert (await running.ask(get("/v1/models"))).status == 401
            assert (await running.ask(get("/v1/other", KEY))).status == 404
        assert not a.heads


async def test_a_key_that_is_refused_is_replaced_by_the_next() -> None:
    served = Recording(
        answer(b"429 Too Many Requests", b"{}", b"Retry-After: 30"), answer(b"401 Unauthorized"), answer(b"200 OK")
    )
    async with raw_upstream(served) as a:
        config = model_routes(a.port)
        config["upstreams"]["a"] |= {"key": {"secret": "one"}, "spare_keys": [{"secret": "two"}, {"secret": "three"}]}
        secrets = {f"secret:{name}": name.encode() for name in ("one", "two", "three")}
        async with edge(config, materials=secrets) as running:
            assert (await running.ask(chat(stream=False))).status == 200
            assert (await running.ask(chat(stream=False))).status == 200
    assert served.keys == ["one", "two", "three", "three"]


async def test_the_last_keys_refusal_is_the_clients() -> None:
    served = Recording(answer(b"429 Too Many Requests", b'{"error": 1}', b"Retry-After: 30"))
    async with raw_upstream(served) as a:
        config = {
            "upstreams": {
                "a": {
                    "servers": [f"http://127.0.0.1:{a.port}"],
                    "key": {"secret": "one"},
                    "spare_keys": [{"secret": "two"}],
                }
            },
            "routes": [{"to": "a"}],
        }
        async with edge(config, materials={"secret:one": b"one", "secret:two": b"two"}) as running:
            said = await running.ask(chat(stream=False))
            assert (said.status, said.body) == (429, b'{"error": 1}')
    assert served.keys == ["one", "two"]


SECRETS = {"secret:one": b"one", "secret:two": b"two"}
OURS_REFUSED = answer(b"401 Unauthorized", b'{"error": {"message": "Incorrect API key provided: sk-ab***yz"}}')


@pytest.mark.parametrize("spare", [[], [{"secret": "two"}]], ids=["one key", "two keys"])
@pytest.mark.parametrize("route", ["plain", "openai", "models"])
async def test_that_our_own_key_is_refused_is_no_clients_401(route: str, spare: list[dict[str, str]]) -> None:
    served = Recording(OURS_REFUSED)
    told: list[dict[str, Any]] = []
    async with raw_upstream(served) as a:
        kinds = {"kind": "openai"} if route == "openai" else {}
        config = model_routes(a.port) if route == "models" else app(a.port, **kinds)
        name = "a" if route == "models" else "app"
        config["upstreams"][name] |= {"key": {"secret": "one"}, "spare_keys": spare}
        async with edge(config, materials=SECRETS, notify=told.append) as running:
            said = await running.ask(chat(stream=False))
            assert said.status == 502
            assert b"upstream_key_refused" in said.body
            assert b"sk-ab" not in said.raw
            assert running.worker.breakers()[name]["failed"] == 0
            again = await running.ask(chat(stream=False))
            assert again.status == 502
            counted = [
                running.worker._cells.counter(
                    "headrace_upstream_keys_refused_total", "", {"upstream": name, "key": key}
                ).value
                for key in ("1", "2")
            ]
    if spare:
        assert [(each["kind"], each["upstream"], each["key"], each["status"]) for each in told] == [
            ("key", name, 1, 401),
            ("key", name, 2, 401),
        ]
        assert counted == [1, 1]


async def test_a_401_for_the_clients_own_key_goes_to_the_client() -> None:
    async with raw_upstream(Recording(OURS_REFUSED)) as a, edge(app(a.port, kind="openai")) as running:
        said = await running.ask(chat("chat", "Authorization: Bearer sk-mine", stream=False))
        assert said.status == 401


@pytest.mark.parametrize("model", [5, "", None, ["chat"], True])
@pytest.mark.parametrize("default", [None, "chat"])
async def test_a_model_that_is_no_name_is_not_taken_for_the_default(model: object, default: str | None) -> None:
    async with raw_upstream(Recording(answer(b"200 OK"))) as a:
        config = model_routes(a.port)
        if default is not None:
            config["routes"][0]["to"]["default"] = default
        async with edge(config) as running:
            said = await running.ask(chat(model, stream=False))  # type: ignore[arg-type]
            assert said.status == 400
            assert b"model" in said.body
        assert not a.heads
