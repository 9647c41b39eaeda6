"""No cache keeps what a language model has answered, and it is told what chose the answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.harness import OK, app, edge, raw_upstream
from tests.wire.models import Recording, answer, chat, get

CACHED = answer(b"200 OK", b"{}", b"Cache-Control: public, max-age=600", b"Vary: Accept-Encoding")


@pytest.mark.parametrize("stream", [True, False])
async def test_answers_on_a_route_to_a_model(stream: bool) -> None:
    async with raw_upstream(Recording(CACHED)) as upstream, edge(app(upstream.port, kind="openai")) as running:
        said = await running.ask(chat(stream=stream))
    assert said.get("cache-control") == "private, no-store"
    assert [value for name, value in said.fields if name == "Vary"] == ["Accept-Encoding", "Authorization, X-API-Key"]


async def test_the_operator_has_the_last_word() -> None:
    async with raw_upstream(Recording(CACHED)) as upstream:
        config = app(upstream.port, kind="openai")
        changes = {"response": {"set": {"Cache-Control": "private, max-age=5"}}}
        config["routes"][0]["policies"] = {"headers": changes}
        async with edge(config) as running:
            assert (await running.ask(chat())).get("cache-control") == "private, max-age=5"


@pytest.mark.parametrize(("user", "field"), [({"header": "X-User"}, "X-User"), ({"cookie": "sid"}, "Cookie")])
async def test_what_tells_users_of_variants_apart_chooses_too(user: dict[str, str], field: str) -> None:
    async with raw_upstream(Recording(CACHED)) as upstream:
        config = app(upstream.port, kind="openai")
        variants: dict[str, Any] = {"of": {"light": {"share": "10%", "model": "small"}}, "user": user}
        config["routes"][0]["policies"] = {"variants": variants}
        async with edge(config) as running:
            said = await running.ask(chat())
    assert ("Vary", f"Authorization, X-API-Key, {field}") in said.fields


async def test_other_answers_are_left_alone() -> None:
    async with raw_upstream(Recording(CACHED)) as upstream, edge(app(upstream.port)) as running:
        assert (await running.ask(chat())).get("cache-control") == "public, max-age=600"

    async def models(side: Any) -> None:
        while await side.request() is not None:
            await side.send(OK)

    async with raw_upstream(models) as upstream, edge(app(upstream.port, kind="openai")) as running:
        assert (await running.ask(get("/v1/models"))).get("cache-control") is None
