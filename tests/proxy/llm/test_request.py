"""The view of a request for a language model: what it reads, and that nothing malformed stops it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.llm.request import view_request

CHAT = "/v1/chat/completions"
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("model", "messages", "prompt", "input", "stream", "stream_options", "max_tokens", "max_completion_tokens",
          "n", "user", "tools")  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(FIELDS), ANY | st.lists(st.fixed_dictionaries({"content": ANY, "tool_calls": ANY}))
    ),
    st.sampled_from([CHAT, "/v1/completions", "/v1/embeddings", "/x"]),
)
def test_no_body_stops_it(body: dict[str, Any], path: str) -> None:
    seen = view_request(path, body)
    if seen is not None:
        assert seen.n >= 1
        assert all(isinstance(text, str) for text in seen.texts)


def test_a_chat() -> None:
    seen = view_request(
        CHAT,
        {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 5,
            "max_completion_tokens": 7,
            "n": 2,
            "user": "u",
            "messages": [
                {"role": "system", "content": "be brief"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {}}],
                },
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
            ],
        },
    )
    assert seen is not None
    assert seen.texts == ("be brief", "what?", "f", "{}")
    assert (seen.kind, seen.model, seen.stream, seen.include_usage) == ("chat", "m", True, True)
    assert (seen.max_tokens, seen.n, seen.user, seen.num_other_parts) == (7, 2, "u", 1)


@pytest.mark.parametrize(
    ("prompt", "texts", "num_token_ids", "n"),
    [
        ("a", ("a",), 0, 2),
        (["a", "b"], ("a", "b"), 0, 4),
        ([1, 2, 3], (), 3, 2),
        ([[1, 2], [3]], (), 3, 4),
        ([], (), 0, 2),
    ],
)
def test_prompts(prompt: Any, texts: tuple[str, ...], num_token_ids: int, n: int) -> None:
    seen = view_request("/v1/completions", {"model": "m", "prompt": prompt, "n": 2})
    assert seen is not None
    assert (seen.texts, seen.num_token_ids, seen.n) == (texts, num_token_ids, n)


def test_inputs_of_embeddings_ask_for_no_tokens() -> None:
    seen = view_request("/v1/embeddings", {"model": "m", "input": ["a", "b"]})
    assert seen is not None
    assert (seen.kind, seen.texts, seen.n, seen.max_tokens) == ("embedding", ("a", "b"), 1, None)


@pytest.mark.parametrize(
    ("written", "max_tokens"),
    [(b"7", 7), (b"7.0", 7), (b"1e3", 1000), (b"18446744073709551616", 2**63 - 1), (b"1e300", 2**63 - 1),
     (b"7.5", None), (b"-1", None), (b"-1.0", None), (b"true", None), (b'"7"', None)],
)  # fmt: skip
def test_numbers_are_whole_however_they_are_written(written: bytes, max_tokens: int | None) -> None:
    seen = view_request(CHAT, orjson.loads(b'{"max_tokens": %b}' % written))
    assert seen is not None
    assert seen.max_tokens == max_tokens


def test_what_asks_nothing_of_a_model() -> None:
    assert view_request("/upload", {"name": "x"}) is None
    assert view_request(CHAT, None) is None
    assert view_request(CHAT, []) is None
    other = view_request("/v1/responses", {"model": "m", "input": "a"})
    assert other is not None
    assert (other.kind, other.texts) == ("other", ("a",))
