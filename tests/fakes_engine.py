"""A language model without a model: a decoder that plays a script, a vocabulary of bytes, and an engine around them.

Tokens 0-255 are bytes, then come the control tokens, then extra tokens of several bytes. The decoder keeps what each
slot has read and refuses work that does not follow it, so a test that passes has also kept the slots in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import mmap
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from engine.device import Device
from engine.entry import Entry, Source
from engine.fleet import Fleet
from engine.llm.calibrate import measure_cost
from engine.llm.chat import ChatModel
from engine.llm.decoder import RowLogits, RowWork
from engine.llm.kv import FLOAT_BYTES, KvShape, page_aligned_length
from engine.llm.template import ChatTemplate
from engine.server import Server
from engine.serving import Serving
from engine.settings import ModelSettings

START, END = 256, 257
SPECIAL = {"<|im_start|>": START, "<|im_end|>": END, "<|endoftext|>": 258}
FIRST_EXTRA = 259
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'"
    " }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TURN = [START, *b"assistant\n"]

Script = Callable[[list[int], int], int]  # what the slot has read, how many tokens were chosen -> the next token


def echo(read: list[int], chosen: int) -> int:
    """Says what the last user said."""
    prompt = read[: len(read) - chosen]
    begins = [at for at in range(len(prompt)) if prompt[at : at + 6] == [START, *b"user\n"]][-1] + 6
    text = prompt[begins : prompt.index(END, begins)]
    return text[chosen] if chosen < len(text) else END


def play(tokens: Sequence[int]) -> Script:
    """Says these tokens, then ends."""
    return lambda read, chosen: tokens[chosen] if chosen < len(tokens) else END


class FakeVocabulary:
    """Bytes, control tokens and extra tokens. extra: what each further token stands for, from FIRST_EXTRA on."""

    special = SPECIAL

    def __init__(self, extra: Sequence[bytes] = ()) -> None:
        self._bytes = [bytes([byte]) for byte in range(256)] + [b""] * len(SPECIAL) + list(extra)
        self.count = len(self._bytes)
        self.longest_token_bytes = max(map(len, self._bytes))

    def encode_text(self, text: str, *, max_tokens: int = 1 << 30) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]


@dataclass
class FakeDecoder:
    """Plays ``script`` in every slot. gate: cleared, it holds the next run until it is set."""

    script: Script = echo
    slots: int = 4
    context: int = 2048
    vocab_size: int = 300
    max_chunk: int = 512
    kv_bytes_committed: int = 0
    before_run: Callable[[Sequence[RowWork]], None] = lambda rows: None
    nan_when: Callable[[list[int]], bool] = lambda read: False
    bare: Callable[[list[int]], int] = lambda read: END  # what follows text without turns, that of a warm-up too
    flat: bool = False  # letters are nearly as likely as what the script says
    held: dict[int, list[int]] = field(default_factory=dict)
    runs: list[list[tuple[int, int]]] = field(default_factory=list)  # per run: slot and number of tokens
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def run(self, rows: Sequence[RowWork]) -> list[list[RowLogits]]:
        self.entered.set()
        assert self.gate.wait(30), "the test never opened the gate"
        self.before_run(rows)
        self.runs.append([(row.slot, len(row.tokens)) for row in rows])
        assert len({row.slot for row in rows}) == len(rows)
        return [self._advance(row) for row in rows]

    def copy(self, source: int, target: int, tokens: int) -> None:
        assert len(self.held[source]) >= tokens
        self.held[target] = self.held[source][:tokens]

    def trim(self, slot: int, tokens: int) -> None:
        self.held[slot] = self.held[slot][:tokens]
        if not tokens:
            del self.held[slot]

    def release(self, slot: int) -> None:
        self.held.pop(slot, None)

    @property
    def kv_shape(self) -> KvShape:
        """A page of memory for each token."""
        return KvShape(1, self.slots, 1, page_aligned_length(self.context), head_dim=mmap.PAGESIZE // FLOAT_BYTES)

    def kv_bytes_for(self, tokens: int) -> int:
        return self.kv_shape.committed_bytes(tokens)

    def close(self) -> None:
        self.held.clear()

    def _advance(self, row: RowWork) -> list[RowLogits]:
        if row.past == 0:
            self.held[row.slot] = []
        read = self.held[row.slot]
        assert len(read) >= row.past, f"slot {row.slot} holds {len(read)} tokens, not {row.past}"
        del read[row.past :]
        assert 0 < len(row.tokens) <= self.max_chunk
        assert row.past + len(row.tokens) <= self.context
        assert 0 <= row.num_logits <= len(row.tokens)
        read.extend(row.tokens)
        ends = range(len(read) - row.num_logits + 1, len(read) + 1)
        return [self.logits_of(self._next(read[:end]), nan=self.nan_when(read[:end])) for end in ends]

    def _next(self, read: list[int]) -> int:
        if START not in read:
            return self.bare(read)
        last_turn = len(read) - 1 - read[::-1].index(START)
        return self.script(read, len(read) - last_turn - len(_TURN))

    def logits_of(self, token: int, *, nan: bool = False) -> RowLogits:
        vocabulary = np.full(self.vocab_size, -20.0, np.float32)
        if self.flat:
            vocabulary[ord("a") : ord("z")] = 19.9
        vocabulary[token] = 20.0
        if nan:
            vocabulary[:] = np.nan
        ids = np.argsort(-vocabulary, kind="stable")[:8]
        return RowLogits(ids, vocabulary[ids], float(np.log(np.exp(vocabulary.astype(float)).sum())), vocabulary)


def chat_model(
    decoder: FakeDecoder,
    *,
    name: str = "m",
    extra: Sequence[bytes] = (),
    template: str = TEMPLATE,
    max_held: int | None = None,
    prefix_ttl_s: float = 0.0,
    speculation: bool = False,
    **settings: Any,
) -> ChatModel:
    """A ChatModel around a FakeDecoder. max_held: tokens; None does not bound."""
    vocabulary = FakeVocabulary(extra)
    model = ChatModel(
        ModelSettings(
            name=name, path="", slots=decoder.slots, prefix_ttl_s=prefix_ttl_s, speculation=speculation, **settings
        ),
        decoder=decoder,
        cost=measure_cost(decoder),
        vocabulary=vocabulary,
        template=ChatTemplate(template, special=SPECIAL, encode_text=vocabulary.encode_text, bos="", eos="<|im_end|>"),
        end_ids=[END],
        max_chunk=decoder.max_chunk,
        kv_bytes=decoder.kv_bytes_for(decoder.slots * decoder.context if max_held is None else max_held),
    )
    decoder.runs.clear()
    return model


@dataclass
class Engine:
    """A served fake. post sends a chat request; the defaults ask the user's question ``hi``."""

    serving: Serving
    session: aiohttp.ClientSession
    socket_path: str

    async def post(self, path: str = "/v1/chat/completions", **fields: Any) -> Answer:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
        return await self.send(path, json.dumps(body).encode())

    async def send(self, path: str, body: bytes, **headers: str) -> Answer:
        headers = {"Content-Type": "application/json", **headers}
        async with self.session.post(f"http://engine{path}", data=io.BytesIO(body), headers=headers) as response:
            return Answer(response.status, response.headers, await response.read())

    @contextlib.asynccontextmanager
    async def open_stream(self, headers: Mapping[str, str] | None = None, **fields: Any) -> AsyncIterator[Any]:
        """The answer to a streamed chat request as the client's response, to be read as it comes."""
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], **fields}
        async with self.session.post("http://engine/v1/chat/completions", json=body, headers=headers) as response:
            yield response

    async def get(self, path: str) -> Answer:
        async with self.session.get(f"http://engine{path}") as response:
            return Answer(response.status, response.headers, await response.read())


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def text(self) -> str:
        return self.json["choices"][0]["message"]["content"]

    @property
    def events(self) -> list[Any]:
        """The data of a stream's events, ``[DONE]`` as it stands."""
        return read_events(self.raw)


