"""What an answer says of itself: in a body, in each chunk, and not where it would change what it is."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.exchange import Head
from proxy.llm.notes import NotesFilter, add_headers
from tests.proxy.make import exchange

NOTES = {"truncated_tokens": 7}
X = exchange()


def through(kind: bytes, *pieces: bytes, usage: tuple[int, int, int] = (0, 0, 0), coding: bytes = b"") -> bytes:
    """An answer after the filter."""
    noting = NotesFilter(NOTES, usage)
    headers = [(b"Content-Type", kind)] + ([(b"Content-Encoding", coding)] if coding else [])
    noting.head(X, Head(200, headers, sum(map(len, pieces))))
    return b"".join(map(noting.data, pieces)) + noting.end()


def test_a_body_says_it() -> None:
    body = b'{"id": "a", "n": 1.0}'
    said = through(b"application/json; charset=utf-8", body[:5], body[5:])
    assert said == b'{"headrace":{"truncated_tokens":7},"id": "a", "n": 1.0}'


def test_what_the_upstream_says_of_itself_is_kept_and_added_to() -> None:
    said = through(b"application/json", b'{"headrace":{"truncated_tokens":3,"max_tokens":9}}')
    assert orjson.loads(said) == {"headrace": {"truncated_tokens": 10, "max_tokens": 9}}
    head = Head(200, [(b"Headrace-Truncated-Tokens", b"3"), (b"x", b"y")])
    add_headers(head, NOTES)
    assert head.headers == [(b"x", b"y"), (b"headrace-truncated-tokens", b"10")]
    head = Head(200, [(b"headrace-truncated-tokens", b"many")])
    add_headers(head, NOTES)
    assert head.headers[-1] == (b"headrace-truncated-tokens", b"7")


def test_usage_is_summed() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    said = orjson.loads(through(b"application/json", orjson.dumps({"usage": usage}), usage=(100, 20, 3)))
    assert said["usage"] == {
        "prompt_tokens": 110,
        "completion_tokens": 22,
        "total_tokens": 132,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


CHUNK = b'data: {"choices":[]}\n\n'
NOTED = b'data: {"headrace":{"truncated_tokens":7},"choices":[]}\n\n'


def test_each_chunk_of_a_stream_says_it() -> None:
    stream = b": hi\n\n" + CHUNK + b"data: [DONE]\n\n" + b'event: x\r\ndata: {"a":1}\r\n\r\n' + b"data: rest"
    said = through(b"text/event-stream", *(stream[i : i + 1] for i in range(len(stream))))
    noted = b'event: x\r\ndata: {"headrace":{"truncated_tokens":7},"a":1}\r\n\r\n'
    assert said == b": hi\n\n" + NOTED + b"data: [DONE]\n\n" + noted + b"data: rest"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (b"text/plain", b'{"a": 1}'),
        (b"application/json", b"[1]"),
        (b"application/json", b'{"a": 1'),
        (b"application/json", b'{"error": {"message": "no"}}'),
        (b"application/json", b""),
        (b"text/event-stream", b'data: {"error": {"message": "no"}}\n\n'),
        (b"text/event-stream", b'data: {"a":\ndata: 1}\n\n'),
        (b"text/event-stream", b"data: {not JSON}\n\n"),
        (b"text/event-stream", b"x" * 600_000),
    ],
)
def test_what_cannot_say_it_is_left_as_it_is(kind: bytes, body: bytes) -> None:
    assert through(kind, body) == body


def test_compressed_answers_and_very_long_ones_keep_their_bodies() -> None:
    assert through(b"application/json", b'{"a": 1}', coding=b"gzip") == b'{"a": 1}'
    long = [b'{"a": "'] + [b"x" * (1 << 20)] * 9 + [b'"}']
    assert through(b"application/json", *long) == b"".join(long)


def test_another_attempts_answer_begins_anew() -> None:
    noting = NotesFilter(NOTES)
    noting.head(X, Head(200, [(b"Content-Type", b"application/json")]))
    assert noting.data(b'{"a"') == b""
    noting.broken()
    noting.head(X, Head(200, [(b"Content-Type", b"text/event-stream")]))
    assert noting.data(CHUNK) == NOTED


@given(st.lists(st.sampled_from([CHUNK, b": c\n\n", b"data: [DONE]\n\n"])), st.integers(1, 40))
def test_however_a_stream_is_cut(events: list[bytes], size: int) -> None:
    stream = b"".join(events)
    said = through(b"text/event-stream", *(stream[i : i + size] for i in range(0, len(stream), size)))
    assert said == stream.replace(CHUNK, NOTED)
