"""The policy ``tokens``: what is reserved, and what is settled."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from aiohttp.streams import EMPTY_PAYLOAD

from proxy.body import RequestBody
from proxy.cells import Cells
from proxy.exchange import Ending, Outcome
from proxy.held_body import HeldBody, HeldBytes
from proxy.llm.context import SENT, USED
from proxy.llm.count import PromptTokens, count_texts
from proxy.llm.encodings import text_counter
from proxy.llm.usage import Usage
from proxy.policy.tokens import GUESSED_BYTES
from tests.proxy.make import COMPLETE, exchange
from tests.proxy.policy.token_requests import (
    CHAT,
    DEADLINE,
    FAILED,
    GONE,
    HI,
    HI_TOKENS,
    STREAM,
    admit,
    answer,
    end,
    left,
    limited,
    post,
    told,
)


@pytest.mark.parametrize(
    ("asked", "path", "reserved"),
    [
        (HI, CHAT, HI_TOKENS + 1024),
        ({**HI, "max_tokens": 100}, CHAT, HI_TOKENS + 100),
        ({**HI, "max_tokens": None, "n": None, "stream_options": None}, CHAT, HI_TOKENS + 1024),  # L05
        ({**HI, "max_tokens": 9, "max_completion_tokens": 7}, CHAT, HI_TOKENS + 7),
        ({**HI, "max_tokens": 100, "n": 3}, CHAT, HI_TOKENS + 300),  # L08
        ({**HI, "max_tokens": 10**9}, CHAT, HI_TOKENS + 8192),
        ({"model": "m", "prompt": "the wheel", "max_tokens": 5}, "/v1/completions", 2 + 5),
        ({"model": "m", "prompt": ["the", "wheel"], "max_tokens": 5}, "/v1/completions", 2 + 10),
        ({"model": "m", "prompt": [[1, 2], [3]], "max_tokens": 0}, "/v1/completions", 3),
        ({"model": "m", "input": "the wheel"}, "/v1/embeddings", 2),
        ({"model": "m", "input": [1, 2, 3]}, "/v1/embeddings", 3),  # M02
        ({"model": "m", "input": ["the", "wheel"]}, "/v1/responses", 2),
        ({"model": "m"}, "/v1/rerank", 0),
        ({"model": "m", "input": ""}, "/v1/embeddings", 0),  # M04: what is wrong with it the upstream says
        ({"model": "m", "input": ["a", "", None, 1.5, ["b"]]}, "/v1/embeddings", 1),
        ({"model": "m", "messages": {}, "max_tokens": -1, "n": 0}, CHAT, 1024),  # L11
        ({"model": 7, "messages": [None, "x", {"content": [7, {"text": "hi"}]}], "max_tokens": "9"}, CHAT, 1033),
        ({**HI, "messages": [{"role": "assistant", "content": None, "tool_calls": None}]}, CHAT, 5 + 3 + 1024),  # L10
        ({"name": "of no model"}, "/v1/files", 0),
    ],
)
def test_what_is_reserved(asked: dict[str, Any], path: str, reserved: int) -> None:
    assert left(admit(limited(), post(asked, path))) == 100_000 - reserved


def test_L08_usage_of_several_answers_counts_the_prompt_once() -> None:
    served_by = limited()
    x = post({**HI, "n": 3, "max_tokens": 100})
    admit(served_by, x)
    answer(x, told(10, 150))
    assert end(served_by, x) == Usage(10, 150)
    assert left(admit(served_by, post({**HI, "max_tokens": 1}))) == 100_000 - 160 - HI_TOKENS - 1


def test_L13_control_tokens_in_a_text_are_text() -> None:
    text = "explain <|endoftext|> and <|fim_prefix|> please"
    for encoding in ("o200k", "cl100k"):
        counted = count_texts([text], text_counter(encoding))
        asked = {"model": "m", "prompt": text, "max_tokens": 1}
        assert left(admit(limited({"encoding": encoding}), post(asked, "/v1/completions"))) == 100_000 - counted - 1


@pytest.mark.parametrize(
    "body",
    [b"[" * 1000, b'{"max_tokens":1,"max_tokens":100000,"messages":[]}', b'{"a":NaN}', b"\xff\xfe", b"7"],
    ids=["deep", "doubled", "nan", "bytes", "number"],
)
def test_L20_a_body_that_only_the_upstream_may_understand_is_guessed(body: bytes) -> None:
    served_by = limited()
    x = post(body)
    assert left(admit(served_by, x)) == 100_000 - -(-len(body) // 4) - 1024
    answer(x, told(10, 20_000))
    assert end(served_by, x) == Usage(10, 20_000)


@pytest.mark.parametrize(
    ("path", "length", "level", "reserved"),
    [
        (CHAT, 4000, "normal", 1000 + 1024),
        (CHAT, 4000, "high", 1000 + 512),
        (CHAT, 4000, "low", 1000 + 2048),
        (CHAT, None, "normal", GUESSED_BYTES // 4 + 1024),
        ("/v1/embeddings", 4001, "normal", 1001),
        ("/v1/files", 4000, "normal", 0),
    ],
)
def test_what_is_not_read_is_guessed_from_path_size_and_priority(
    path: str, length: int | None, level: str, reserved: int
) -> None:
    served_by = limited({"read": "0B"})
    assert not served_by.reads_body
    x = post(HI, path, read=False, content_length=length)
    x.scratch["priority"] = level
    assert left(admit(served_by, x)) == 100_000 - reserved


def test_a_body_larger_than_is_read_is_guessed() -> None:
    served_by = limited({"read": "1KiB", "answer": 10})
    assert left(admit(served_by, post(b" " * 1025))) == 100_000 - 257 - 10
    assert left(admit(served_by, post({**HI, "x": "y" * 500}, key="other"))) == 100_000 - HI_TOKENS - 10


def test_an_upload_is_not_read_but_its_answer_is() -> None:
    served_by = limited()
    x = exchange("/v1/audio/transcriptions", [("Content-Type", "multipart/form-data")], method="POST", has_body=True)
    x.body = HeldBody(x, RequestBody(EMPTY_PAYLOAD), HeldBytes())
    assert served_by.gather_rest(x) is None
    admit(served_by, x)
    answer(x, told(30, 4))
    assert end(served_by, x) == Usage(30, 4)


def test_requests_without_a_body_cost_nothing() -> None:
    served_by = limited()
    x = exchange("/v1/models", [("X-Key", "k")])
    assert left(admit(served_by, x)) == -1
    assert x.filters is None
    assert end(served_by, x) is None


@pytest.mark.parametrize("outcome", [GONE, DEADLINE, Outcome(Ending.UPSTREAM_ABORTED, 200)])
def test_who_leaves_in_the_answer_has_used_what_was_shown(outcome: Outcome) -> None:
    served_by = limited()
    x = post({**HI, "stream": True})
    admit(served_by, x)
    answer(x, *[b'data: {"choices":[{"delta":{"content":"wheel"}}]}\n\n'] * 7, headers=STREAM)
    assert end(served_by, x, outcome) == Usage(HI_TOKENS, 9, 0, True)
    assert left(admit(served_by, post({**HI, "max_tokens": 1}))) == 100_000 - HI_TOKENS - 9 - HI_TOKENS - 1


@pytest.mark.parametrize(
    ("outcome", "sent", "usage"),
    [
        (GONE, True, Usage(HI_TOKENS, 0, 0, True)),  # the upstream had it and may have begun
        (DEADLINE, True, Usage(HI_TOKENS, 0, 0, True)),
        (GONE, False, None),
        (FAILED, True, None),
        (Outcome(Ending.REFUSED, 503), False, None),
        (Outcome(Ending.REFUSED, 413, "request body"), True, None),
    ],
)
def test_requests_without_an_answer(outcome: Outcome, sent: bool, usage: Usage | None) -> None:
    served_by = limited()
    x = post(HI)
    admit(served_by, x)
    x.connected_at = 1.0 if sent else 0.0
    assert end(served_by, x, outcome) == usage
    used = 0 if usage is None else usage.total_tokens
    assert left(admit(served_by, post({**HI, "max_tokens": 1}))) == 100_000 - used - HI_TOKENS - 1


@pytest.mark.parametrize("outcome", [COMPLETE, Outcome(Ending.REFUSED, 502)])
def test_what_requests_of_our_own_have_used_counts_too(outcome: Outcome) -> None:
    served_by = limited()
    x = post(HI)
    x.scratch[SENT] = PromptTokens(500, False)
    assert left(admit(served_by, x)) == 100_000 - 500 - 1024
    x.scratch[USED] = (300, 40, 7)
    if outcome is COMPLETE:
        answer(x, told(10, 5))
    assert end(served_by, x, outcome) == (Usage(310, 45, 7) if outcome is COMPLETE else Usage(300, 40, 7))


def test_who_leaves_in_the_upload_has_used_nothing() -> None:
    served_by = limited({"read": "0B"})
    x = post(HI, read=False, bytes_in=3)
    admit(served_by, x)
    x.connected_at = 1.0
    assert end(served_by, x, GONE) is None


def test_a_refusal_of_the_upstream_costs_nothing_unless_it_says_so() -> None:
    served_by = limited()
    for body, used in ((b'{"error":{}}', None), (told(5, 0), Usage(5, 0))):
        x = post(HI)
        admit(served_by, x)
        answer(x, body, status=400)
        assert end(served_by, x) == used


def test_an_answer_that_tells_nothing_is_estimated() -> None:
    for path, completion in ((CHAT, 25), ("/v1/embeddings", 0)):
        served_by = limited()
        x = post({**HI, "input": "hi"}, path)
        admit(served_by, x)
        answer(x, b"x" * 100, headers=[])
        assert end(served_by, x) == Usage(HI_TOKENS if path == CHAT else 1, completion, 0, True)
    served_by = limited()
    x = post({"no": "model"}, "/v1/files")
    admit(served_by, x)
    answer(x, b"x" * 100)
    assert end(served_by, x) is None


def test_what_was_never_admitted_is_not_settled() -> None:
    served_by = limited({}, requests="1/day", tokens="100/day")
    refused = post(HI)
    assert admit(served_by, refused).status == 429
    assert end(served_by, refused) is None
    small = {**HI, "max_tokens": 1}
    assert admit(served_by, post(small)).status == 200  # the refused one is not counted among the requests either
    assert admit(served_by, post(small)).status == 429


def test_debt_is_bounded() -> None:
    for debt, wait_s in (("0%", 1.0), ("50%", 1.5), ("100%", 2.0)):
        served_by = limited({"debt": debt}, tokens="100/s")
        x = post({**HI, "max_tokens": 10})
        admit(served_by, x)
        answer(x, told(9, 10**6))
        end(served_by, x)
        small = {"model": "m", "input": "hi"}
        assert admit(served_by, post(small, "/v1/embeddings"), wait_s - 0.995).status == 429
        assert admit(served_by, post(small, "/v1/embeddings"), wait_s - 0.98).status == 200


def test_a_stream_is_asked_for_its_usage_which_only_we_see() -> None:
    served_by = limited()
    x = post({**HI, "stream": True})
    admit(served_by, x)
    assert x.body is not None
    assert orjson.loads(x.body.data or b"") == {**HI, "stream": True, "stream_options": {"include_usage": True}}
    assert x.content_length == len(x.body.data or b"")
    assert b"accept-encoding" in x.drop
    said = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'
    assert (
        answer(x, said, b"data: %b\n\n" % told(9, 1), b"data: [DONE]\n\n", headers=STREAM) == said + b"data: [DONE]\n\n"
    )
    assert end(served_by, x) == Usage(9, 1)


@pytest.mark.parametrize(
    ("policy", "asked", "path"),
    [
        ({}, {**HI, "stream": True, "stream_options": {"include_usage": True}}, CHAT),
        ({}, {**HI, "stream": False}, CHAT),
        ({}, {**HI, "stream": True, "stream_options": 7}, CHAT),
        ({"include_usage": False}, {**HI, "stream": True}, CHAT),
        ({}, {"model": "m", "input": "hi", "stream": True}, "/v1/responses"),
    ],
)
def test_what_is_sent_as_it_came(policy: dict[str, Any], asked: dict[str, Any], path: str) -> None:
    served_by = limited(policy)
    x = post(asked, path)
    admit(served_by, x)
    assert x.body is not None
    assert x.body.data == orjson.dumps(asked)
    usage = b"data: %b\n\n" % told(9, 1)
    assert answer(x, usage, headers=STREAM) == usage
    assert end(served_by, x) == Usage(9, 1)


def test_what_was_used_is_counted() -> None:
    cells = Cells()
    served_by = limited(cells=cells)
    for body in (told(10, 5), b"x" * 40):
        x = post(HI)
        admit(served_by, x)
        answer(x, body)
        end(served_by, x)

    def value(name: str, **labels: str) -> float:
        return cells.counter(name, "", {"route": "r", **labels}).value

    assert value("llm_tokens_total", kind="prompt") == 10 + HI_TOKENS
    assert value("llm_tokens_total", kind="completion") == 5 + 10
    assert value("llm_usage_requests_total", told_by="upstream") == 1
    assert value("llm_usage_requests_total", told_by="estimate") == 1
