"""The policy ``tokens``: what is reserved, what is settled, and that nothing of it is lost."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from aiohttp.streams import EMPTY_PAYLOAD
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.body import RequestBody
from proxy.cells import Cells
from proxy.chain import Chain
from proxy.exchange import Ending, Exchange, Head, Outcome
from proxy.held_body import HeldBody, HeldBytes
from proxy.llm.context import SENT, USED
from proxy.llm.count import PromptTokens, count_texts
from proxy.llm.encodings import text_counter
from proxy.llm.usage import Usage
from proxy.policy.tokens import GUESSED_BYTES
from tests.proxy.make import COMPLETE, chain, exchange

CHAT = "/v1/chat/completions"
GONE = Outcome(Ending.CLIENT_GONE, 499)
DEADLINE = Outcome(Ending.REFUSED, 408, "deadline")
FAILED = Outcome(Ending.UPSTREAM_FAILED, 502)
JSON = [(b"Content-Type", b"application/json")]
STREAM = [(b"Content-Type", b"text/event-stream")]
HI = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
HI_TOKENS = 1 + 5 + 3  # the text, its message, and to open the answer


def limited(policy: dict[str, Any] | None = None, *, cells: Cells | None = None, **limit: Any) -> Chain:
    """A chain with a limit ``a`` of 100000 tokens a day for each X-Key, or as given."""
    return chain(
        {"rate_limit": ["a"], "tokens": policy or {}},
        limits={"a": {"key": "header:X-Key", "tokens": "100000/day", "headers": ["openai"], **limit}},
        cells=cells,
    )


def post(body: Any, path: str = CHAT, *, key: str = "k", now: float = 0.0, read: bool = True, **facts: Any) -> Exchange:
    """A POST whose whole body was received; read: on a route that reads it."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    facts = {"content_length": len(data), "bytes_in": len(data), **facts}
    fields = [("X-Key", key), ("Content-Type", "application/json; charset=utf-8")]
    x = exchange(path, fields, method="POST", has_body=True, now=now, **facts)
    if read:
        x.body = HeldBody(x, RequestBody(EMPTY_PAYLOAD), HeldBytes())
        x.body.data = data
    return x


def admit(served_by: Chain, x: Exchange, now: float = 0.0) -> Head:
    """What ``admit`` leads to: the head that the client would see, if the answer were empty."""
    reply = served_by.admit(x, now)
    if reply is None and served_by.reads_body:
        work = served_by.gather_rest(x)
        if work is not None:
            with pytest.raises(StopIteration):  # nothing is waited for
                work.__await__().send(None)  # type: ignore[attr-defined]
        reply = served_by.admit_rest(x, now)
    head = Head(reply.status if reply is not None else 200, list(reply.headers) if reply is not None else [])
    served_by.respond(x, head, now)
    return head


def left(head: Head) -> int:
    return int(head.get(b"x-ratelimit-remaining-tokens") or b"-1")


def answer(x: Exchange, *pieces: bytes, headers: list[tuple[bytes, bytes]] = JSON, status: int = 200) -> bytes:
    """Let the upstream answer so, as far as it comes; what the client gets."""
    x.connected_at = 1.0
    assert x.filters is not None
    (answer_filter,) = x.filters
    answer_filter.head(x, Head(status, headers))
    return b"".join([answer_filter.data(piece) for piece in pieces])


def told(prompt: int, completion: int) -> bytes:
    return orjson.dumps({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def end(served_by: Chain, x: Exchange, outcome: Outcome = COMPLETE, now: float = 0.0) -> Usage | None:
    for each in x.filters or ():
        (each.end if outcome is COMPLETE else each.broken)()
    served_by.settle(x, outcome, now)
    usage: Usage | None = x.scratch.get("usage")
    return usage


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


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "end", "leave", "fail"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 40),  # tokens of the answer that are reserved, or which of the open ones ends
        st.integers(0, 60),  # tokens that it has used
    ),
    max_size=40,
)


