"""Variants over real sockets: who is sent where, what is counted, and how outcomes come back."""

from __future__ import annotations

import os
from typing import Any

import orjson
import pytest

from tests.wire.harness import OK, Answer, Edge, answering, edge, raw_upstream
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

KEY = "Authorization: Bearer hr_test"
GOOD = STREAM + chunks(ROLE, text(b"hi"), DONE)


def two(old: int, new: int, variants: dict[str, Any], **policies: Any) -> dict[str, Any]:
    """A route to ``old`` with variants that may go to ``new``."""
    return {
        "upstreams": {name: {"servers": [f"http://127.0.0.1:{port}"]} for name, port in (("old", old), ("new", new))},
        "routes": [{"name": "r", "to": "old", "policies": {"variants": variants, **policies}}],
    }


def of_user(number: int) -> str:
    return f"X-User: user-{number}"


BY_HEADER = {"user": {"header": "X-User"}}
TO_NEW = {"of": {"b": {"share": "20%", "to": "new"}}, **BY_HEADER}


def shown(running: Edge, route: str = "r") -> dict[str, dict[str, Any]]:
    """The rows of a route's table by variant."""
    return {row["variant"]: row for row in running.worker.variants()[route]}


async def users_of(running: Edge, variant: str, num: int = 1, ask: Any = None) -> list[int]:
    """The first users who get this variant."""
    found: list[int] = []
    for i in range(200):
        said = await running.ask((ask or (lambda i: get("/x", of_user(i))))(i))
        if said.get("headrace-variant") == variant:
            found.append(i)
            if len(found) == num:
                return found
    raise AssertionError(f"nobody of 200 gets {variant}")


async def test_a_share_of_the_users_goes_to_another_upstream_and_stays_there() -> None:
    async with (
        raw_upstream(answering(OK)) as old,
        raw_upstream(answering(OK)) as new,
        edge(two(old.port, new.port, TO_NEW)) as running,
    ):
        first = [(await running.ask(get("/x", of_user(i)))).get("headrace-variant") for i in range(100)]
        again = [(await running.ask(get("/x", of_user(i)))).get("headrace-variant") for i in range(100)]
        assert first == again
        assert (len(old.heads), len(new.heads)) == (2 * first.count("control"), 2 * first.count("b"))
        assert 5 <= first.count("b") <= 40
        rows = shown(running)
        assert (rows["b"]["requests"], rows["control"]["good"]) == (2 * first.count("b"), 2 * first.count("control"))
        assert rows["b"]["first_byte_s"] is not None
        assert rows["b"]["answer_s"] >= rows["b"]["first_byte_s"]


async def test_an_answer_says_its_variant_and_is_for_its_user_alone() -> None:
    public = OK.replace(b"\r\n\r\n", b"\r\nCache-Control: max-age=60\r\n\r\n", 1)
    async with (
        raw_upstream(answering(public)) as old,
        raw_upstream(answering(public)) as new,
        edge(two(old.port, new.port, TO_NEW)) as running,
    ):
        said = await running.ask(get("/x", of_user(1)))
        assert ("Cache-Control", "private") in said.fields
        assert said.get("headrace-outcome") is None


async def test_fields_and_the_model_are_changed_for_the_variant_alone() -> None:
    recording = Recording(answer(b"200 OK", b'{"choices": []}'))
    variants = {
        "of": {"b": {"share": "20%", "model": "small", "headers": {"set": {"X-Prompt": "short"}, "remove": ["X-Old"]}}},
        "models": ["chat"],
        **BY_HEADER,
    }
    async with raw_upstream(recording) as old, edge(two(old.port, old.port, variants)) as running:

        def ask(i: int) -> bytes:
            return chat("chat", of_user(i), "X-Old: 1", stream=False)

        [b] = await users_of(running, "b", ask=ask)
        body, head = recording.raw[-1], old.heads[-1].lower()
        assert body == orjson.dumps(
            {"model": "small", **{k: v for k, v in recording.bodies[-1].items() if k != "model"}}
        )
        assert b"x-prompt: short" in head
        assert b"x-old" not in head
        [control] = await users_of(running, "control", ask=ask)
        await running.ask(ask(control))
        assert recording.bodies[-1]["model"] == "chat"
        assert b"x-old: 1" in old.heads[-1].lower()
        other = await running.ask(chat("embed", of_user(b), stream=False))
        assert other.get("headrace-variant") is None
        assert recording.bodies[-1]["model"] == "embed"


