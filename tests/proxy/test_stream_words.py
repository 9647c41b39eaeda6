"""Words of ours in a stream of events stand where they break none, whatever pieces it comes in."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.exchange import Reply
from proxy.llm.events import EventSplitter, event_data
from proxy.stream_words import StreamWords

REPLY = Reply(504, (), b'{"error":{}}')
PING = b": ping\n\n"
ENDS = [b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\r\n"]


def words(*pieces: bytes, ours: bool = True, of_model: bool = True, ping_s: float | None = 1.0) -> StreamWords:
    stream = StreamWords(ours=ours, of_model=of_model, ping_s=ping_s)
    for piece in pieces:
        stream.passed(piece)
    return stream


def test_a_quiet_stream_is_spoken_for_once_for_each_pause() -> None:
    stream = words()
    assert [stream.ping(now, 10.0) for now in (10.9, 11.0, 11.9, 12.0)] == [b"", PING, b"", PING]
    assert stream.ping(12.5, 12.0) == b""
    assert words(ping_s=None).ping(1e9, 0.0) == b""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_comment_stands_between_events_only(end: bytes, size: int) -> None:
    stream, whole = words(), b"id: 7" + end[: len(end) // 2] + b"data: a longer text" + end
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    for number, piece in enumerate(pieces):
        stream.passed(piece)
        assert stream.ping(2.0 * number + 2.0, 0.0) == (PING if number == len(pieces) - 1 else b"")


@pytest.mark.parametrize("end", ENDS)
def test_nothing_stands_behind_the_end_of_a_models_stream(end: bytes) -> None:
    stream = words(b"data: [DO", b"NE]" + end)
    assert (stream.ping(9.0, 0.0), stream.refused(REPLY)) == (b"", b"")


@given(st.lists(st.sampled_from([b"data: 1", b"\n", b"\r\n", b"\n\n", b"{", b"x" * 20]), max_size=8))
def test_a_last_event_is_one_whatever_it_stands_behind(pieces: list[bytes]) -> None:
    stream, sent = words(*pieces), b"".join(pieces)
    for last in (stream.refused(REPLY), stream.broken_off()):
        event = list(EventSplitter().feed(sent + last))[-1]
        assert event.strip() == last.strip()
        assert "error" in orjson.loads(event_data(event))


def test_only_those_are_told_who_know_such_events() -> None:
    assert words(of_model=False).refused(REPLY) == b""
    assert words(ours=False).broken_off() == b""
    assert words(ours=False).refused(REPLY) == b'data: {"error":{}}\n\n'
