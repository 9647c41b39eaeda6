"""Budgets over sockets: refused as OpenAI does, all levels or none, told in fields, settled when the client left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import http_sf
import openai
import orjson
import pytest

from proxy.build import BuildError
from proxy.config_routes import ProxyConfig
from proxy.keys import hash_key
from proxy.usage_store import UsageStore
from tests.wire.harness import Edge, RawUpstream, edge, eventually, raw_upstream, reload
from tests.wire.models import STREAM, answer, chat, chunks, sends, text

KEYS = orjson.dumps(
    {
        "keys": [
            {
                "id": name,
                "hash": hash_key(f"hr_{name}"),
                "created": "2026-01-01",
                "tenant": "acme",
                "team": team,
                **more,
            }
            for name, team, more in (
                ("ann", "search", {}),
                ("bob", "search", {}),
                ("cat", "mail", {"budgets": {"mine": {"tokens": 10_000}}}),
            )
        ]
    }
)
USAGE = {"prompt_tokens": 20, "completion_tokens": 80, "total_tokens": 100}
SAID = answer(
    b"200 OK", orjson.dumps({"choices": [{"message": {"role": "assistant", "content": "ho"}}], "usage": USAGE})
)


def config(upstream: RawUpstream, file: Path, **budgets: Any) -> dict[str, Any]:
    return {
        "upstreams": {"app": {"servers": [f"http://127.0.0.1:{upstream.port}"], "kind": "openai"}},
        "budgets": budgets,
        "usage": {"path": str(file)},
        "routes": [{"to": "app", "policies": {"auth": {"keys": "keys.yaml"}, "tokens": {}}}],
    }


@asynccontextmanager
async def serving(tmp_path: Path, *pieces: bytes, **budgets: Any) -> AsyncIterator[Edge]:
    async with raw_upstream(sends(*pieces)) as upstream:
        table = config(upstream, tmp_path / "usage.db", **budgets)
        async with edge(table, materials={"keys.yaml": KEYS}) as running:
            yield running


def ask(name: str, max_tokens: int = 100, **more: Any) -> bytes:
    return chat("m", f"Authorization: Bearer hr_{name}", stream=False, max_tokens=max_tokens, **more)


def recorded(file: Path) -> list[tuple[str, str, str, int, int, int]]:
    """(key, tenant, team, status, requests, tokens) of each row."""
    with closing(UsageStore(str(file))) as store:
        return [
            (row.key, row.tenant, row.team, row.status, sums.requests, sums.prompt_tokens + sums.completion_tokens)
            for row, sums in store.since(0.0)
        ]


async def test_all_levels_must_have_room_and_the_record_tells_who_used_it(tmp_path: Path) -> None:
    levels = {"mine": {"tokens": 350}, "teams": {"key": "team", "tokens": 450}, "box": {"key": "all", "requests": 7}}
    async with serving(tmp_path, SAID, **levels) as running:
        for _ in range(3):
            assert (await running.ask(ask("ann"))).status == 200
        refused = await running.ask(ask("ann"))
        assert refused.status == 429
        error = orjson.loads(refused.body)["error"]
        assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
        assert "50 are left of the budget mine of this API key: 350 tokens in the month from" in error["message"]
        assert refused.get("x-should-retry") == "false"  # it takes longer than a client waits
        assert int(refused.get("retry-after") or 0) >= 1
        assert (await running.ask(ask("bob"))).status == 200
        refused = await running.ask(ask("bob"))
        assert "budget teams of its team" in orjson.loads(refused.body)["error"]["message"]
        for _ in range(3):  # of another team, with an amount of its own
            assert (await running.ask(ask("cat"))).status == 200
        assert "budget box of all together: 7 requests" in (await running.ask(ask("cat"))).body.decode()
    assert recorded(tmp_path / "usage.db") == [
        ("ann", "acme", "search", 200, 3, 300),
        ("bob", "acme", "search", 200, 1, 100),
        ("cat", "acme", "mail", 200, 3, 300),
    ]


async def test_what_is_left_is_told_in_fields(tmp_path: Path) -> None:
    async with serving(
        tmp_path, SAID, mine={"tokens": 1000, "requests": 5, "per": "hour", "window": "rolling"}
    ) as running:
        told = await running.ask(ask("ann"))
        assert http_sf.parse((told.get("ratelimit-policy") or "").encode(), tltype="list") == [
            ("mine", {"q": 5, "w": 3600}),
            ("mine.tokens", {"q": 1000, "w": 3600, "qu": "tokens"}),
        ]
        (_, requests), (_, tokens) = http_sf.parse((told.get("ratelimit") or "").encode(), tltype="list")
        assert requests["r"] == 4
        assert 850 < tokens["r"] < 900  # with what may still come counted as used
        assert 3590 < tokens["t"] <= 3600 + 15
        told = await running.ask(ask("ann"))
        assert 750 < http_sf.parse((told.get("ratelimit") or "").encode(), tltype="list")[1][1]["r"] < 800


async def test_openais_client_sees_a_quota_and_does_not_repeat(tmp_path: Path) -> None:
    async with serving(tmp_path, SAID, mine={"requests": 1}) as running:
        base_url = f"http://127.0.0.1:{running.port}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="hr_ann", max_retries=3) as client:
            messages: Any = [{"role": "user", "content": "hi"}]
            await client.chat.completions.create(model="m", messages=messages, max_tokens=100)
            with pytest.raises(openai.RateLimitError) as caught:
                await client.chat.completions.create(model="m", messages=messages, max_tokens=100)
            assert caught.value.code == "insufficient_quota"
            assert "x-stainless-retry-count" not in caught.value.response.headers
            assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


async def test_a_client_that_leaves_pays_for_what_it_was_shown(tmp_path: Path) -> None:
    events = chunks(*[text(b"word ") for _ in range(10)], end=False)
    async with serving(tmp_path, STREAM, events, mine={"tokens": 150}) as running:
        client = await running.connect()
        await client.send(chat("m", "Authorization: Bearer hr_ann", max_tokens=100))
        for _ in range(10):
            await client.until(b"word ")
        assert (await running.ask(ask("ann"))).status == 429  # 100 are reserved
        client.reset()
        await eventually(lambda: not running.worker.statistics()["exchanges"])
        client = await running.connect()
        await client.send(chat("m", "Authorization: Bearer hr_ann", max_tokens=100))
        await client.until(b"word ")
        client.reset()
        await eventually(lambda: not running.worker.statistics()["exchanges"])
    ((key, _, _, status, requests, tokens),) = recorded(tmp_path / "usage.db")
    assert (key, status, requests) == ("ann", 499, 2)
    assert 20 < tokens < 100


async def test_a_reload_keeps_what_was_used_and_a_route_may_come_and_go(tmp_path: Path) -> None:
    async with raw_upstream(sends(SAID)) as upstream:
        file = tmp_path / "usage.db"

        def table(**budgets: Any) -> dict[str, Any]:
            made = config(upstream, file, **budgets)
            made["routes"][0]["policies"].pop("auth")
            return made

        async with edge(table(box={"key": "all", "requests": 2})) as running:
            assert (await running.ask(ask("x"))).status == 200
            await reload(running, table(box={"key": "all", "requests": 1}))
            assert (await running.ask(ask("x"))).status == 429
            await reload(running, table())
            assert (await running.ask(ask("x"))).status == 200
            await eventually(lambda: file.exists() and sum(row[4] for row in recorded(file)) == 2)
            await reload(running, table(box={"key": "all", "requests": 3}))  # begun again from the record
            assert [(await running.ask(ask("x"))).status for _ in range(2)] == [200, 429]


async def test_a_record_that_cannot_be_read_is_no_configuration(tmp_path: Path) -> None:
    file = tmp_path / "usage.db"
    file.write_bytes(b"something that somebody needs " * 100)
    async with raw_upstream(sends(SAID)) as upstream:
        with pytest.raises(BuildError, match=r"usage\.path: the record of usage .*/usage\.db cannot be used"):
            async with edge(config(upstream, file, mine={"tokens": 100}), materials={"keys.yaml": KEYS}):
                pass


async def test_a_budget_of_a_configuration_that_was_dropped_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "usage.db"
    async with raw_upstream(sends(SAID)) as upstream:
        table = config(upstream, file, mine={"requests": 5})
        async with edge(table, materials={"keys.yaml": KEYS}) as running:
            more = ProxyConfig.model_validate_json(
                orjson.dumps({**running.config.model_dump(mode="json"), "budgets": {"new": {"requests": 2}}})
            )
            dropped = await running.worker.build(more, {"keys.yaml": KEYS}, {})
            running.worker.discard(dropped)
            assert (await running.ask(ask("ann"))).status == 200
            await eventually(lambda: file.exists() and len(recorded(file)) == 1)
            await running.worker.commit(await running.worker.build(more, {"keys.yaml": KEYS}, {}))
            assert [(await running.ask(ask("ann"))).status for _ in range(2)] == [200, 429]
