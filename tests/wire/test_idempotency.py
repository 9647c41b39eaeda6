"""Idempotency keys over sockets: what reaches the upstream, and what each of several senders gets."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from proxy.idempotency.sqlite_store import SqliteStore
from proxy.shared.layout import PAGE_BYTES, Geometry
from proxy.shared.owner import SharedTableOwner
from proxy.shared.table import SharedTable
from tests.wire.harness import OK, Edge, UpstreamSide, answering, app, edge, eventually, raw_upstream, reached, reload
from tests.wire.models import DONE, ERROR, ROLE, STREAM, chat, chunks, model_routes, sends, text
from tests.wire.upstreams import Gate

EVENTS = (b'data: {"n":1}\n\n', b'data: {"n":2}\n\ndata: [DONE]\n\n')


def guarded(port: int, **more: Any) -> dict[str, Any]:
    config = app(port)
    config["routes"][0]["policies"] = {"idempotency": more}
    return config


def post(key: bytes = b"k1", body: bytes = b'{"a":1}') -> bytes:
    return (
        b"POST /v1/things HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: %b\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (key, len(body), body)
    )


async def test_L22_a_b_fifty_at_once_are_carried_out_once_and_the_answer_is_given_again() -> None:
    gate = Gate()
    async with raw_upstream(gate) as upstream, edge(guarded(upstream.port)) as running:
        clients = [await running.connect() for _ in range(50)]
        for client in clients:
            await client.send(post())
        waiting = [asyncio.ensure_future(client.answer()) for client in clients]
        await eventually(lambda: gate.num_inside == 1 and sum(each.done() for each in waiting) == 49)
        gate.open.set()
        answers = await asyncio.gather(*waiting)
        assert sorted(answer.status for answer in answers) == [200] + [409] * 49
        assert {answer.get("retry-after") for answer in answers if answer.status == 409} == {"1"}
        again = await running.ask(post())
        assert (again.status, again.body, again.get("idempotent-replayed")) == (200, b"ok", "true")
        assert len(upstream.heads) == 1
        other = await running.ask(post(body=b'{"a": 1}'))
        assert other.status == 422
        assert len(upstream.heads) == 1


async def test_L22_f_a_stream_is_replayed_whole() -> None:
    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            await side.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for event in EVENTS:
                await side.send(b"%x\r\n%b\r\n" % (len(event), event))
            await side.send(b"0\r\n\r\n")

    async with raw_upstream(script) as upstream, edge(guarded(upstream.port)) as running:
        first, again = await running.ask(post()), await running.ask(post())
        assert first.body == again.body == b"".join(EVENTS)
        assert (first.get("transfer-encoding"), again.get("idempotent-replayed")) == ("chunked", "true")
        assert first.get("content-type") == again.get("content-type") == "text/event-stream"
        assert len(upstream.heads) == 1


async def _carried_out_twice(running: Edge, num_heads: list[bytes]) -> None:
    answer = await running.ask(post())
    while answer.status == 409:  # the first one's end has not arrived here
        answer = await running.ask(post())
    assert (answer.status, answer.get("idempotent-replayed")) == (200, None)
    assert len(num_heads) == 2


async def test_L22_e_a_client_that_leaves_within_the_answer_leaves_the_key_free() -> None:
    first_gone = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            await side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok")
            if not first_gone.is_set():
                first_gone.set()
                await side.gone()
                return
            await side.send(b"ok")

    async with raw_upstream(script) as upstream, edge(guarded(upstream.port)) as running:
        client = await running.connect()
        await client.send(post())
        await client.until(b"\r\n\r\nok")
        client.reset()
        await reached(upstream.left)
        await _carried_out_twice(running, upstream.heads)


@pytest.mark.parametrize("broken", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok", b""], ids=["within", "before"])
async def test_L22_e_an_answer_that_breaks_off_leaves_the_key_free(broken: bytes) -> None:
    num_asked = 0

    async def script(side: UpstreamSide) -> None:
        nonlocal num_asked
        while await side.request() is not None:
            num_asked += 1
            if num_asked == 1:
                await side.send(broken)
                side.reset()
                return
            await side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nokok")

    async with raw_upstream(script) as upstream, edge(guarded(upstream.port)) as running:
        client = await running.connect()
        await client.send(post())
        if broken:
            assert (await client.rest())[1] == "rst"
        else:
            assert (await client.answer()).status == 502
        await _carried_out_twice(running, upstream.heads)


async def test_L22_e_a_failure_of_the_upstream_leaves_the_key_free() -> None:
    async with (
        raw_upstream(answering(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")) as upstream,
        edge(guarded(upstream.port)) as running,
    ):
        assert [(await running.ask(post())).status for _ in range(3)] == [500] * 3
        assert len(upstream.heads) == 3


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize(
    "events",
    [ROLE, ERROR, ROLE + text(b"a") + ERROR + DONE],
    ids=["without content", "failed at once", "failed later"],
)
async def test_L22_e_a_stream_that_is_no_answer_leaves_the_key_free_also_if_its_length_is_known(
    events: bytes, length: bool
) -> None:
    known = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(events) + events
    async with raw_upstream(answering(known if length else STREAM + chunks(events))) as upstream:
        config = app(upstream.port, kind="openai")
        config["routes"][0]["policies"] = {"idempotency": {}}
        async with edge(config) as running:
            answers = [await running.ask(chat("chat", "Idempotency-Key: k")) for _ in range(2)]
        assert [(each.body, each.get("idempotent-replayed")) for each in answers] == [(events, None)] * 2
        assert len(upstream.heads) == 2


@pytest.mark.parametrize("key", [b"x" * 300, b"", b"a\rb", b"a\x00b"])
async def test_L22_g_no_key_is_400_and_goes_nowhere(key: bytes) -> None:
    async with raw_upstream(answering(b"")) as upstream, edge(guarded(upstream.port)) as running:
        answer = await running.ask(post(key))
        assert answer.status == 400
        assert upstream.heads == []


async def test_an_answer_without_a_body_and_a_long_body_that_is_sent_in_pieces() -> None:
    async with (
        raw_upstream(answering(b"HTTP/1.1 204 No Content\r\nX-Id: 7\r\n\r\n")) as upstream,
        edge(guarded(upstream.port)) as running,
    ):
        body = bytes(range(256)) * 4096
        for replayed in (None, "true"):
            client = await running.connect()
            raw = post(body=body)
            for at in range(0, len(raw), 100_000):
                await client.send(raw[at : at + 100_000])
            answer = await client.answer()
            assert (answer.status, answer.get("x-id"), answer.get("idempotent-replayed")) == (204, "7", replayed)
        assert upstream.received.endswith(body)
        assert len(upstream.heads) == 1


async def test_L22_f_on_a_route_by_model_the_replay_says_which_model_and_upstream_served() -> None:
    events = (ROLE, text(b"from b"), DONE)
    async with (
        raw_upstream(sends(STREAM, chunks(ROLE, end=False), then="reset")) as a,
        raw_upstream(sends(STREAM + chunks(*events))) as b,
    ):
        config = model_routes(a.port, b.port)
        config["routes"][0]["policies"] = {"idempotency": {}}
        async with edge(config) as running:
            first, again = [await running.ask(chat("chat", "Idempotency-Key: k")) for _ in range(2)]
        assert (len(a.heads), len(b.heads)) == (1, 1)
    assert first.body == again.body == b"".join(events)
    assert (first.get("idempotent-replayed"), again.get("idempotent-replayed")) == (None, "true")
    kept = ("content-type", "cache-control", "vary", "headrace-model", "headrace-upstream")
    said, said_again = ([field for field in each.fields if field[0].lower() in kept] for each in (first, again))
    # What comes as a whole is no stream that others could buffer.
    assert said == [*said_again, ("Cache-Control", "no-transform")]
    assert said_again[1] == ("Cache-Control", "private, no-store")
    assert said_again[-2:] == [("headrace-model", "chat"), ("headrace-upstream", "b")]


class SlowDisk:
    """What is written to a file of answers waits until ``written`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writing, self.written = threading.Event(), threading.Event()
        write = SqliteStore._write

        def slowly(store: SqliteStore, *answer: Any) -> int:
            self.writing.set()
            assert self.written.wait(30.0)
            return write(store, *answer)

        monkeypatch.setattr(SqliteStore, "_write", slowly)


FRAMINGS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "none": b"HTTP/1.1 204 No Content\r\n\r\n",
}


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_who_has_the_last_byte_gets_the_answer_again_while_it_is_being_written(
    framing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of another worker than that which writes it."""
    disk = SlowDisk(monkeypatch)
    owner = SharedTableOwner()
    one, other = (SharedTable.attached(owner.fd, owner.enter()) for _ in range(2))
    store = {"path": str(tmp_path / "answers.db")}
    async with raw_upstream(answering(FRAMINGS[framing])) as upstream:
        config = guarded(upstream.port, store=store)
        async with edge(config, shared=one) as running, edge(config, shared=other) as beside:
            first = await running.ask(post())
            assert first.get("idempotent-replayed") is None
            for each in (beside, running):
                again = await each.ask(post())
                assert (again.status, again.body) == (first.status, first.body)
                assert again.get("idempotent-replayed") == "true"
            assert await asyncio.to_thread(disk.writing.wait, 30.0)
            assert len(upstream.heads) == 1
            disk.written.set()
    owner.close()


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_who_has_the_last_byte_waits_for_an_answer_that_only_the_file_takes(
    framing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    store = {"path": str(tmp_path / "answers.db")}
    tiny = SharedTable.alone(Geometry(journal_bytes=PAGE_BYTES // 8))
    async with (
        raw_upstream(answering(FRAMINGS[framing])) as upstream,
        edge(guarded(upstream.port, store=store), shared=tiny) as running,
    ):
        first = await running.ask(post())
        assert (first.status, first.get("idempotent-replayed")) == (200, None)
        again = [asyncio.ensure_future(running.ask(post())) for _ in range(3)]
        assert await asyncio.to_thread(disk.writing.wait, 30.0)
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not any(each.done() for each in again)
        disk.written.set()
        for answered in await asyncio.gather(*again):
            assert (answered.status, answered.body, answered.get("idempotent-replayed")) == (200, b"ok", "true")
        assert len(upstream.heads) == 1


async def test_L22_i_a_worker_that_stops_in_peace_writes_first_what_it_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    store = {"path": str(tmp_path / "answers.db")}
    async with raw_upstream(answering(OK)) as upstream:
        async with edge(guarded(upstream.port, store=store)) as running:
            assert (await running.ask(post())).get("idempotent-replayed") is None
            stopping = asyncio.ensure_future(running.worker.drain(0.0))
            assert await asyncio.to_thread(disk.writing.wait, 30.0)
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert not stopping.done()
            disk.written.set()
            await stopping
        async with edge(guarded(upstream.port, store=store)) as restarted:
            assert (await restarted.ask(post())).get("idempotent-replayed") == "true"
        assert len(upstream.heads) == 1


async def test_L22_i_a_worker_that_stops_writes_what_was_under_way_when_its_file_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, gate = SlowDisk(monkeypatch), Gate()
    store = {"path": str(tmp_path / "answers.db")}
    async with raw_upstream(gate) as upstream, edge(guarded(upstream.port, store=store)) as running:
        first = asyncio.ensure_future(running.ask(post()))
        await eventually(lambda: gate.num_inside == 1)
        await reload(running, guarded(upstream.port, store={**store, "size": "512MiB"}))
        gate.open.set()
        assert (await first).status == 200
        stopping = asyncio.ensure_future(running.worker.drain(0.0))
        assert await asyncio.to_thread(disk.writing.wait, 30.0)
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not stopping.done()
        disk.written.set()
        await stopping


async def test_a_finished_request_is_answered_again_every_time_from_a_file(tmp_path: Path) -> None:
    store = {"path": str(tmp_path / "answers.db")}
    async with raw_upstream(answering(OK)) as upstream, edge(guarded(upstream.port, store=store)) as running:
        for number in range(30):
            client = await running.connect()
            for replayed in (None, "true"):
                await client.send(post(b"k%d" % number))
                answer = await client.answer()
                assert (answer.status, answer.get("idempotent-replayed")) == (200, replayed)


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_an_answer_that_cannot_be_kept_by_a_fault_of_ours_is_aborted_at_once_and_leaves_the_key_free(
    framing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, faults = SqliteStore.put, [RuntimeError("of the store")]

    def put_later(store: SqliteStore, *answer: Any) -> None:
        if faults:
            raise faults.pop()
        put(store, *answer)

    monkeypatch.setattr(SqliteStore, "put", put_later)
    whole = {**FRAMINGS, "close": b"HTTP/1.1 200 OK\r\n\r\nok"}[framing]
    store = {"path": str(tmp_path / "answers.db")}
    async with (
        raw_upstream(sends(whole, then="close")) as upstream,
        edge(guarded(upstream.port, store=store)) as running,
    ):
        client = await running.connect()
        await client.send(post())
        received, ending = await client.rest()
        assert received.startswith(b"HTTP/1.1 500") or ending == "rst"
        assert not received.endswith(b"0\r\n\r\n")
        for replayed in (None, "true"):
            answer = await running.ask(post())
            assert (answer.status, answer.body, answer.get("idempotent-replayed")) == (200, b"ok", replayed)


async def test_one_that_is_still_carried_out_is_not_waited_for_with_a_file(tmp_path: Path) -> None:
    gate = Gate()
    store = {"path": str(tmp_path / "answers.db")}
    async with raw_upstream(gate) as upstream, edge(guarded(upstream.port, store=store)) as running:
        first = asyncio.ensure_future(running.ask(post()))
        await eventually(lambda: gate.num_inside == 1)
        assert [(await running.ask(post())).status for _ in range(3)] == [409] * 3
        gate.open.set()
        assert (await first).status == 200
        assert (await running.ask(post())).get("idempotent-replayed") == "true"


async def test_the_access_log_calls_an_answer_that_is_given_again_complete() -> None:
    reading, writing = os.pipe()
    async with (
        raw_upstream(answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")) as upstream,
        edge(guarded(upstream.port), access_log_fd=writing) as running,
    ):
        for _ in range(2):
            assert (await running.ask(post())).status == 404
        assert (await running.ask(post(body=b"other"))).status == 422
    os.close(writing)
    with os.fdopen(reading) as lines:
        endings = [(line["status"], line["ending"]) for line in map(json.loads, lines)]
    assert endings == [(404, "complete"), (404, "complete"), (422, "refused")]