async def test_first_tokens_of_both_arms_are_seen_where_models_are_told_apart() -> None:
    variants = {"of": {"b": {"share": "20%", "model": "small"}}, **BY_HEADER}
    async with raw_upstream(Recording(GOOD)) as old, edge(two(old.port, old.port, variants)) as running:
        for variant in ("b", "control"):
            await users_of(running, variant, ask=lambda i: chat("chat", of_user(i)))
            assert shown(running)[variant]["first_token_s"] is not None


async def test_first_tokens_are_seen_of_a_variant_whose_body_nobody_reads() -> None:
    async with raw_upstream(Recording(GOOD)) as old, raw_upstream(Recording(GOOD)) as new:
        config = two(old.port, new.port, TO_NEW)
        for table in config["upstreams"].values():
            table["kind"] = "openai"
        async with edge(config) as running:
            for variant in ("b", "control"):
                await users_of(running, variant, ask=lambda i: chat("chat", of_user(i)))
                assert shown(running)[variant]["first_token_s"] is not None


async def test_the_log_tells_the_model_that_was_asked_for_where_a_variant_goes_elsewhere() -> None:
    answered = answer(b"200 OK", b'{"usage": {"prompt_tokens": 3, "completion_tokens": 4}}')
    reading, writing = os.pipe()
    async with (
        raw_upstream(Recording(answered)) as old,
        raw_upstream(Recording(answered)) as new,
        edge(two(old.port, new.port, TO_NEW, tokens={}), access_log_fd=writing) as running,
    ):
        for variant in ("b", "control"):
            await users_of(running, variant, ask=lambda i: chat("chat", of_user(i), stream=False))
            row = shown(running)[variant]
            assert (row["prompt_tokens"], row["completion_tokens"]) == (3 * row["requests"], 4 * row["requests"])
    os.close(writing)
    with os.fdopen(reading) as log:
        lines = [orjson.loads(line) for line in log]
    assert {(line["upstream"], line["model"]) for line in lines} == {("old", "chat"), ("new", "chat")}


async def test_who_names_no_model_takes_no_part_where_models_are_told_apart() -> None:
    variants = {"of": {"b": {"share": "20%", "model": "small"}}, **BY_HEADER}
    async with raw_upstream(answering(OK)) as old, edge(two(old.port, old.port, variants)) as running:
        for i in range(20):
            assert (await running.ask(get("/v1/models", of_user(i)))).get("headrace-variant") is None
        assert [row["requests"] for row in shown(running).values()] == [0, 0]


async def test_what_an_upstream_does_counts_for_the_variant_that_was_to_use_it_and_refusals_for_nobody() -> None:
    async with raw_upstream(answering(OK)) as old, raw_upstream(sends(b"", then="reset")) as new:
        config = two(old.port, new.port, TO_NEW, rate_limit=["few"])
        config["limits"] = {"few": {"key": "header:X-User", "requests": "5/day"}}
        config["upstreams"]["new"] |= {"breaker": {"min_requests": 2}, "retry": {"attempts": 1}}
        async with edge(config) as running:
            user, *_ = [i for i in range(200) if _variant(running, i) == "b"]
            statuses = [(await running.ask(get("/x", of_user(user)))).status for _ in range(7)]
            assert statuses == [502, 502, 503, 503, 503, 429, 429]
            rows = shown(running)
            assert [rows["b"][key] for key in ("requests", "good", "gone")] == [5, 0, 0]


async def test_a_stream_that_says_that_it_failed_is_no_success_however_it_ends() -> None:
    config = two(1, 2, {"of": {"b": {"share": "20%", "model": "small"}}, **BY_HEADER})
    async with raw_upstream(Recording(STREAM + chunks(ROLE, text(b"hi"), ERROR, DONE))) as old:
        config["upstreams"]["old"] = {"servers": [f"http://127.0.0.1:{old.port}"], "kind": "openai"}
        async with edge(config) as running:
            assert (await running.ask(chat("chat", of_user(1)))).status == 200
            [row] = [row for row in shown(running).values() if row["requests"]]
            assert (row["good"], row["gone"]) == (0, 0)


