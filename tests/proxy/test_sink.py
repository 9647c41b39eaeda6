"""The sink's laws, on a transport that only remembers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.exchange import Head
from proxy.sink import Sink, reset


class Transport(asyncio.Transport):
    """Remembers what was written and how it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.end = ""

    def write(self, data: Any) -> None:
        self.pieces.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.pieces.append(b"".join(list_of_data))

    def close(self) -> None:
        self.end = "close"

    def abort(self) -> None:
        self.end = "abort"

    @property
    def sent(self) -> bytes:
        return b"".join(self.pieces)


class AtOnce:
    """An outbox that keeps nothing back."""

    def post(self, transport: Transport, data: bytes) -> None:
        transport.write(data)

    def flush(self) -> None:
        """Nothing waits."""


class Client:
    """A client whose connection may or may not go on."""

    def __init__(self, *, persists: bool = True) -> None:
        self.transport: Transport | None = Transport()
        self.outbox = AtOnce()
        self._persists = persists

    def may_persist(self) -> bool:
        return self._persists


def opened(*, method: str = "GET", version: tuple[int, int] = (1, 1), persists: bool = True) -> tuple[Sink, Transport]:
    client = Client(persists=persists)
    assert client.transport is not None
    return Sink(client, method, version, wants_more=True), client.transport


def test_head_and_first_data_leave_together() -> None:
    sink, transport = opened()
    sink.begin(Head(200, [(b"A", b"b")], 2))
    assert transport.pieces == []
    sink.data(b"ok")
    assert transport.pieces == [b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 2\r\n\r\nok"]
    sink.end()
    assert transport.pieces[1:] == []
    assert sink.persistent


def test_a_head_without_data_leaves_at_flush_once() -> None:
    sink, transport = opened()
    sink.begin(Head(200, [], None))
    sink.flush()
    sink.flush()
    assert transport.pieces == [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]


@pytest.mark.parametrize("size", [1, 8191, 8192, 100_000])
def test_chunks_are_framed_alike_however_they_are_written(size: int) -> None:
    sink, transport = opened()
    sink.begin(Head(200, [], None))
    sink.data(b"x" * size)
    sink.data(b"")
    sink.end([(b"X-Sum", b"1"), (b"Content-Length", b"7"), (b"Set-Cookie", b"a=b")])
    body = transport.sent.partition(b"\r\n\r\n")[2]
    assert body == b"%x\r\n%b\r\n0\r\nX-Sum: 1\r\n\r\n" % (size, b"x" * size)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
@pytest.mark.parametrize("length", [None, 5])
def test_an_answer_without_a_body_has_none(method: str, status: int, length: int | None) -> None:
    sink, transport = opened(method=method)
    sink.begin(Head(status, [], length))
    sink.data(b"hello")
    sink.end()
    head, _, body = transport.sent.partition(b"\r\n\r\n")
    assert body == b""
    assert (b"Content-Length" in head) == (method == "HEAD" and length is not None)
    assert b"Transfer-Encoding" not in head
    assert sink.bytes_out == 0


def test_an_old_client_gets_an_answer_that_ends_with_the_connection() -> None:
    sink, transport = opened(version=(1, 0))
    sink.begin(Head(200, [], None))
    sink.data(b"ok")
    sink.end()
    assert transport.sent == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"
    assert not sink.persistent


def test_a_connection_that_may_not_go_on_says_so() -> None:
    sink, transport = opened(persists=False)
    sink.send(Head(404, [], 2), b"no")
    assert b"Connection: close\r\n" in transport.sent
    assert not sink.persistent


async def test_an_answer_shorter_than_its_length_is_aborted() -> None:
    sink, transport = opened()
    sink.begin(Head(200, [], 5))
    sink.data(b"hell")
    sink.end()
    await asyncio.sleep(0)
    assert transport.end == "abort"
    assert not sink.persistent


async def test_nothing_follows_an_abort() -> None:
    sink, transport = opened()
    sink.begin(Head(200, [], None))
    sink.data(b"a")
    sink.abort()
    sent = transport.sent
    sink.data(b"b")
    sink.end()
    sink.abort()
    await asyncio.sleep(0)
    assert transport.sent == sent
    assert transport.end == "abort"


async def test_last_words_are_followed_by_an_end_that_framing_shows_to_be_none() -> None:
    sink, transport = opened()
    sink.begin(Head(200, [], None))
    sink.abort(b"data: {}\n\n")
    assert transport.sent.endswith(b"data: {}\n\n\r\n")
    assert transport.end == "close"


def test_a_head_of_which_nothing_was_sent_is_taken_back() -> None:
    sink, transport = opened()
    assert sink.retract()
    sink.begin(Head(200, [(b"A", b"b")], 5))
    assert sink.retract()
    sink.send(Head(502, [], 2), b"no")
    assert transport.sent == b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno"
    assert not sink.retract()


def test_a_client_that_is_gone_is_written_nothing() -> None:
    client = Client()
    sink = Sink(client, "GET", (1, 1), wants_more=True)
    client.transport = None
    sink.proceed()
    sink.send(Head(200, [], 2), b"ok")
    sink.abort()


async def test_a_connection_that_was_closed_meanwhile_is_no_fault() -> None:
    class Closed:
        def setsockopt(self, *_: object) -> None:
            raise ValueError("negative file descriptor")  # which is what uvloop says

    transport = Transport()
    transport._extra["socket"] = Closed()
    reset(transport)
    await asyncio.sleep(0)
    assert transport.end == "abort"
