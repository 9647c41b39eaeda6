"""Upstream answers: bytes in, events out, the same for every cut."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.exchange import Head
from proxy.upstream import parser
from proxy.upstream.parser import ProtocolError, ResponseParser

VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "proxy" / "answers.yaml"
CASES: list[dict[str, Any]] = yaml.safe_load(VECTORS.read_text())


class Recorder:
    """Remembers what a parser told it."""

    def __init__(self) -> None:
        self.heads: list[list[Any]] = []
        self.body = b""
        self.ends: list[list[list[str]]] = []

    def head(self, head: Head, dated: bool) -> None:
        assert not self.body
        self.heads.append([head.status, head.content_length])

    def data(self, data: bytes) -> None:
        assert len(self.heads) == 1
        assert not self.ends
        assert type(data) is bytes
        self.body += data

    def end(self, trailers: Sequence[tuple[bytes, bytes]]) -> None:
        self.ends.append([[name.decode(), value.decode()] for name, value in trailers])


def expecting(recorder: Recorder, *, head_request: bool = False) -> ResponseParser:
    """A parser that expects its first answer."""
    parser = ResponseParser()
    parser.expect(recorder, head_request=head_request)
    return parser


def parse(case: dict[str, Any], step: int) -> tuple[Recorder, ResponseParser]:
    recorder = Recorder()
    parser = expecting(recorder, head_request=case.get("method") == "HEAD")
    raw = case["raw"].encode("latin-1")
    for at in range(0, len(raw), step):
        parser.feed(memoryview(raw)[at : at + step])
    if case.get("closed"):
        assert parser.eof() == ("end" in case)
    return recorder, parser


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_answer(case: dict[str, Any], step: int) -> None:
    if "error" in case:
        with pytest.raises(ProtocolError, match=case["error"]):
            parse(case, step)
        return
    recorder, parsed = parse(case, step)
    assert recorder.heads == [case["head"]]
    assert recorder.body == case.get("data", "").encode()
    assert recorder.ends == ([case["end"]] if "end" in case else [])
    assert parsed.complete == ("end" in case)
    assert parsed.reusable == case.get("reusable", False)


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("head", "endless"),
    [
        (OK + b"X-A: ", b"a" * 1000),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a" * 1000),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-A: ", b"a" * 1000),
        (OK, b"X-A: b\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    ],
)
def test_what_is_collected_is_bounded(head: bytes, endless: bytes) -> None:
    parsed = expecting(Recorder())
    parsed.feed(memoryview(head))
    pieces = 2 * parser.MAX_HEAD_BYTES // len(endless)
    with pytest.raises(ProtocolError, match=r"exceed|more than"):
        _feed(parsed, [endless] * pieces)


def _feed(parsed: ResponseParser, pieces: list[bytes]) -> None:
    for piece in pieces:
        parsed.feed(memoryview(piece))


def test_a_long_body_is_not_what_is_bounded() -> None:
    recorder = Recorder()
    parsed = expecting(recorder)
    parsed.feed(memoryview(OK + b"Transfer-Encoding: chunked\r\n\r\n"))
    chunk = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
    for _ in range(100):
        parsed.feed(memoryview(chunk))
    assert len(recorder.body) == 1_000_000


def test_a_fault_of_the_receiver_is_its_own() -> None:
    class Faulty(Recorder):
        def head(self, head: Head, dated: bool) -> None:
            raise LookupError("ours")

    with pytest.raises(LookupError, match="ours"):
        expecting(Faulty()).feed(memoryview(OK + b"\r\n"))


KEPT = OK + b"Content-Length: 2\r\n\r\nok"


@pytest.mark.parametrize("pieces", [[KEPT], [KEPT[:-2], b"ok"], [KEPT[:-1], b"k"], [KEPT[:5], KEPT[5:]]])
@pytest.mark.parametrize("head_request", [False, True])
def test_one_answer_follows_another_however_the_first_was_cut(pieces: list[bytes], head_request: bool) -> None:
    parsed = ResponseParser()
    if head_request:
        parsed.expect(Recorder(), head_request=True)
        parsed.feed(memoryview(KEPT[:-2]))
        assert parsed.reusable
    for _ in range(3):
        recorder = Recorder()
        parsed.expect(recorder, head_request=False)
        assert not parsed.complete
        _feed(parsed, pieces)
        assert (recorder.body, recorder.ends, parsed.reusable) == (b"ok", [[]], True)


class Switching(Recorder):
    """Remembers a change of protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.switches: list[tuple[list[tuple[bytes, bytes]], bytes]] = []

    def switched(self, head: Head, behind: bytes) -> None:
        assert head.status == 101
        self.switches.append((head.headers, behind))


SWITCH = (
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nConnection: X-Hop, upgrade\r\n"
    b"X-Hop: 1\r\nUpgrade: WebSocket\r\nSec-WebSocket-Accept: a\r\nSec-WebSocket-Protocol: b\r\n\r\n"
)


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_a_change_of_protocol_that_was_asked_for_is_told_with_what_came_behind(step: int) -> None:
    recorder = Switching()
    parser = ResponseParser()
    parser.expect(recorder, head_request=False, may_switch=True)
    data = SWITCH + b"\x81\x05hello"
    for at in range(0, len(data), step):
        if recorder.switches:  # the connection is no longer the parser's
            break
        parser.feed(memoryview(data[at : at + step]))
    fields = [(b"Sec-WebSocket-Accept", b"a"), (b"Sec-WebSocket-Protocol", b"b")]
    ((headers, behind),) = recorder.switches
    assert headers == fields
    assert (b"\x81\x05hello").startswith(behind)
    assert recorder.heads == []
    assert not parser.reusable


@pytest.mark.parametrize("upgrade", [b"", b"Upgrade: h2c\r\n", b"Upgrade: websocket\r\nUpgrade: h2c\r\n"])
def test_no_change_to_another_protocol(upgrade: bytes) -> None:
    parser = ResponseParser()
    parser.expect(Switching(), head_request=False, may_switch=True)
    with pytest.raises(ProtocolError, match="WebSocket"):
        parser.feed(memoryview(b"HTTP/1.1 101 Other\r\nConnection: upgrade\r\n" + upgrade + b"\r\n"))


def test_a_change_that_is_declined_is_an_answer_like_any() -> None:
    recorder = Switching()
    parser = ResponseParser()
    parser.expect(recorder, head_request=False, may_switch=True)
    parser.feed(memoryview(b"HTTP/1.1 200 OK\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nok"))
    assert (recorder.heads, recorder.body, recorder.switches) == ([[200, 2]], b"ok", [])
    assert parser.reusable
