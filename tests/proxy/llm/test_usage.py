"""What upstreams tell of usage, in all their ways; and streams that are asked for it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.exchange import Head
from proxy.llm.usage import MAX_TOKENS, Usage, asking_for_usage, is_usage_chunk, usage_in
from proxy.llm.usage_filter import PARSED_BYTES, UsageFilter
from tests.proxy.make import exchange

TOLD = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
STREAM = [(b"Content-Type", b"text/event-stream; charset=utf-8")]
JSON = [(b"Content-Type", b"application/json")]


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        (TOLD, Usage(10, 5)),
        ({"prompt_tokens": 10, "total_tokens": 10}, Usage(10, 0)),  # embeddings
        ({"total_tokens": 12}, Usage(12, 0)),
        ({"total_tokens": 12, "completion_tokens": 5}, Usage(7, 5)),
        ({"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}}, Usage(3, 4, 2)),
        ({**TOLD, "prompt_tokens_details": {"cached_tokens": 99}}, Usage(10, 5, 10)),
        ({**TOLD, "prompt_tokens_details": None}, Usage(10, 5)),
        (None, None),
        ({}, None),
        ([10, 5], None),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": MAX_TOKENS + 1}, None),
        ({"prompt_tokens": "10"}, None),
        ({"prompt_tokens": 1e30, "total_tokens": 1}, None),  # what is odd in one place is not believed in another
        ({"prompt_tokens": 10, "completion_tokens": "5"}, None),
        ({**TOLD, "total_tokens": []}, None),
        ({"prompt_tokens": 10.0, "completion_tokens": 5.5}, None),
        ({"prompt_tokens": 10.0, "completion_tokens": 5.0, "total_tokens": None}, Usage(10, 5)),
        ({**TOLD, "prompt_tokens_details": {"cached_tokens": "x"}}, Usage(10, 5)),
    ],
)
def test_what_is_believed(told: Any, usage: Usage | None) -> None:
    assert usage_in({"usage": told}) == usage
    assert usage_in({"response": {"usage": told}}) == usage


NAMES = st.sampled_from(["usage", "prompt_tokens", "choices", "response", "x"])


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner) | st.dictionaries(NAMES, inner)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), _nested))
def test_nothing_that_is_told_does_harm(document: Any) -> None:
    usage = usage_in(document)
    assert usage is None or 0 <= usage.cached_tokens <= usage.prompt_tokens
    is_usage_chunk(document)


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        (b'{"stream":true}', b'{"stream_options":{"include_usage":true},"stream":true}'),
        (b'{"a":1, "stream_options" : null }', b'{"a":1, "stream_options" : {"include_usage":true} }'),
        (b'{"stream_options":{"include_usage":false},"n":1.0}', b'{"stream_options":{"include_usage":true},"n":1.0}'),
        (b'{"stream_options":{"x":1e2}}', b'{"stream_options":{"include_usage":true,"x":1e2}}'),
        (b'{"stream_options":{}}', b'{"stream_options":{"include_usage":true}}'),
        (b'{"stream_options":7}', None),
    ],
)
def test_L05_a_stream_is_asked_for_its_usage_and_no_other_byte_changes(asked: bytes, sent: bytes | None) -> None:
    assert asking_for_usage(asked, orjson.loads(asked)) == sent


def event(**chunk: Any) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(chunk)


def said(*words: str) -> list[bytes]:
    return [event(choices=[{"index": 0, "delta": {"content": word}}], usage=None) for word in words]


USAGE = event(choices=[], usage=TOLD)
DONE = b"data: [DONE]\n\n"


def run(answer_filter: UsageFilter, headers: list[tuple[bytes, bytes]], *pieces: bytes, end: bool = True) -> bytes:
    head = Head(200, headers, 7)
    answer_filter.head(exchange(), head)
    passed = b"".join([answer_filter.data(piece) for piece in pieces])
    return passed + (answer_filter.end() if end else b"")


@given(st.integers(1, 40), st.booleans(), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_L01_the_usage_is_taken_out_only_where_the_client_did_not_ask(size: int, takes_out: bool, end: bytes) -> None:
    whole = [*said("The", " wheel"), b": ping\n\n", USAGE, DONE]
    stream, kept = (
        b"".join(each).replace(b"\n", end) for each in (whole, [each for each in whole if each is not USAGE])
    )
    answer_filter = UsageFilter()
    answer_filter.takes_out = takes_out
    passed = run(answer_filter, STREAM, *[stream[at : at + size] for at in range(0, len(stream), size)])
    assert passed == (kept if takes_out else stream)
    assert (answer_filter.usage, answer_filter.complete) == (Usage(10, 5), True)
    assert answer_filter.completion_tokens == pytest.approx(3, abs=1)


def test_a_usage_behind_which_no_blank_line_comes() -> None:
    answer_filter = UsageFilter()
    answer_filter.takes_out = True
    assert run(answer_filter, STREAM, *said("a"), USAGE[:-2]) == said("a")[0]
    assert answer_filter.usage == Usage(10, 5)


def test_a_chunk_that_says_more_than_the_usage_stays_without_it() -> None:
    choices = [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    last = event(choices=choices, usage=TOLD)
    answer_filter = UsageFilter()
    answer_filter.takes_out = True
    assert run(answer_filter, STREAM, last) == event(choices=choices, usage=None)
    assert answer_filter.usage == Usage(10, 5)


def test_a_stream_that_breaks_off_has_shown_so_much() -> None:
    answer_filter = UsageFilter()
    run(answer_filter, STREAM, *said(*["word "] * 20), end=False)
    answer_filter.broken()
    assert (answer_filter.usage, answer_filter.complete, answer_filter.completion_tokens) == (None, False, 25)


@pytest.mark.parametrize(
    ("chunks", "tokens"),
    [
        ([{"choices": [{"delta": {"role": "assistant", "content": ""}}]}] * 3, 0),
        ([{"choices": [{"delta": {"role": "assistant", "content": ""}}]}, *[{"choices": [{"text": "ab"}]}] * 5], 5),
        ([{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{" * 40}}]}}]}], 17),
        ([{"choices": [{"delta": {"content": "x" * 400}}]}] * 2, 200),
        ([{"type": "content_block_delta", "delta": {"text": "word"}}] * 20, 12),  # unlike any that is known: 8 are seen
        ([{"choices": [None, {"delta": [], "text": 7}]}, 7, None, []], 0),
    ],
)
def test_what_a_stream_has_shown(chunks: list[Any], tokens: int) -> None:
    answer_filter = UsageFilter()
    run(answer_filter, STREAM, *[b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks], end=False)
    assert answer_filter.completion_tokens == pytest.approx(tokens, abs=2)


def test_usage_that_is_told_again_and_again_is_the_last() -> None:
    answer_filter = UsageFilter()
    run(answer_filter, STREAM, *[event(choices=[{}], usage={**TOLD, "completion_tokens": n}) for n in range(4)])
    assert answer_filter.usage == Usage(10, 3)


def test_an_answer_after_another_attempt_begins_anew() -> None:
    answer_filter = UsageFilter()
    run(answer_filter, STREAM, *said("a", "b"), USAGE, end=False)
    answer_filter.broken()
    run(answer_filter, JSON, b"{}")
    assert (answer_filter.usage, answer_filter.completion_tokens) == (None, 1)


@pytest.mark.parametrize("padding", [0, PARSED_BYTES, 3 * PARSED_BYTES])
def test_an_answer_that_is_no_stream(padding: int) -> None:
    text = 'so "usage": {"prompt_tokens": 1} ' + "x" * padding + ' "usage": {"prompt_tokens": 2}'
    document = {"choices": [{"message": {"content": text}}], "usage": TOLD, "system_fingerprint": None}
    body = orjson.dumps(document)
    answer_filter = UsageFilter()
    answer_filter.takes_out = True
    assert run(answer_filter, JSON, *[body[at : at + 999] for at in range(0, len(body), 999)]) == body
    assert answer_filter.usage == Usage(10, 5)


@pytest.mark.parametrize(
    ("document", "tokens", "failed"),
    [
        ({"choices": [{"message": {"role": "assistant", "content": "Hello there my friend"}}]}, 6, False),
        ({"choices": [{"text": "Hello there my friend"}], "usage": {"completion_tokens": "4"}}, 6, False),
        ({"choices": [{"message": {"content": "\u4f60\u597d" * 4}}] * 2}, 12, False),
        ({"choices": [{"message": {"content": None, "tool_calls": [{"function": {"name": "f"}}]}}]}, 7, False),
        ({"choices": [], "error": "x"}, 0, False),
        ({"content": [{"text": "unlike any that is known"}]}, 13, False),
        ({"error": {"message": "no", "code": 1}}, 9, True),
        ({"error": None}, 4, False),
    ],
)
def test_what_an_answer_without_usage_has_shown_is_its_text(document: Any, tokens: int, failed: bool) -> None:
    answer_filter = UsageFilter()
    run(answer_filter, JSON, orjson.dumps({"id": "chatcmpl-1", "model": "m" * 99, **document}) if "choices" in document
        else orjson.dumps(document))  # fmt: skip
    assert answer_filter.usage is None
    assert answer_filter.completion_tokens == pytest.approx(tokens, abs=1)
    assert answer_filter.failed is failed


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (JSON, b'{"usage": '),
        (JSON, b'{"usage": 7}' + b" " * PARSED_BYTES),
        (JSON, b" " * PARSED_BYTES + b'"usage": {"prompt_tokens": {{{'),
        (JSON, b" " * PARSED_BYTES + b'"usage":' + b'{"a":' * 3000),
        ([*JSON, (b"Content-Encoding", b"gzip")], orjson.dumps({"usage": TOLD})),
        ([(b"Content-Type", b"text/plain")], orjson.dumps({"usage": TOLD})),
        ([(b"Content-Encoding", b"br"), *STREAM], USAGE),
        ([], b""),
    ],
)
def test_what_cannot_be_read_passes(headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    answer_filter = UsageFilter()
    answer_filter.takes_out = True
    assert run(answer_filter, headers, body) == body
    assert answer_filter.usage is None
    assert answer_filter.completion_tokens == -(-len(body) // 4)


def test_an_event_without_end_is_let_go() -> None:
    answer_filter = UsageFilter()
    answer_filter.takes_out = True
    long = b"data: " + b"x" * 300_000
    assert run(answer_filter, STREAM, long, b"yz", USAGE) == long + b"yz" + USAGE
