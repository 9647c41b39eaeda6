"""What of an answer is held back, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.exchange import Head
from proxy.llm.first_content import Told
from proxy.llm.hold import MAX_BYTES, MAX_EVENTS, Hold

ROLE = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}\n\n'
TEXT = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": null}]}\n\n'
ERROR = b'data: {"error": {"message": "out of memory"}}\n\n'
STREAM = Head(200, [(b"Content-Type", b"text/event-stream; charset=utf-8")])


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (STREAM, Told.STARTING),
        (Head(200, [(b"content-type", b"application/json")], 2), Told.CONTENT),
        (Head(200, [*STREAM.headers, (b"Content-Encoding", b"gzip")]), Told.CONTENT),
        (Head(400, [(b"Content-Type", b"application/json")], 2), Told.CONTENT),
        (Head(422, [], 2), Told.CONTENT),
        (Head(429, [], 2), Told.FAILED),
        (Head(503, STREAM.headers), Told.FAILED),
        (Head(401, [], 2), Told.FAILED),
    ],
)
def test_what_a_head_says(head: Head, told: Told) -> None:
    assert Hold().head(head) is told


def test_a_hold_for_statuses_alone_reads_no_stream() -> None:
    assert Hold({429}, reads=False).head(STREAM) is Told.CONTENT


@given(st.integers(0, 5), st.sampled_from([(TEXT, Told.CONTENT), (ERROR, Told.FAILED)]), st.data())
def test_whatever_the_pieces_nothing_is_lost(num_starting: int, last: tuple[bytes, Told], data: st.DataObject) -> None:
    stream = ROLE * num_starting + last[0]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    hold = Hold()
    told = [hold.data(stream[a:b]) for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    at = next(i for i, each in enumerate(told) if each is not Told.STARTING)
    assert told[at] is last[1]
    assert hold.taken() == stream


def test_so_many_events_and_bytes_are_held_and_no_more() -> None:
    hold = Hold()
    told = [hold.data(ROLE) for _ in range(MAX_EVENTS)]
    assert told == [Told.STARTING] * (MAX_EVENTS - 1) + [Told.CONTENT]
    hold = Hold()
    assert hold.data(b": " + b"a" * (MAX_BYTES // 2)) is Told.STARTING
    assert hold.data(b"a" * (MAX_BYTES // 2)) is Told.CONTENT
