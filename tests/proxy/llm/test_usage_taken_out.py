"""Usage that the client has not asked for does not reach it, whatever it comes with; and no other byte is touched."""

from __future__ import annotations

import pytest

from proxy.answer_filter import finish, pass_through
from proxy.exchange import Head
from proxy.llm.usage import Usage
from proxy.llm.usage_filter import UsageFilter
from tests.proxy.make import exchange

TEXT = b'data: {"choices": [{"delta": {"content": "hi"}}], "usage": null}\n\n'
TOLD = b'"usage": {"prompt_tokens": 5, "completion_tokens": 9}'
LAST = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}], %b, "x": 1.50}\n\n'
ALONE = b'data: {"choices": [], %b}\n\n' % TOLD
SPEAKS = b'data: {"choices": [{"delta": {"content": "\\"usage\\": {}"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def passed(stream: bytes, size: int, *, takes_out: bool = True) -> tuple[bytes, Usage | None]:
    answer_filter = UsageFilter()
    answer_filter.takes_out = takes_out
    answer_filter.head(exchange(), Head(200, [(b"Content-Type", b"text/event-stream")]))
    out = b"".join(pass_through([answer_filter], stream[begin : begin + size]) for begin in range(0, len(stream), size))
    return out + finish([answer_filter]), answer_filter.usage


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_that_of_the_last_chunk_with_choices_becomes_null(size: int) -> None:
    stream = TEXT + SPEAKS + LAST % TOLD + DONE
    assert passed(stream, size) == (TEXT + SPEAKS + LAST % b'"usage": null' + DONE, Usage(5, 9))
    assert passed(stream, size, takes_out=False) == (stream, Usage(5, 9))


def test_that_of_an_event_on_several_lines_too() -> None:
    event = b'data: {"choices": [{"delta": {}}],\r\ndata: %b}\r\n\r\n' % TOLD
    out, usage = passed(event + DONE, 1 << 20)
    assert (out, usage) == (b'data: {"choices": [{"delta": {}}],"usage": null}\n\n' + DONE, Usage(5, 9))


@pytest.mark.parametrize("size", [4096, 65536, 1 << 30])
def test_that_which_comes_after_an_event_that_is_too_long_to_be_read(size: int) -> None:
    long = b'data: {"choices": [{"delta": {"content": "%b"}}]}\n\n' % (b"x" * 3_000_000)
    assert passed(TEXT + long + ALONE + DONE, size) == (TEXT + long + DONE, Usage(5, 9))