async def test_a_client_that_leaves_is_neither_good_nor_bad() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
    async with (
        raw_upstream(sends(head, then="silence")) as old,
        edge(two(old.port, old.port, TO_NEW)) as running,
    ):
        client = await running.connect()
        await client.send(get("/x", of_user(1)))
        await client.until(b"half")
        client.reset()
        await old.left.wait()
        variant = _variant(running, 1)
        row = shown(running)[variant]
        while not row["gone"]:
            await running.ask(get("/y", "Connection: close", "Expect: nothing"))  # turns of the loop, refused
            row = shown(running)[variant]
        assert (row["requests"], row["gone"]) == (0, 1)


async def test_on_a_route_by_models_another_model_serves_whoever_may_use_the_one_asked_for() -> None:
    old, new = Recording(answer(b"200 OK", b'{"choices": []}')), Recording(answer(b"200 OK", b'{"choices": []}'))
    async with raw_upstream(old) as a, raw_upstream(new) as b:
        config = model_routes(a.port, b.port)
        config["model_routes"] = {
            "chat": {"aliases": ["gpt"], "upstreams": [{"to": "a"}]},
            "other": {"upstreams": [{"to": "a"}]},
            "trial": {"upstreams": [{"to": "b", "model": "new-model"}], "degrade_to": "other"},
        }
        variants = {"of": {"n": {"share": "20%", "model": "trial"}}, "models": ["chat"], **BY_HEADER}
        config["routes"] = [
            {
                "name": "r",
                "to": {"models": ["chat", "other"], "default": "chat"},
                "policies": {"auth": {"keys": "keys.yaml"}, "variants": variants},
            }
        ]
        keys = keys_file(models=["chat", "other"], upstreams=["*"])
        async with edge(config, materials={"keys.yaml": keys}) as running:

            def ask(model: str, i: int, *more: str) -> bytes:
                return chat(model, KEY, of_user(i), *more, stream=False)

            [user] = await users_of(running, "n", ask=lambda i: ask("gpt", i))
            assert new.bodies[-1]["model"] == "new-model"
            named = b'"model":"",'
            said = await running.ask(ask("", user).replace(named, b" " * len(named)))  # which names none
            assert [said.get(f"headrace-{name}") for name in ("model", "upstream", "variant")] == ["trial", "b", "n"]
            said = await running.ask(ask("other", user))
            assert [said.get(f"headrace-{name}") for name in ("model", "variant")] == ["other", None]
            said = await running.ask(ask("chat", user, "X-Prompt-Route: a"))
            assert [said.get(f"headrace-{name}") for name in ("model", "variant")] == ["chat", None]
            assert (await running.ask(ask("trial", user))).status == 404
            [control] = await users_of(running, "control", ask=lambda i: ask("chat", i))
            assert (await running.ask(ask("chat", control))).get("headrace-model") == "chat"
            assert shown(running)["n"]["requests"] == 2


OUTCOMES = {**TO_NEW, "goal": "outcome", "outcomes": {"path": "/outcomes", "within": "1h"}}


def tell(token: object, good: object = True, *fields: str) -> bytes:
    """The outcome of an answer."""
    body = orjson.dumps({"token": token, "good": good})
    lines = ("POST /outcomes HTTP/1.1", "Host: x", *(fields or (KEY,)), f"Content-Length: {len(body)}", "", "")
    return "\r\n".join(lines).encode() + body


