"""Chat requests as clients of an LLM API send them, and an upstream that answers them at once.

    python bench/chats.py PORT      answer chat requests on a port of 127.0.0.1 until killed

Owns what is asked and how it is answered; knows nothing of who stands between. Requests are of conversations of
``TURNS`` turns: what was said before is said again, behind a system prompt that all share, and the last message has
words of its own. Answers have usage, streamed or not; ``/count`` tells how many requests came by path.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from typing import Any, cast

import uvloop

SYSTEM = (
    "You are the assistant of a small mill on the river. You answer in the language of the question, briefly and "
    "without flourish; you say so when you do not know. You never promise a delivery date, you never give a price that "
    "is not in the list, and you hand over to a person when somebody is angry. "
)
_TEXT = (
    "the water of a narrow channel comes down from hills and turns one wheel that drives stones where grain is ground "
    "into flour for bread while sacks wait at door until carts take them to market before evening when gates are "
    "closed again because nobody works at night except miller who listens whether level rises after rain in autumn"
)
_WORDS = _TEXT.split(" ")
#: Requests of one conversation, one after the other: as many have all but their last message in common.
TURNS = 4
_LAST_BYTES = 300
USAGE = {"prompt_tokens": 400, "completion_tokens": 24, "total_tokens": 424}
#: The words of an answer, one chunk each.
_ANSWER = " ".join(_WORDS[:24])


def chat(number: int, num_bytes: int = 2048, *, max_tokens: int = 256, stream: bool = False) -> bytes:
    """The body of a chat request of so many bytes; the same for the same number."""
    fields: dict[str, Any] = {
        "model": "mill",
        "messages": [{"role": role, "content": ""} for role in ("system", "user", "assistant", "user")],
        "max_tokens": max_tokens,
        "temperature": 0.2,
        "user": f"user-{number % 50}",
        **({"stream": True} if stream else {}),
    }
    fields["messages"][0]["content"] = SYSTEM
    left = max(0, num_bytes - len(json.dumps(fields)))
    last = min(_LAST_BYTES, left)
    before = _words(f"conversation {number // TURNS}", left - last)
    fields["messages"][1]["content"] = before[: len(before) // 2]
    fields["messages"][2]["content"] = before[len(before) // 2 :]
    fields["messages"][3]["content"] = _words(f"message {number}", last)
    return json.dumps(fields).encode()


def _words(seed: str, num_characters: int) -> str:
    draw = random.Random(seed)
    text = ""
    while len(text) < num_characters:
        text += " ".join(draw.choices(_WORDS, k=num_characters // 5 + 1)) + " "
    return text[:num_characters]


def _answer() -> bytes:
    message = {"role": "assistant", "content": _ANSWER}
    fields = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "mill",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE,
    }  # fmt: skip
    body = json.dumps(fields).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _stream() -> bytes:
    def event(fields: dict[str, Any]) -> bytes:
        common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "mill", "usage": None}
        return b"data: %b\n\n" % json.dumps({**common, **fields}).encode()

    words = _ANSWER.split(" ")
    events = [
        event({"choices": [{"index": 0, "delta": {"content": word + " "}, "finish_reason": None}]}) for word in words
    ]
    events.append(event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    events.append(event({"choices": [], "usage": USAGE}))
    events.append(b"data: [DONE]\n\n")
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in events)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + chunks + b"0\r\n\r\n"


class Upstream(asyncio.Protocol):
    """Answers whole requests, in their order; reads of a head no more than it needs."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts  # by path
        self._whole, self._streamed = _answer(), _stream()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is no subclass
        self._unread = b""

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while True:
            head, blank, rest = self._unread.partition(b"\r\n\r\n")
            if not blank:
                return
            _, field, length = head.lower().partition(b"\ncontent-length:")
            size = int(length.split(b"\r\n", 1)[0]) if field else 0
            if len(rest) < size:
                return
            path = head.split(b" ", 2)[1].decode("latin-1")
            self._unread = rest[size:]
            if path == "/count":
                body = json.dumps(self._counts).encode()
                self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                continue
            self._counts[path] += 1
            self._transport.write(self._streamed if b'"stream": true' in rest[:size] else self._whole)


async def serve(port: int) -> None:
    counts: Counter[str] = Counter()
    server = await asyncio.get_running_loop().create_server(lambda: Upstream(counts), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
