"""Requests that come together or in pieces: the same answers wherever TCP cuts them."""

from __future__ import annotations

import pytest

from tests.wire.harness import OK, RawClient, answering, app, edge, raw_upstream

LOCAL = b"GET /local HTTP/1.1\r\nHost: x\r\n\r\n"
FORWARDED = b"GET /up HTTP/1.1\r\nHost: x\r\nX-A: b\r\n\r\n"
LENGTH = b"POST /local HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\nGET / HTTP/1.1\r\n\r\n"
CHUNKS = b"POST /up HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nGET\r\n0\r\nT: 1\r\n\r\n"
BODIES = {LOCAL: b"here", LENGTH: b"here", FORWARDED: b"ok", CHUNKS: b"ok"}
STREAMS = {
    "local": [LOCAL, LOCAL, LOCAL],
    "forwarded": [FORWARDED, FORWARDED, FORWARDED],
    "both": [LOCAL, FORWARDED, LOCAL, FORWARDED],
    "bodies": [CHUNKS, LOCAL, LENGTH, FORWARDED],
    "blank lines between": [LOCAL, b"\r\n" + FORWARDED, b"\r\n\r\n" + LOCAL],
}


async def hear(client: RawClient, requests: list[bytes]) -> bool:
    """The answers to these requests; False if the connection ends, as it may where a body was not awaited."""
    for request in requests:
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, BODIES[request.lstrip()])
        if answer.get("connection") == "close":
            assert request is LENGTH
            return False
    return True


@pytest.mark.parametrize("requests", STREAMS.values(), ids=STREAMS)
async def test_a_cut_between_two_reads_changes_nothing(requests: list[bytes]) -> None:
    stream = b"".join(requests)
    ends = [sum(map(len, requests[: i + 1])) for i in range(len(requests))]
    async with raw_upstream(answering(OK)) as upstream:
        config = app(upstream.port)
        config["routes"].append({"match": {"path": "/local"}, "respond": {"body": "here"}})
        async with edge(config) as running:
            for cut in range(1, len(stream)):
                client = await running.connect()
                num_whole = sum(end <= cut for end in ends)
                await client.send(stream[:cut])
                if await hear(client, requests[:num_whole]):  # so that the rest comes in a read of its own
                    await client.send(stream[cut:])
                    await hear(client, requests[num_whole:])
                client.close()
            assert not any(head.startswith(b"GET / ") for head in upstream.heads)


async def test_half_a_head_behind_an_answered_request_is_a_408() -> None:
    limits = {"limits": {"head": "100ms", "keep_alive": "60s"}}
    async with edge({"routes": [{"respond": {"body": "here"}}], "listener": limits}) as running:
        client = await running.connect()
        await client.send(LOCAL + b"GET /local HT")
        assert (await client.answer()).body == b"here"
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (408, "close")


@pytest.mark.parametrize("line", [b"GET  / HTTP/1.1", b"GET / RTSP/1.0", b"GET /  HTTP/1.1"])
@pytest.mark.parametrize("together", [False, True])
async def test_A14_a_line_behind_an_answered_request_is_held_to_its_form(line: bytes, together: bool) -> None:
    async with edge({"routes": [{"respond": {"body": "here"}}]}) as running:
        client = await running.connect()
        await client.send(LOCAL + (line[:5] if together else b""))
        assert (await client.answer()).body == b"here"
        await client.send((line[5:] if together else line) + b"\r\nHost: x\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (400, "close")
