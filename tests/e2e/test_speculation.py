"""Prompt look-up over HTTP: an engine that reads ahead says what one says that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bench.serving import engine_alone
from bench.sse_client import Server
from tests.e2e.appliance import CHAT

TEXT = "The old mill stands by the river. Its wheel turns slowly, and the miller counts sacks of flour until dusk."
QUESTION = [{"role": "user", "content": f"Repeat this text word for word: {TEXT}"}]
RECIPES: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.3, "seed": 7}]


async def answers(server: Server) -> tuple[list[str], float]:
    """What is said to the question, by recipe; draft tokens that were right."""
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(server.socket_path)) as session:
        texts = []
        for recipe in RECIPES:
            body = {"model": CHAT, "messages": QUESTION, "max_tokens": 48, **recipe}
            async with session.post("http://engine/v1/chat/completions", json=body) as response:
                assert response.status == 200
                texts.append((await response.json())["choices"][0]["message"]["content"])
        async with session.get("http://engine/metrics") as response:
            metrics = (await response.text()).splitlines()
    (line,) = (line for line in metrics if line.startswith("headrace_engine_accepted_tokens_total{"))
    return texts, float(line.split()[-1])


@pytest.mark.model
async def test_an_answer_that_quotes_is_the_same_with_look_up_and_without(models: Path) -> None:
    flags = ("--slots", "1", "--context", "512")
    with engine_alone(models / CHAT, *flags) as (server, _):
        texts, num_accepted = await answers(server)
    with engine_alone(models / CHAT, *flags, "--no-speculation") as (server, _):
        plain, num_without = await answers(server)
    assert texts == plain
    assert TEXT[40:] in texts[0]
    assert num_accepted > 10
    assert num_without == 0