@settings(deadline=None)
@given(STEPS, st.sampled_from(["gcra", "sliding"]))
def test_reserving_and_settling_conserves(steps: list[tuple[str, str, int, int]], algorithm: str) -> None:
    """While no time passes a key has used what its open requests have reserved and its ended ones have used, up to what
    may be owed; it is the same whoever of them leaves, fails or ends; and no key ever draws on another's."""
    served_by = limited(tokens="200/day", algorithm=algorithm)
    open_: dict[str, list[tuple[Exchange, int]]] = {"a": [], "b": [], "c": []}
    used = dict.fromkeys(open_, 0)
    for act, key, size, tokens in steps:
        mine = open_[key]
        if act == "begin":
            x = post({"model": "m", "prompt": [1] * 3, "max_tokens": size}, "/v1/completions", key=key)
            head = admit(served_by, x)
            fits = used[key] + 3 + size <= 200
            assert head.status == (200 if fits else 429)
            assert left(head) == max(0, 200 - used[key] - fits * (3 + size))
            if fits:
                mine.append((x, 3 + size))
                used[key] += 3 + size
            else:
                end(served_by, x)
        elif mine:
            x, reserved = mine.pop(size % len(mine))
            x.connected_at = 1.0
            outcome, now_used = COMPLETE, tokens
            if act == "end":
                answer(x, told(0, tokens))
            elif act == "leave":
                outcome, now_used = GONE, 3
            else:
                outcome, now_used = FAILED, 0
            end(served_by, x, outcome)
            used[key] += min(now_used - reserved, max(0, 400 - used[key]))


GCRA: dict[str, Any] = {"tokens": "10/s", "burst": 100}
SLIDING: dict[str, Any] = {"tokens": "100/min", "algorithm": "sliding"}


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 90), st.integers(0, 90), st.floats(0, 20)), max_size=40),
    st.sampled_from([GCRA, SLIDING]),
)
def test_what_is_given_back_is_given_once(steps: list[tuple[float, int, int, float]], limit: dict[str, Any]) -> None:
    """However long requests take and whatever they leave over: what they have used, or reserve while they are open, is
    no more than the window gives, of a sliding one; of a bucket no more than its burst and what has come back since the
    begin, and in no stretch more than one further burst. After a pause a key has its whole burst, and not more."""
    served_by = limited(**limit)
    now = began = 1000.0
    ledger: list[tuple[float, int]] = []  # when a request was admitted, and its tokens
    open_: list[tuple[float, Exchange, int, int]] = []  # when it ends, its row, what it will have used

    def settle(until: float) -> None:
        for each in sorted(open_, key=lambda each: each[0]):
            at, x, row, tokens = each
            if at <= until:
                answer(x, told(0, tokens))
                end(served_by, x, COMPLETE, at)
                ledger[row] = ledger[row][0], tokens
                open_.remove(each)

    def spent(since: float) -> int:
        return sum(tokens for at, tokens in ledger if at >= since)

    for pause_s, reserve, use, lasts_s in steps:
        now += pause_s
        settle(now)
        x = post({"model": "m", "prompt": [1], "max_tokens": reserve}, "/v1/completions", now=now)
        if admit(served_by, x, now).status != 200:
            end(served_by, x, COMPLETE, now)
            continue
        open_.append((now + lasts_s, x, len(ledger), min(use, 1 + reserve)))
        ledger.append((now, 1 + reserve))
        if limit is SLIDING:
            assert spent(now - 59.9) <= 100
        else:
            assert spent(began) <= 100 + 10 * (now - began) + 1e-3
            assert all(spent(at) <= 200 + 10 * (now - at) + 1e-3 for at, _ in ledger)
    settle(now + 20.0)
    later = now + 100.0
    x = post({"model": "m", "prompt": [1], "max_tokens": 99}, "/v1/completions", now=later)
    assert admit(served_by, x, later).status == 200
    assert admit(served_by, post(HI, now=later), later).status == 429


@pytest.mark.parametrize(("algorithm", "rate"), [("gcra", "10/s"), ("sliding", "100/min")])
def test_a_reservation_that_time_has_forgiven_is_not_given_back(algorithm: str, rate: str) -> None:
    served_by = limited(tokens=rate, algorithm=algorithm, **({"burst": 100} if algorithm == "gcra" else {}))
    first = post({"model": "m", "prompt": [1], "max_tokens": 99}, "/v1/completions")
    assert admit(served_by, first).status == 200
    later = 70.0  # all of it is forgiven, and another request has the whole burst
    second = post({"model": "m", "prompt": [1], "max_tokens": 99}, "/v1/completions", now=later)
    assert admit(served_by, second, later).status == 200
    answer(first, told(1, 0))
    end(served_by, first, COMPLETE, later)
    assert admit(served_by, post(HI, now=later), later).status == 429
