"""Chat completions when something goes wrong: failures, full queues, clients that leave or take nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from engine.wire import openai_respond
from engine.wire.openai_answer import Reply
from tests.engine.wire.chat_errors import assert_openai_error
from tests.fakes_engine import (
    END,
    FakeDecoder,
    chat_model,
    echo,
    engine,
    read_events,
    streamed_text,
    until,
)


async def test_E10_a_failure_before_the_first_token_has_its_own_status(tmp_path: Path) -> None:
    def fail(rows: Any) -> None:
        if len(rows[0].tokens) > 1:
            raise RuntimeError("no memory")

    decoder = FakeDecoder()
    async with engine(tmp_path, chat_model(decoder)) as served:
        decoder.before_run = fail
        streamed = await served.post(stream=True)
        whole = await served.post()
        decoder.before_run = lambda rows: None
        after = await served.post()
    assert streamed.status == whole.status == 500
    assert_openai_error(streamed.json)
    assert b"no memory" not in streamed.raw
    assert after.text == "hi"


async def test_E10_a_failure_in_mid_stream_is_an_error_event_without_a_reason_or_done(tmp_path: Path) -> None:
    decoder = FakeDecoder()
    begun = threading.Event()

    def fail(rows: Any) -> None:
        if any(len(decoder.held.get(row.slot, [])) > 22 for row in rows):
            assert begun.wait(30)  # sooner, it would be a failure before the first token
            raise RuntimeError("lost")

    async with engine(tmp_path, chat_model(decoder)) as served:
        decoder.before_run = fail
        async with served.open_stream(messages=[{"role": "user", "content": "hello"}]) as response:
            raw = await response.content.readuntil(b"\n\n")
            begun.set()
            events = read_events(raw + await response.read())
        decoder.before_run = lambda rows: None
        after = await served.post()
    assert response.status == 200
    assert_openai_error(events[-1])
    assert "[DONE]" not in events
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert after.text == "hi"


async def test_L19_a_row_of_nan_fails_alone(tmp_path: Path) -> None:
    decoder = FakeDecoder(nan_when=lambda read: ord("!") in read)
    async with engine(tmp_path, chat_model(decoder)) as served:
        asks = [served.post(messages=[{"role": "user", "content": text}]) for text in ("good", "bad!", "fine")]
        good, bad, fine = await asyncio.gather(*asks)
    assert (good.text, fine.text, bad.status) == ("good", "fine", 500)
    assert_openai_error(bad.json)


async def test_O07_more_requests_than_slots_are_all_answered_with_their_own_words(tmp_path: Path) -> None:
    decoder = FakeDecoder(slots=4)
    model = chat_model(decoder)
    async with engine(tmp_path, model) as served:

        async def ask(number: int) -> bool:
            nonce = f"{number:03}" * (1 + number * 7 % 40)
            messages = [{"role": "user", "content": nonce}]
            request = served.post(messages=messages, stream=number % 2 == 0)
            if number % 5 == 4:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(request, 0.001)
                return True
            answer = await request
            return nonce == (streamed_text(answer.events) if number % 2 == 0 else answer.text)

        assert all(await asyncio.gather(*(ask(number) for number in range(30))))
        await until(lambda: not model.lane.scheduler.running and not model.lane.scheduler.waiting)
        await until(lambda: served.serving.num_inside == 0)
    assert not decoder.held
    assert max(len(run) for run in decoder.runs) == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_O04_a_full_queue_is_a_503_with_retry_after_before_any_head(tmp_path: Path, stream: bool) -> None:
    decoder = FakeDecoder(slots=2)
    async with engine(tmp_path, chat_model(decoder, max_queue=3)) as served:
        decoder.gate.clear()
        asks = [asyncio.ensure_future(served.post(stream=stream)) for _ in range(12)]
        await until(lambda: sum(ask.done() for ask in asks) == 7)
        refused = [ask.result() for ask in asks if ask.done()]
        decoder.gate.set()
        answers = await asyncio.gather(*asks)
    for answer in refused:
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json["error"]["code"] == "queue_full"
    assert sum(answer.status == 200 for answer in answers) == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_O02_a_client_that_leaves_gives_its_slot_back(tmp_path: Path, stream: bool) -> None:
    decoder = FakeDecoder(lambda read, chosen: ord("y"), slots=1, context=100000)
    model = chat_model(decoder)
    async with engine(tmp_path, model) as served:
        body = json.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "x"}]}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(served.socket_path)
            client.sendall(head + body)
            await until(lambda: bool(model.lane.scheduler.running))
        await until(lambda: not model.lane.scheduler.running)
        await until(lambda: served.serving.num_inside == 0)
        decoder.script = echo
        assert (await served.post()).text == "hi"


async def test_O02_clients_that_leave_at_any_moment_leave_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random = Random(7)
    decoder = FakeDecoder(lambda read, chosen: ord("y"), slots=3, context=2000)
    model = chat_model(decoder, max_queue=1000)
    async with engine(tmp_path, model) as served:

        async def leave(number: int) -> None:
            content = "x" * random.choice((1, 100, 1500))
            stream = number % 2 == 0
            body = json.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": content}]})
            request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            request += body.encode()
            reader, writer = await asyncio.open_unix_connection(served.socket_path)
            writer.write(request[: random.randrange(len(request))] if number % 5 == 0 else request)
            for _ in range(random.choice((0, 1, 5, 30))):
                await asyncio.sleep(0)
            if stream and number % 3 == 0 and number % 5:
                await reader.readexactly(random.choice((1, 200, 2000)))
            if number % 2:
                writer.transport.abort()
            writer.close()

        await asyncio.gather(*(leave(number) for number in range(100)))
        await until(lambda: served.serving.num_inside == 0)
        await until(lambda: not model.lane.scheduler.running and not model.lane.scheduler.waiting)
        assert served.serving.num_body_bytes == model.admission.num_inside == 0
        decoder.script = echo
        assert (await served.post()).text == "hi"
    assert not decoder.held
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


async def test_a_reader_that_takes_nothing_is_parked_and_stalls_nobody(tmp_path: Path) -> None:
    decoder = FakeDecoder(lambda read, chosen: ord("y") if ord("z") in read else END, context=1 << 20)
    model = chat_model(decoder)
    async with engine(tmp_path, model) as served:
        body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "z"}]}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            client.connect(served.socket_path)
            client.sendall(head + body)
            await until(lambda: bool(model.lane.scheduler.running))
            slow = model.lane.scheduler.running[0]
            counts: list[int] = []  # a handler that is only late parks its sequence too, but not for long

            def stands_still() -> bool:
                counts.append(slow.num_output_tokens)
                return slow.parked and len(counts) > 40 and counts[-40] == counts[-1]

            await until(stands_still)
            made = slow.num_output_tokens
            assert (await served.post()).text == ""
            assert slow.num_output_tokens == made
            loop = asyncio.get_running_loop()
            for _ in range(200):
                await loop.sock_recv(client, 65536)
                if slow.num_output_tokens > made:
                    break
            await until(lambda: slow.num_output_tokens > made)
        await until(lambda: not model.lane.scheduler.running)


async def test_a_reader_that_takes_nothing_for_too_long_loses_its_place_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(openai_respond, "SEND_TIMEOUT_S", 0.05)
    model = chat_model(FakeDecoder(lambda read, chosen: ord("y"), context=1 << 20))
    async with engine(tmp_path, model) as served:
        body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(served.socket_path)
            client.sendall(head + body)
            await until(lambda: bool(model.lane.scheduler.running))
            await until(lambda: not model.lane.scheduler.running)
            await until(lambda: served.serving.num_inside == 0)
    assert "took nothing" in caplog.text
    assert "Traceback" not in caplog.text


async def test_bodies_that_would_be_too_much_together_are_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.wire.body.BODIES_TOGETHER", 2)
    async with engine(tmp_path, chat_model(FakeDecoder()), max_body_bytes=1000) as served:
        writers = []
        for _ in range(2):
            _, writer = await asyncio.open_unix_connection(served.socket_path)
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + b" " * 990)
            writers.append(writer)
        await until(lambda: served.serving.num_body_bytes == 1980)
        refused = await served.post()
        for writer in writers:
            writer.close()
        await until(lambda: served.serving.num_body_bytes == 0)
        assert (await served.post()).text == "hi"
    assert refused.status == 503
    assert refused.headers["Retry-After"] == "1"


async def test_E07_a_silent_stream_has_its_head_early_and_carries_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_respond, "HEAD_WAIT_S", 0.01)
    monkeypatch.setattr(openai_respond, "SILENCE_S", 0.02)
    decoder = FakeDecoder()
    async with engine(tmp_path, chat_model(decoder)) as served:
        decoder.gate.clear()
        async with served.open_stream() as response:
            seen = b""
            while seen.count(b": ping\n\n") < 3:
                seen += await response.content.readany()
            decoder.gate.set()
            seen += await response.read()
    assert response.status == 200
    assert streamed_text(read_events(seen)) == "hi"
    assert seen.endswith(b"data: [DONE]\n\n")


async def test_O05_a_request_inside_a_run_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_respond, "SILENCE_S", 0.02)
    decoder = FakeDecoder()
    async with engine(tmp_path, chat_model(decoder), hang_s=0.1) as served:
        decoder.gate.clear()
        answer = await served.post()
        decoder.gate.set()
    assert answer.status == 503
    assert answer.json["error"]["code"] == "engine_unavailable"


async def test_O05_a_stream_inside_a_run_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_respond, "HEAD_WAIT_S", 0.0)
    monkeypatch.setattr(openai_respond, "SILENCE_S", 0.02)
    decoder = FakeDecoder()
    async with engine(tmp_path, chat_model(decoder)) as served:
        decoder.gate.clear()
        async with served.open_stream() as response:
            raw = await response.content.readuntil(b": ping\n\n")
            served.serving.hang_s = 0.0  # sooner, it would be a failure before the head
            events = read_events(raw + await response.read())
        decoder.gate.set()
    assert response.status == 200
    assert events[-1]["error"]["code"] == "engine_unavailable"


async def test_a_fault_after_the_head_breaks_the_stream_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine(tmp_path, chat_model(FakeDecoder())) as served:
        with monkeypatch.context() as patch:
            patch.setattr(Reply, "piece", lambda *arguments: 1 / 0)
            with pytest.raises(aiohttp.ClientPayloadError):
                await served.post(stream=True)
        assert (await served.post()).text == "hi"
    assert "a stream broke off" in caplog.text
