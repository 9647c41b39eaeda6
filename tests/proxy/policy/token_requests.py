"""Requests to language models on a route with the policy ``tokens``, and their answers, for tests of it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from aiohttp.streams import EMPTY_PAYLOAD

from proxy.body import RequestBody
from proxy.cells import Cells
from proxy.chain import Chain
from proxy.exchange import Ending, Exchange, Head, Outcome
from proxy.held_body import HeldBody, HeldBytes
from proxy.llm.usage import Usage
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
