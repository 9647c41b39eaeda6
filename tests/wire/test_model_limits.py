"""Limits of models, beside those of the route: all must have room, and what one refuses counts under none."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.config_routes import cross_check
from tests.proxy.make import proxy_config
from tests.wire.harness import edge, raw_upstream
from tests.wire.models import Recording, answer, chat, keys_file, model_routes

GOOD = answer(b"200 OK", orjson.dumps({"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 10}}))


def limited(port: int, limits: dict[str, Any], **policies: Any) -> dict[str, Any]:
    config = model_routes(port, aliases=["gpt-4o"], limits=list(limits))
    config["model_routes"]["light"] = {"upstreams": [{"to": "a"}]}
    config["routes"] = [{"to": {"models": ["chat", "light"]}, "policies": policies}]
    config["limits"] = {"route": {"key": "all", "requests": "10/h"}, **limits}
    return config


async def test_a_model_has_limits_of_its_own() -> None:
    async with raw_upstream(Recording(GOOD)) as upstream:
        config = limited(upstream.port, {"chat-only": {"key": "all", "requests": "2/h"}}, rate_limit=["route"])
        async with edge(config) as running:
            first = await running.ask(chat("chat", stream=False))
            told = [value for name, value in first.fields if name == "RateLimit"]
            assert told[0].startswith('"chat-only";r=1;')
            assert told[1].startswith('"route";r=9;')
            assert (await running.ask(chat("gpt-4o", stream=False))).status == 200
            refused = await running.ask(chat("chat", stream=False))
            assert refused.status == 429
            assert b"chat-only" in refused.body
            light = await running.ask(chat("light", stream=False))
            assert light.status == 200
            assert (light.get("RateLimit") or "").startswith('"route";r=7;')
    assert len(upstream.heads) == 3


async def test_the_tokens_of_a_model() -> None:
    async with raw_upstream(Recording(GOOD)) as upstream:
        limits = {"chat-tokens": {"key": "all", "tokens": "100/h", "headers": ["openai"]}}
        config = limited(upstream.port, limits, tokens={}, rate_limit=["route"])
        async with edge(config) as running:
            for _ in range(2):  # each uses 40
                assert (await running.ask(chat("chat", stream=False, max_tokens=20))).status == 200
            refused = await running.ask(chat("chat", stream=False, max_tokens=20))
            assert (refused.status, refused.get("x-ratelimit-remaining-tokens")) == (429, "20")
            light = await running.ask(chat("light", stream=False, max_tokens=20))
            assert (light.status, light.get("x-ratelimit-remaining-tokens")) == (200, None)
            assert (
                light.get(
                    "RateLimit",
                )
                is not None
            )
            assert '"route";r=7;' in (light.get("RateLimit") or "")


@pytest.mark.parametrize("beside", [{}, {"idempotency": {}}])
async def test_names_of_one_model_count_as_one_in_limits_by_model(beside: dict[str, Any]) -> None:
    async with raw_upstream(Recording(GOOD)) as upstream:
        config = limited(upstream.port, {}, rate_limit=["by-model"], **beside)
        config["limits"]["by-model"] = {"key": "model", "requests": "2/h"}
        async with edge(config) as running:
            statuses = [(await running.ask(chat(name, stream=False))).status for name in ("chat", "gpt-4o", "chat")]
            assert statuses == [200, 200, 429]
            assert (await running.ask(chat("light", stream=False))).status == 200


async def test_a_limit_per_key() -> None:
    async with raw_upstream(Recording(GOOD)) as upstream:
        limits = {"per-key": {"key": ["api_key", "model"], "requests": "1/h"}}
        config = limited(upstream.port, limits, auth={"keys": "keys.yaml"})
        async with edge(config, materials={"keys.yaml": keys_file()}) as running:
            key = "Authorization: Bearer hr_test"
            assert (await running.ask(chat("chat", key, stream=False))).status == 200
            assert (await running.ask(chat("chat", key, stream=False))).status == 429


@pytest.mark.parametrize(
    ("limits", "names", "problem"),
    [
        ({}, ["chatt"], "there is no limit named 'chatt'"),
        ({"t": {"tokens": "10/h"}}, ["t"], "counts tokens, the route '*/*' none; give it the policy `tokens: {}`"),
        ({"k": {"key": "api_key", "requests": "10/h"}}, ["k"], "counts per api_key, but the route '*/*' has neither"),
    ],
)
def test_what_a_model_cannot_be_limited_by(limits: dict[str, Any], names: list[str], problem: str) -> None:
    config = proxy_config(
        upstreams={"a": {"servers": ["http://10.0.0.1"]}},
        limits=limits,
        model_routes={"chat": {"upstreams": [{"to": "a"}], "limits": names}},
        routes=[{"to": {"models": ["chat"]}}],
    )
    problems = [text for _, text in cross_check(config)]
    assert len(problems) == 1
    assert problem in problems[0]