async def test_an_outcome_comes_back_by_the_answers_token_once() -> None:
    async with raw_upstream(answering(OK)) as old:
        config = two(old.port, old.port, OUTCOMES, auth={"keys": "keys.yaml"})
        async with edge(config, materials={"keys.yaml": keys_file()}) as running:

            async def served(i: int) -> Answer:
                return await running.ask(get("/x", KEY, of_user(i)))

            tokens: dict[str, list[str]] = {"b": [], "control": []}
            for i in range(60):
                said = await served(i)
                tokens[said.get("headrace-variant") or ""].append(said.get("headrace-outcome") or "")
            asked = len(old.heads)
            assert [(await running.ask(tell(token))).status for token in tokens["b"]] == [204] * len(tokens["b"])
            assert (await running.ask(tell(tokens["control"][0], False))).status == 204
            rows = shown(running)
            assert (rows["b"]["outcomes"], rows["b"]["good_outcomes"]) == (len(tokens["b"]), len(tokens["b"]))
            assert (rows["control"]["outcomes"], rows["control"]["good_outcomes"]) == (1, 0)
            again = await running.ask(tell(tokens["b"][0]))
            assert (again.status, b"counts once" in again.body) == (409, True)
            assert shown(running)["b"]["outcomes"] == len(tokens["b"])
            assert len(old.heads) == asked  # outcomes go nowhere else


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (tell("x" * 48), 400),
        (tell("ä"), 400),
        (tell(7), 400),
        (tell("x" * 48, "yes"), 400),
        (tell("x" * 5000), 413),
        (tell("x" * 48, True, "X-Nobody: 1"), 401),
        (b"POST /outcomes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hr_test\r\nContent-Length: 0\r\n\r\n", 400),
        (b"POST /outcomes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hr_test\r\nContent-Length: 3\r\n\r\n{x}", 400),
    ],
)
async def test_what_is_no_outcome_is_refused(raw: bytes, status: int) -> None:
    async with raw_upstream(answering(OK)) as old:
        config = two(old.port, old.port, OUTCOMES, auth={"keys": "keys.yaml"})
        async with edge(config, materials={"keys.yaml": keys_file()}) as running:
            said = await running.ask(raw)
            assert said.status == status
            assert b"forwarded" not in said.body  # it never is
            assert not old.heads


async def test_a_token_ends_with_the_counts_that_it_belongs_to() -> None:
    async with raw_upstream(answering(OK)) as old:
        config = two(old.port, old.port, OUTCOMES, auth={"keys": "keys.yaml"})
        async with edge(config, materials={"keys.yaml": keys_file()}) as running:
            token = (await running.ask(get("/x", KEY, of_user(1)))).get("headrace-outcome")
            assert running.worker.order_variants("reset", "r", None, 0.0, 1.0) is None
            said = await running.ask(tell(token))
            assert (said.status, b'"code":"invalid_outcome_token"' in said.body) == (400, True)


async def test_uploads_are_not_held_for_outcomes_sake() -> None:
    recording = Recording(answer(b"200 OK"))
    async with raw_upstream(recording) as old:
        config = two(old.port, old.port, OUTCOMES, auth={"keys": "keys.yaml"})
        async with edge(config, materials={"keys.yaml": keys_file()}) as running:
            client = await running.connect()
            await client.send(
                f"POST /x HTTP/1.1\r\nHost: x\r\n{KEY}\r\nContent-Length: 16\r\n\r\n".encode() + b'{"half":'
            )
            while not old.received.endswith(b'{"half":'):
                assert await client_turn(running)
            await client.send(b' "rest"}')
            assert (await client.answer()).status == 200


async def client_turn(running: Edge) -> bool:
    """A turn of the loop that goes through the edge, refused at its gate."""
    return (await running.ask(b"GET /y HTTP/1.1\r\nHost: x\r\nExpect: nothing\r\n\r\n")).status == 417


def _variant(running: Edge, user: int) -> str:
    snapshot = running.worker._snapshot
    assert snapshot is not None
    return snapshot.variants["r"].experiment.choose(f"user-{user}", "/x").name


async def test_a_refusal_that_has_come_to_no_variant_names_none() -> None:
    async with raw_upstream(Recording(answer(b"200 OK"))) as old, raw_upstream(answering(OK)) as new:
        config = model_routes(old.port, new.port)
        variants = {"of": {"b": {"share": "20%", "headers": {"set": {"X-Trial": "b"}}}}, **BY_HEADER}
        config["routes"][0]["policies"] = {"auth": {"keys": "keys.yaml"}, "variants": variants}
        for models, status in ((["chat"], 200), (["other"], 404)):
            async with edge(config, materials={"keys.yaml": keys_file(models=models)}) as running:
                for i in range(20):
                    said = await running.ask(chat("chat", KEY, of_user(i), stream=False))
                    assert said.status == status
                    assert (said.get("headrace-variant") is None) is (status == 404)
