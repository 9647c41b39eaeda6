"""What is never served: status and close at the client, and not one byte at the upstream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.wire.harness import OK, answering, app, edge, raw_upstream

VECTORS = Path(__file__).resolve().parent.parent / "vectors" / "wire" / "refused_requests.yaml"
CASES: list[dict[str, Any]] = yaml.safe_load(VECTORS.read_text())


@pytest.mark.parametrize("case", CASES, ids=[f"{case['id']} {case['name']}" for case in CASES])
async def test_is_refused_and_reaches_no_upstream(case: dict[str, Any]) -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(case["raw"].encode("latin-1"))
        answer = await client.answer()
        assert answer.status == case["status"]
        assert answer.raw.startswith(b"HTTP/1.1 ")
        assert answer.get("connection") == "close"
        # The connection was told to be over: what follows on it is never answered.
        await client.send(b"ET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        rest, _ = await client.rest()
        assert rest == b""
        assert upstream.received == b""


@pytest.mark.parametrize("case", CASES, ids=[f"{case['id']} {case['name']}" for case in CASES])
async def test_is_refused_however_it_is_cut(case: dict[str, Any]) -> None:
    raw = case["raw"].encode("latin-1")
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        for at in range(0, len(raw), 7):
            await client.send(raw[at : at + 7])
        answer = await client.answer()
        assert answer.status == case["status"]
        assert b"smuggled" not in upstream.received


#: Where no upstream is asked: a fixed response, a redirect, no route at all, and the port that only redirects.
LOCAL: dict[str, dict[str, Any]] = {
    "fixed": {"routes": [{"respond": {"body": "made here"}}]},
    "redirect": {"routes": [{"redirect": {"to": "https://other.example/"}}]},
    "no route": {"routes": []},
    "https elsewhere": {"routes": [], "listener": {"redirect": "https"}},
}


@pytest.mark.parametrize("local", LOCAL.values(), ids=LOCAL)
async def test_is_refused_by_what_is_answered_here_too(local: dict[str, Any]) -> None:
    async with edge(local) as running:
        for case in CASES:
            client = await running.connect()
            await client.send(case["raw"].encode("latin-1"))
            answer = await client.answer()
            assert (answer.status, answer.get("connection")) == (case["status"], "close"), case
            assert b"made here" not in answer.raw
            assert answer.get("location") is None
            await client.send(b"ET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.rest())[0] == b"", case


CODINGS = ["chunked, identity", "xchunked", "chunked,", "chunked, chunked", "gzip, chunked", "\vchunked", "chunked\t",
           "gzip\r\nTransfer-Encoding: chunked", "identity", "", '"chunked"', "chunked;q=1", "Chunked, chunked",
           "trailers", "deflate\r\nTransfer-Encoding: identity"]  # fmt: skip


@pytest.mark.parametrize("length", ["", "Content-Length: 4\r\n"], ids=["alone", "with a length"])
@pytest.mark.parametrize("coding", CODINGS)
async def test_A04_no_coding_but_one_final_chunked(coding: str, length: str) -> None:
    raw = f"POST / HTTP/1.1\r\nHost: x\r\n{length}Transfer-Encoding: {coding}\r\n\r\n0\r\n\r\n".encode("latin-1")
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(raw)
        answer = await client.answer()
        assert answer.status in (400, 501)
        assert answer.get("connection") == "close"
        await client.send(b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.rest())[0] == b""
        assert upstream.received == b""


async def test_A04_chunked_in_any_case_is_chunked() -> None:
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        raw = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \tChunKed\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
        assert (await running.ask(raw)).status == 200
        assert b"\r\nTransfer-Encoding: chunked\r\n" in upstream.heads[0]
        assert upstream.received.endswith(b"\r\n\r\n2\r\nhi\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("raw", "status", "limit"),
    [
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, b"16384"),
        (b"GET /?" + b"a" * 200_000, 414, b"16384"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nCookie: " + b"a" * 70_000 + b"\r\n\r\n", 431, b"16384"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a" * 70_000 + b": b\r\n\r\n", 431, b"16384"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 2000 + b"\r\n", 431, b"128"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + (b"X-A: " + b"b" * 9000 + b"\r\n") * 10 + b"\r\n", 431, b"65536"),
    ],
    ids=["line", "endless line", "cookie", "name", "many", "in all"],
)
@pytest.mark.parametrize("step", [1 << 20, 1000], ids=["at once", "in pieces"])
@pytest.mark.parametrize("local", [True, False], ids=["here", "upstream"])
async def test_A17_what_is_too_long_is_refused_with_the_limit(
    raw: bytes, status: int, limit: bytes, step: int, local: bool
) -> None:
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge(LOCAL["fixed"] if local else app(upstream.port)) as running,
    ):
        client = await running.connect()
        for at in range(0, len(raw), step):
            await client.send(raw[at : at + step])
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (status, "close")
        assert limit in answer.body
        assert upstream.received == b""


@pytest.mark.parametrize(
    "target", ["https://secret.example:99999/", "*secret", "http://secret\\@a/", "/secret#", "/secret%00"]
)
async def test_a_refusal_repeats_nothing_of_what_was_sent(target: str) -> None:
    async with edge(LOCAL["fixed"]) as running:
        answer = await running.ask(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.status == 400
        assert b"secret" not in answer.raw
