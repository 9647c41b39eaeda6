"""Fake OpenAI upstreams that misbehave, and an edge with model routes before them."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from tests.wire.harness import Script, UpstreamSide

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}\n\n'
ERROR = b'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n'
DONE = b"data: [DONE]\n\n"


def text(said: bytes) -> bytes:
    """An event with content."""
    return b'data: {"choices": [{"delta": {"content": "%b"}, "finish_reason": null}]}\n\n' % said


def chunks(*events: bytes, end: bool = True) -> bytes:
    """Events in chunked framing."""
    framed = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    return framed + b"0\r\n\r\n" if end else framed


def answer(status: bytes, body: bytes = b"{}", *fields: bytes) -> bytes:
    """A whole answer of JSON."""
    lines = (b"HTTP/1.1 " + status, b"Content-Type: application/json", b"Content-Length: %d" % len(body), *fields)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def sends(*pieces: bytes, then: str = "keep") -> Script:
    """Answer every request with these pieces, and then close, reset or be silent, or keep the connection."""

    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            for piece in pieces:
                await side.send(piece)
            if then == "close":
                side.close()
                return
            if then == "reset":
                side.reset()
                return
            if then == "silence":
                await side.gone()
                return

    return script


class Recording:
    """Answers every request, and keeps the bodies and the Authorization of all. answers: one after the other, the last
    one again and again."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.keys: list[str] = []

    async def __call__(self, side: UpstreamSide) -> None:
        while (body := await side.request()) is not None:
            head = side._upstream.heads[-1].lower()
            self.keys.append(head.partition(b"authorization: bearer ")[2].split(b"\r\n")[0].decode())
            self.raw.append(body)
            self.bodies.append(orjson.loads(body))
            await side.send(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


def chat(model: str = "chat", *fields: str, stream: bool = True, **more: Any) -> bytes:
    """A chat request as raw bytes."""
    body = orjson.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": stream, **more})
    lines = ("POST /v1/chat/completions HTTP/1.1", "Host: x", "Content-Type: application/json", *fields)
    return "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode() + body


def get(path: str, *fields: str) -> bytes:
    """A GET as raw bytes."""
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *fields, "", "")).encode()


def model_routes(*ports: int, **chat_route: Any) -> dict[str, Any]:
    """A model ``chat`` on upstreams a, b, c ..., asked in this order."""
    names = "abcdefgh"[: len(ports)]
    upstreams = {
        name: {"servers": [f"http://127.0.0.1:{port}"], "retry": {"attempts": 1}}
        for name, port in zip(names, ports, strict=True)
    }
    targets = [{"to": name, "priority": -i} for i, name in enumerate(names)]
    return {
        "upstreams": upstreams,
        "model_routes": {"chat": {"upstreams": targets, **chat_route}},
        "routes": [{"to": {"models": ["chat"]}}],
    }


def keys_file(**allow: Any) -> bytes:
    """A keys file with one key, ``hr_test``, that may do so."""
    digest = hashlib.sha256(b"hr_test").hexdigest()
    entry = {"id": "laptop", "hash": f"sha256:{digest}", "created": "2026-01-31T12:00:00Z", "allow": allow}
    return orjson.dumps({"keys": [entry]})
