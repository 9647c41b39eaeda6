"""Long documents by summaries: requests of the edge's own, bounded, and ended with the client's."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from tests.wire.harness import Edge, UpstreamSide, app, edge, eventually, raw_upstream, reached
from tests.wire.models import DONE, STREAM, answer, chat, chunks, model_routes, text

DOCUMENT = "".join(f"This is line {i} of it.\n" for i in range(100))
QUESTION = {"role": "user", "content": "What is in it?"}
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def with_summaries(config: dict[str, Any], **how: Any) -> dict[str, Any]:
    window = {"max_len": 200, "stride": 180, "summaries": {"tokens": 40, **how}}
    config["routes"][0]["policies"] = {
        "context_guard": {"context": 400, "reserve": "10%", "margin": "0%", "window": window}
    }
    return config


def said(content: str, **more: Any) -> bytes:
    return answer(b"200 OK", orjson.dumps({"choices": [{"message": {"content": content}}], "usage": USAGE, **more}))


class Model:
    """Summarises parts, and answers everything else with ``final``. failing: the answer to the part of this number."""

    def __init__(self, final: bytes, failing: dict[int, bytes] | None = None) -> None:
        self.final = final
        self.failing = failing or {}
        self.parts: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.num_now = self.most_at_once = 0

    async def __call__(self, side: UpstreamSide) -> None:
        while (body := await side.request()) is not None:
            document = orjson.loads(body)
            if not document["messages"][0]["content"].startswith("Summarize"):
                self.asked.append(document)
                await side.send(self.final)
                continue
            self.parts.append(document)
            self.num_now += 1
            self.most_at_once = max(self.most_at_once, self.num_now)
            at = len(self.parts)
            await asyncio.sleep(0)
            first = document["messages"][1]["content"].partition("\n")[0]
            await side.send(self.failing.get(at) or said(f"short of {first}"))
            self.num_now -= 1


def question(stream: bool = False, **more: Any) -> bytes:
    document = {"role": "user", "content": DOCUMENT}
    fields = ("Idempotency-Key: k", "X-Tag: mine")
    return chat("chat", *fields, messages=[document, QUESTION], stream=stream, user="u", **more)


def counted(running: Edge) -> dict[str, float]:
    """What the guard said of requests, by how many."""
    told = {
        status: running.worker._cells.counter("llm_request_context_length_total", "", {"status": status}).value
        for status in ("ok", "tripped", "truncated", "unsummarised")
    }
    return {status: number for status, number in told.items() if number}


async def test_every_part_is_summarised_and_the_summaries_stand_for_the_document() -> None:
    model = Model(said("it is lines"))
    async with raw_upstream(model) as upstream, edge(with_summaries(app(upstream.port, kind="openai"))) as running:
        got = await running.ask(question(max_completion_tokens=30))
        for head in upstream.heads[:-1]:
            assert b"idempotency-key" not in head.lower()
            assert b"X-Tag: mine" in head
        assert b"idempotency-key" in upstream.heads[-1].lower()
    num_parts = len(model.parts)
    assert 3 <= num_parts <= 6
    assert model.most_at_once <= 4
    for part in model.parts:
        assert (part["model"], part["user"], part["max_completion_tokens"]) == ("chat", "u", 40)
        assert "stream" not in part
    shown = "".join(part["messages"][1]["content"] for part in model.parts)
    assert all(line in shown for line in DOCUMENT.splitlines())
    (asked,) = model.asked
    summary, question_ = asked["messages"]
    assert question_ == QUESTION
    assert summary["content"].startswith(f"[Summary of part 1 of {num_parts}]\nshort of This is line 0 of it.\n\n[Summ")
    assert summary["content"].count("[Summary of part") == num_parts
    answered = orjson.loads(got.body)
    assert answered["headrace"]["summaries"] == num_parts
    assert got.get("headrace-summaries") == str(num_parts)
    assert got.get("headrace-truncated-tokens") == str(answered["headrace"]["truncated_tokens"])
    total = num_parts + 1
    assert answered["usage"] == {
        "prompt_tokens": 100 * total, "completion_tokens": 10 * total, "total_tokens": 110 * total
    }  # fmt: skip


async def test_the_answer_is_streamed_as_ever() -> None:
    model = Model(STREAM + chunks(text(b"lines"), b'data: {"choices":[],"usage":{"prompt_tokens":5}}\n\n', DONE))
    async with raw_upstream(model) as upstream, edge(with_summaries(app(upstream.port, kind="openai"))) as running:
        got = await running.ask(question(stream=True, stream_options={"include_usage": True}))
    assert got.body.count(b'"summaries":') == 2
    assert b'"prompt_tokens":%d' % (5 + 100 * len(model.parts)) in got.body
    assert got.body.endswith(DONE)


async def test_parts_go_by_the_models_upstreams_with_their_fallbacks() -> None:
    model = Model(said("lines"))

    async def broken(side: UpstreamSide) -> None:
        if await side.request() is not None:
            await side.send(answer(b"503 Service Unavailable"))

    async with raw_upstream(broken) as a, raw_upstream(model) as b:
        config = model_routes(a.port, b.port)
        config["model_routes"]["chat"]["upstreams"][1]["model"] = "org/llama"
        async with edge(with_summaries(config, at_once=1)) as running:
            got = await running.ask(question())
    assert got.status == 200
    assert got.get("headrace-upstream") == "b"
    assert {part["model"] for part in model.parts} == {"org/llama"}
    assert model.most_at_once == 1


async def test_what_one_part_is_refused_the_client_is_refused() -> None:
    busy = answer(b"429 Too Many Requests", b'{"error": {"message": "slow down"}}', b"Retry-After: 7", b"X-Secret: 1")
    model = Model(said("lines"), {2: busy})
    async with raw_upstream(model) as upstream:
        config = with_summaries(app(upstream.port, kind="openai", retry={"attempts": 1}), at_once=1)
        async with edge(config) as running:
            got = await running.ask(question())
            assert (got.status, got.get("retry-after"), got.get("x-secret")) == (429, "7", None)
            assert got.body == b'{"error": {"message": "slow down"}}'
            assert len(model.parts) == 2
            assert not model.asked
            assert (await running.ask(chat(stream=False))).status == 200
            assert counted(running) == {"unsummarised": 1, "ok": 1}
            model.failing.clear()
            assert (await running.ask(question())).status == 200
            assert counted(running) == {"unsummarised": 1, "ok": 1, "truncated": 1}


async def test_an_answer_without_a_summary_is_an_upstreams_fault() -> None:
    for wrong in (b"[]", b'{"choices": []}', b'{"choices": [{"message": {"content": null}}]}', b"{", b'"x"'):
        model = Model(said("lines"), {1: answer(b"200 OK", wrong)})
        async with raw_upstream(model) as upstream, edge(with_summaries(app(upstream.port, kind="openai"))) as running:
            got = await running.ask(question())
            assert got.status == 502
            assert orjson.loads(got.body)["error"]["code"] == "upstream_protocol_error"
        assert not model.asked


async def test_a_summary_that_is_endless_is_not_kept() -> None:
    model = Model(said("lines"), {1: said("x" * (2 << 20))})
    async with raw_upstream(model) as upstream, edge(with_summaries(app(upstream.port, kind="openai"))) as running:
        got = await running.ask(question())
    assert got.status == 502
    assert not model.asked


async def test_a_document_of_too_many_parts_is_refused() -> None:
    model = Model(said("lines"))
    async with raw_upstream(model) as upstream:
        config = with_summaries(app(upstream.port, kind="openai"), most=2)
        async with edge(config) as running:
            got = await running.ask(question())
    assert got.status == 422
    assert not model.parts


async def _nobody_left(running: Edge) -> None:
    await eventually(lambda: not running.worker._relays)


async def test_parts_end_with_a_client_that_leaves() -> None:
    arrived = asyncio.Event()

    async def silent(side: UpstreamSide) -> None:
        if await side.request() is not None:
            arrived.set()
            await side.gone()

    async with raw_upstream(silent) as upstream, edge(with_summaries(app(upstream.port, kind="openai"))) as running:
        client = await running.connect()
        await client.send(question())
        await reached(arrived)
        client.reset()
        await reached(upstream.left)
        await _nobody_left(running)
        snapshot = running.worker._snapshot
        assert snapshot is not None
        assert all(server.state.in_flight == 0 for server in snapshot.upstreams["app"].servers)


async def test_parts_keep_the_clients_deadline() -> None:
    async def silent(side: UpstreamSide) -> None:
        while await side.request() is not None:
            await side.gone()

    async with raw_upstream(silent) as upstream:
        config = with_summaries(app(upstream.port, kind="openai"))
        config["routes"][0]["policies"]["priority"] = {"longest": "200ms"}
        async with edge(config) as running:
            got = await running.ask(question())
            assert got.status == 408
            assert b"headrace-deadline: " in upstream.heads[0]
            await _nobody_left(running)


async def test_what_the_parts_have_used_is_counted() -> None:
    busy = answer(b"400 Bad Request", b'{"error": {"message": "no"}}')
    for model in (Model(said("lines")), Model(said("lines"), {3: busy})):
        async with raw_upstream(model) as upstream:
            config = with_summaries(app(upstream.port, kind="openai"), at_once=1)
            config["routes"][0]["policies"]["tokens"] = {}
            async with edge(config) as running:
                got = await running.ask(question())
                cells, route = running.worker._cells, running.config.routes[0].label
                told = {
                    kind: cells.counter("llm_tokens_total", "", {"route": route, "kind": kind}).value
                    for kind in ("prompt", "completion")
                }
        num_used = len(model.parts) + len(model.asked) - len(model.failing)
        assert (got.status, num_used) == ((400, 2) if model.failing else (200, len(model.parts) + 1))
        assert told == {"prompt": 100.0 * num_used, "completion": 10.0 * num_used}


async def test_what_was_sent_for_a_client_that_leaves_is_counted() -> None:
    arrived = asyncio.Event()

    async def silent(side: UpstreamSide) -> None:
        if await side.request() is not None:
            arrived.set()
            await side.gone()

    async with raw_upstream(silent) as upstream:
        config = with_summaries(app(upstream.port, kind="openai"), at_once=1)
        config["routes"][0]["policies"]["tokens"] = {}
        async with edge(config) as running:
            client = await running.connect()
            await client.send(question())
            await reached(arrived)
            client.reset()
            labels = {"route": running.config.routes[0].label, "kind": "prompt"}
            await eventually(lambda: running.worker._cells.counter("llm_tokens_total", "", labels).value > 100.0)
            assert len(upstream.heads) == 1