def read_events(raw: bytes) -> list[Any]:
    """The events of a whole stream: JSON values and ``[DONE]``. Comments are left out."""
    assert raw.endswith(b"\n\n")
    blocks = [block for block in raw.decode().split("\n\n")[:-1] if not block.startswith(":")]
    assert all(block.startswith("data: ") for block in blocks)
    return [block[6:] if block == "data: [DONE]" else json.loads(block[6:]) for block in blocks]


def streamed_text(events: list[Any]) -> str:
    """The text of a stream's deltas."""
    choices = [event["choices"] for event in events if isinstance(event, dict) and event.get("choices")]
    return "".join(choice[0]["delta"].get("content", "") for choice in choices)


def fleet_of(device: Device, *models: Any) -> Fleet:
    """Models that are loaded already, and stay."""
    entries = [Entry(model.name, Source(model.kind, lambda kv_bytes, model=model: model)) for model in models]
    fleet = Fleet(entries, device, budget=lambda: 0)
    for entry, model in zip(entries, models, strict=True):
        fleet.adopt(entry, entry.source, model)
    return fleet


@contextlib.asynccontextmanager
async def engine(
    tmp_path: Path, *models: Any, hang_s: float = 30.0, max_body_bytes: int = 1 << 20
) -> AsyncIterator[Engine]:
    """Serve models on a unix socket until the end of the block."""
    device = Device("fake", [model.lane for model in models], asyncio.get_running_loop())
    serving = Serving(fleet_of(device, *models), device, hang_s=hang_s, max_body_bytes=max_body_bytes)
    path = str(tmp_path / "e.sock")
    server = Server(serving, path)
    device.start()
    await server.open()
    session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path, limit=0))
    try:
        yield Engine(serving, session, path)
    finally:
        await session.close()
        await server.close()
        assert await device.stop(10)


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for something that other threads or tasks bring about."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come about"
        await asyncio.sleep(0.002)
