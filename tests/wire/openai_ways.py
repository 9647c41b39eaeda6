"""Every way in which an OpenAI-compatible upstream has been seen to misbehave, as scripts, and what becomes of each.

``by``: who has answered the client in the end where another upstream could: "b", the other; "a", the one that
misbehaved, whose bytes pass as they are; "broken", that one again, and the client is told by a connection that breaks.
``verdict``: what the upstream's breaker has counted: "good", "failed", "refused", or "nothing".
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tests.wire.harness import Script, UpstreamSide
from tests.wire.models import DONE, ERROR, ROLE, STREAM, answer, chunks, sends, text

By = Literal["a", "b", "broken"]
Verdict = Literal["good", "failed", "refused", "nothing"]

HI = text(b"hi")
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
TOO_MANY = b"429 Too Many Requests"
UNAVAILABLE = b"503 Service Unavailable"


class Way(NamedTuple):
    """stream: of the request. impatient: its upstream is given little time."""

    script: Script
    by: By
    verdict: Verdict
    stream: bool = True
    impatient: bool = False


async def _never_reads(side: UpstreamSide) -> None:
    side.reset()


def _status(
    status: bytes, by: By, verdict: Verdict, *fields: bytes, body: bytes = b'{"error": {"message": "no"}}'
) -> Way:
    return Way(sends(answer(status, body, *fields)), by, verdict)


def _stream(*events: bytes, by: By, verdict: Verdict, then: str = "keep") -> Way:
    return Way(sends(STREAM + chunks(*events, end=then == "keep"), then=then), by, verdict)


def _body(body: bytes, by: By = "a", verdict: Verdict = "good") -> Way:
    return Way(sends(answer(b"200 OK", body)), by, verdict, stream=False)


CONNECTIONS = {
    "resets at once": Way(_never_reads, "b", "failed"),
    "closes when it has read": Way(sends(b"", then="close"), "b", "failed"),
    "resets when it has read": Way(sends(b"", then="reset"), "b", "failed"),
    "is silent": Way(sends(b"", then="silence"), "b", "failed", impatient=True),
}
HEADS = {
    "speaks another protocol": Way(sends(b"SSH-2.0-OpenSSH_9.6\r\n"), "b", "failed"),
    "speaks HTTP/2": Way(sends(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "b", "failed"),
    "ends within its head": Way(sends(b"HTTP/1.1 200 OK\r\nContent-Ty", then="close"), "b", "failed"),
    "stalls within its head": Way(sends(b"HTTP/1.1 200 OK\r\nX", then="silence"), "b", "failed", impatient=True),
    "has an endless head": Way(sends(b"HTTP/1.1 200 OK\r\n" + b"X-Y: z\r\n" * 40_000), "b", "failed"),
    "has two lengths": Way(
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"), "b", "failed"
    ),
    "has a length below zero": Way(sends(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"), "b", "failed"),
    "has a length and chunks": Way(
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), "b", "failed"
    ),
    "switches protocols unasked": Way(
        sends(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"), "b", "failed"
    ),
    "has hints before its answer": Way(
        sends(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + STREAM + chunks(HI, DONE)), "a", "good"
    ),
}
STATUSES = {
    "is wrong inside": _status(b"500 Internal Server Error", "b", "failed"),
    "is a bad gateway": _status(b"502 Bad Gateway", "b", "failed", body=b"<html>nginx</html>"),
    "is overloaded": _status(UNAVAILABLE, "b", "refused", b"Retry-After: 7"),
    "is overloaded and does not say how long": _status(UNAVAILABLE, "b", "refused"),
    "is too slow behind": _status(b"504 Gateway Timeout", "b", "failed"),
    "is overloaded as Anthropic says it": _status(b"529 Overloaded", "b", "failed"),
    "has no more for us": _status(TOO_MANY, "b", "refused", b"Retry-After: 1"),
    "has no more for us this year": _status(TOO_MANY, "b", "refused", b"Retry-After: 99999999999999999999"),
    "has no more for us until never": _status(TOO_MANY, "b", "refused", b"Retry-After: never"),
    "had more for us yesterday": _status(TOO_MANY, "b", "refused", b"Retry-After: Thu, 01 Jan 1970 00:00:00 GMT"),
    "has less than nothing for us": _status(TOO_MANY, "b", "refused", b"Retry-After: -5", b"retry-after-ms: -1"),
    "does not know our key": _status(b"401 Unauthorized", "b", "nothing"),
    "wants to be paid": _status(b"402 Payment Required", "b", "nothing"),
    "does not let us": _status(b"403 Forbidden", "b", "nothing"),
    "does not know the model": _status(b"404 Not Found", "b", "nothing"),
    "gives up waiting for us": _status(b"408 Request Timeout", "b", "nothing"),
    "finds the request bad": _status(b"400 Bad Request", "a", "good"),
    "finds the request too long": _status(b"413 Content Too Large", "a", "good"),
    "cannot process it": _status(b"422 Unprocessable Content", "a", "good"),
    "sends us elsewhere": _status(b"302 Found", "a", "good", b"Location: http://127.0.0.1:1/v1", body=b""),
    "has nothing to say": Way(sends(b"HTTP/1.1 204 No Content\r\n\r\n"), "a", "good"),
}
STREAMS = {
    "ends before any content": _stream(ROLE, by="b", verdict="failed"),
    "is done before any content": _stream(ROLE, DONE, by="b", verdict="failed"),
    "is done and nothing else": _stream(DONE, by="b", verdict="failed"),
    "ends without an event": _stream(by="b", verdict="failed"),
    "fails before any content": _stream(ROLE, ERROR, DONE, by="b", verdict="failed"),
    "breaks off before any content": _stream(b": ping\n\n", ROLE, by="b", verdict="failed", then="close"),
    "resets before any content": _stream(ROLE, by="b", verdict="failed", then="reset"),
    "finishes by an error": _stream(
        b'data: {"choices": [{"delta": {}, "finish_reason": "error"}]}\n\n', by="b", verdict="failed"
    ),
    "says nothing but comments": Way(
        sends(STREAM + chunks(b": ping\n\n", end=False), then="silence"), "b", "failed", impatient=True
    ),
    "fails after content and ends well": _stream(ROLE, HI, ERROR, DONE, by="a", verdict="failed"),
    "breaks off after content": _stream(ROLE, HI, by="broken", verdict="failed", then="close"),
    "resets after content": _stream(ROLE, HI, by="broken", verdict="failed", then="reset"),
    "stalls after content": Way(
        sends(STREAM + chunks(ROLE, HI, end=False), then="silence"), "broken", "failed", impatient=True
    ),
    "miscounts a chunk after content": Way(
        sends(STREAM + chunks(ROLE, HI, end=False) + b"zz\r\n"), "broken", "failed"
    ),
    "does not say that it is done": _stream(ROLE, HI, by="a", verdict="good"),
    "does not end its last event": _stream(ROLE, HI, b"data: [DONE]", by="a", verdict="good"),
    "is done twice": _stream(ROLE, HI, DONE, DONE, by="a", verdict="good"),
    "goes on when it is done": _stream(ROLE, HI, DONE, HI, by="a", verdict="good"),
    "ends lines by CRLF": _stream(ROLE.replace(b"\n", b"\r\n"), HI.replace(b"\n", b"\r\n"), by="a", verdict="good"),
    "ends lines by CR": _stream(ROLE.replace(b"\n", b"\r"), HI.replace(b"\n", b"\r"), by="a", verdict="good"),
    "writes data over several lines": _stream(b'data: {"choices":\ndata: [{"text": "x"}]}\n\n', by="a", verdict="good"),
    "sends single bytes": Way(
        sends(STREAM, *(chunks(bytes((byte,)), end=False) for byte in ROLE + HI + DONE), b"0\r\n\r\n"), "a", "good"
    ),
    "sends no UTF-8": _stream(b'data: {"choices": [{"text": "\xff\xfe"}]}\n\n', DONE, by="a", verdict="good"),
    "sends no JSON": _stream(b"data: hello\n\n", DONE, by="a", verdict="good"),
    "sends JSON that is no chunk": _stream(b"data: [1]\n\n", b"data: null\n\n", DONE, by="a", verdict="good"),
    "sends choices that are none": _stream(
        b'data: {"choices": null}\n\n', b'data: {"choices": [null, 7]}\n\n', DONE, by="a", verdict="good"
    ),
    "sends an endless event": _stream(b"data: " + b"x" * 600_000, DONE, by="a", verdict="good"),
    "begins and begins": _stream(*[ROLE] * 200, DONE, by="a", verdict="good"),
    "tells its usage with every chunk": _stream(
        *[b'data: {"choices":[{"text":"x"}],"usage":{"prompt_tokens":5,"completion_tokens":9}}\n\n'] * 9,
        DONE, by="a", verdict="good",
    ),
    "tells a usage that cannot be": _stream(
        HI, b'data: {"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":1e99}}\n\n', by="a", verdict="good"
    ),
    "answers a stream in one piece": Way(sends(answer(b"200 OK", b'{"choices": []}')), "a", "good"),
}  # fmt: skip
BODIES = {
    "says less than its length": Way(sends(LENGTH % 100 + b"{", then="close"), "broken", "failed", stream=False),
    "says more than its length": Way(sends(LENGTH % 2 + b"{}and more"), "a", "good", stream=False),
    "ends without a length": Way(sends(b"HTTP/1.1 200 OK\r\n\r\n{}", then="close"), "a", "good", stream=False),
    "resets without a length": Way(sends(b"HTTP/1.1 200 OK\r\n\r\n{", then="reset"), "broken", "failed", stream=False),
    "stalls within its body": Way(
        sends(LENGTH % 100 + b"{", then="silence"), "broken", "failed", stream=False, impatient=True
    ),
    "sends half of its JSON": _body(b'{"choices": ['),
    "sends NaN": _body(b'{"choices": [], "logprob": NaN}'),
    "sends a login page": Way(
        sends(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"), "a", "good", False
    ),
    "answers 200 with an error": _body(b'{"error": {"message": "no", "code": 500}}'),
    "tells no usage": _body(b'{"choices": []}'),
    "tells a usage of text": _body(b'{"choices": [], "usage": {"prompt_tokens": "many"}}'),
    "tells a usage beyond belief": _body(b'{"choices": [], "usage": {"prompt_tokens": 99999999999999999999}}'),
    "compresses unasked": Way(
        sends(answer(b"200 OK", b"\x1f\x8b\x08\x00", b"Content-Encoding: gzip")), "a", "good", stream=False
    ),
    "streams unasked": Way(sends(STREAM + chunks(ROLE, HI, DONE)), "a", "good", stream=False),
    "loosens our limits": Way(
        sends(answer(b"200 OK", b"{}", b'RateLimit: "tokens";r=9999999;t=1', b"x-ratelimit-remaining-tokens: 9999999")),
        "a", "good", stream=False,
    ),
}  # fmt: skip
WAYS: dict[str, Way] = {**CONNECTIONS, **HEADS, **STATUSES, **STREAMS, **BODIES}
