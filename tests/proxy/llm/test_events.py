"""Events out of a stream, however it is cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.llm.events import EventSplitter, event_data

STREAM = st.lists(st.sampled_from(["\r", "\n", "\r\n", "data: a", "data", ":ping", "x", "\n\n"]), max_size=20)


@given(STREAM, st.data())
def test_nothing_is_lost_and_each_event_ends_once(parts: list[str], data: st.DataObject) -> None:
    raw = "".join(parts).encode()
    splitter = EventSplitter()
    events: list[bytes] = []
    begin = 0
    while begin < len(raw):
        size = data.draw(st.integers(1, 5))
        events += splitter.feed(raw[begin : begin + size])
        begin += size
    rest = splitter.rest()
    assert b"".join(events) + rest == raw
    seen = [lines for event in [*events, rest] if (lines := re.split(rb"\r\n|\r|\n", event))]
    for lines in seen:
        inner = lines[:-2]
        assert b"" not in [line for line in inner if lines.index(line)]  # a blank line only ends one, or begins one
    whole = EventSplitter().feed(raw)
    assert [d for e in events if (d := event_data(e))] == [d for e in whole if (d := event_data(e))]


def test_an_event_that_is_too_long_passes_as_it_comes_and_what_follows_it_is_split_again() -> None:
    splitter = EventSplitter(max_bytes=16)
    assert splitter.feed(b"data: 1\n\ndata: ") == [b"data: 1\n\n"]
    assert not splitter.overflowed
    assert splitter.feed(b"x" * 20) == [b"data: " + b"x" * 20]
    assert splitter.overflowed
    assert splitter.feed(b"xx\n") == [b"xx\n"]
    assert splitter.feed(b"\ndata: 2\n\ndata") == [b"\n", b"data: 2\n\n"]
    assert not splitter.overflowed
    assert splitter.rest() == b"data"


@given(st.lists(st.binary(max_size=30).map(lambda text: text.replace(b"\r", b"")), max_size=8), st.data())
def test_however_long_its_events_are_nothing_is_lost(texts: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(b"data: " + text + b"\n\n" for text in texts)
    splitter, passed, begin = EventSplitter(max_bytes=12), b"", 0
    while begin < len(raw):
        size = data.draw(st.integers(1, len(raw) - begin))
        passed += b"".join(splitter.feed(raw[begin : begin + size]))
        begin += size
    assert passed + splitter.rest() == raw
    assert not splitter.overflowed


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: {}\n\n", b"{}"),
        (b"data:{}\r\n\r\n", b"{}"),
        (b"event: x\ndata: a\ndata:  b\n\n", b"a\n b"),
        (b"\ndata: a\r\r", b"a"),
        (b"data: a\n\r\n", b"a"),
        (b"data\n\n", b""),
        (b": ping\n\n", b""),
        (b"database: x\n\n", b""),
    ],
)
def test_the_data_of_an_event(event: bytes, data: bytes) -> None:
    assert event_data(event) == data
