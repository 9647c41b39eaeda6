"""Bodies that policies read before anything is forwarded, and answers that pass filters, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from proxy.answer_filter import AnswerFilter, add_filter
from proxy.chain import Chain, Policy
from proxy.exchange import Exchange, Head, Outcome, Reply
from tests.wire.harness import OK, UpstreamSide, answering, app, edge, eventually, raw_upstream, reached

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Taking(AnswerFilter):
    """Takes every ``x`` out and ends with a word."""

    def __init__(self, book: list[str]) -> None:
        self._book = book

    def head(self, x: Exchange, head: Head) -> None:
        head.content_length = None

    def data(self, data: bytes) -> bytes:
        return data.replace(b"x", b"")

    def end(self) -> bytes:
        return b"done"

    def broken(self) -> None:
        self._book.append("broken")


class Reading(Policy):
    """Reads the body, sends another one if it is told to, and writes down what it saw."""

    def __init__(self, book: list[str], *, sends: bytes | None = None, filters: bool = False) -> None:
        self._book, self._sends, self._filters = book, sends, filters

    def reads_body(self) -> bool:
        return True

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        return self._read(x) if x.body is not None else None

    async def _read(self, x: Exchange) -> None:
        assert x.body is not None
        self._book.append((await x.body.read()).decode())

    def admit(self, x: Exchange, now: float) -> Reply | None:
        if self._sends is not None and x.body is not None:
            x.body.replace(self._sends)
        if self._filters:
            add_filter(x, Taking(self._book))
        return None

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        self._book.append(str(outcome.ending))


class Refusing(Policy):
    def admit(self, x: Exchange, now: float) -> Reply | None:
        return Reply(403, close=True)


def use(monkeypatch: pytest.MonkeyPatch, *policies: Policy) -> None:
    """Put these policies behind those of every route."""
    from proxy import build

    make = build.build_chain
    monkeypatch.setattr(build, "build_chain", lambda table, env: Chain([*make(table, env).policies, *policies]))


def body_of(received: bytes) -> bytes:
    return received.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("sends", [None, b"another"])
async def test_a_body_is_read_and_sent_with_its_length(
    monkeypatch: pytest.MonkeyPatch, chunked: bool, sends: bytes | None
) -> None:
    book: list[str] = []
    use(monkeypatch, Reading(book, sends=sends))
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        if chunked:
            await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhell\r\n")
            await asyncio.sleep(0)
            await client.send(b"1\r\no\r\n0\r\n\r\n")
        else:
            await client.send(HEAD + b"Content-Length: 5\r\n\r\nhel")
            await asyncio.sleep(0)
            await client.send(b"lo")
        assert (await client.answer()).status == 200
        sent = sends or b"hello"
        assert b"Content-Length: %d\r\n" % len(sent) in upstream.heads[0]
        assert b"transfer-encoding" not in upstream.heads[0].lower()
        assert body_of(upstream.received) == sent
        await eventually(lambda: book == ["hello", "complete"])


async def test_a_client_that_waits_is_told_to_go_on_once() -> None:
    book: list[str] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(monkeypatch, Reading(book))
        async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
            client = await running.connect()
            await client.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert upstream.num_connections == 0
            await client.send(b"hello")
            assert (await client.answer()).status == 200
            assert book[0] == "hello"


async def test_who_is_refused_without_the_body_is_not_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    book: list[str] = []
    use(monkeypatch, Refusing(), Reading(book))
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        answer = await running.ask(HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert answer.status == 403
        assert book == []
        assert upstream.num_connections == 0


async def test_a_body_over_the_routes_limit_is_refused_and_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    book: list[str] = []
    use(monkeypatch, Reading(book))
    async with raw_upstream(answering(OK)) as upstream:
        config = {**app(upstream.port), "routes": [{"to": "app", "policies": {"size_limit": {"body": "4B"}}}]}
        async with edge(config) as running:
            answer = await running.ask(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
            assert answer.status == 413
            assert upstream.num_connections == 0


async def test_a_client_that_leaves_in_its_body_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    book: list[str] = []
    use(monkeypatch, Reading(book))
    async with raw_upstream(answering(OK)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(HEAD + b"Content-Length: 5\r\n\r\nhel")
        client.reset()
        await eventually(lambda: book == ["client_gone"])


async def test_a_body_that_was_read_is_sent_again_when_the_connection_was_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book: list[str] = []
    use(monkeypatch, Reading(book))
    seen = []

    async def script(side: UpstreamSide) -> None:
        while (body := await side.request()) is not None:
            seen.append(body)
            if len(seen) == 1:
                return
            await side.send(OK)

    async with raw_upstream(script) as upstream:
        config = app(upstream.port)
        async with edge(config) as running:
            answer = await running.ask(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
            assert answer.status == 200
            assert seen == [b"hello", b"hello"]


async def test_an_answer_passes_the_filter_and_is_framed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    book: list[str] = []
    use(monkeypatch, Reading(book, filters=True))
    answer_raw = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\naxbx"
    async with raw_upstream(answering(answer_raw)) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        for _ in range(2):
            await client.send(HEAD + b"Content-Length: 2\r\n\r\nhi")
            answer = await client.answer()
            assert (answer.body, answer.ending) == (b"abdone", "kept")


@pytest.mark.parametrize("who", ["upstream", "client"])
async def test_a_filter_is_told_when_the_answer_breaks_off(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    book: list[str] = []
    use(monkeypatch, Reading(book, filters=True))
    leave = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.request()
        await side.send(STREAM + b"3\r\naxb\r\n")
        await reached(leave)

    async with raw_upstream(script) as upstream, edge(app(upstream.port)) as running:
        client = await running.connect()
        await client.send(HEAD + b"Content-Length: 2\r\n\r\nhi")
        assert (await client.until(b"2\r\nab\r\n")).endswith(b"\r\n\r\n2\r\nab\r\n")
        if who == "client":
            client.reset()
            await eventually(lambda: len(book) == 3)
        leave.set()
        await eventually(lambda: len(book) == 3)
        assert book == ["hi", "broken", "client_gone" if who == "client" else "upstream_aborted"]
