"""Keys that may use some models only, on routes whose upstream is not chosen by model."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.wire.harness import edge, raw_upstream
from tests.wire.models import answer, chat, get, keys_file, sends

KEY = "Authorization: Bearer hr_test"
GOOD = answer(b"200 OK", orjson.dumps({"choices": []}))
LISTED = answer(
    b"200 OK",
    orjson.dumps({"object": "list", "data": [{"id": "small"}, {"id": "big"}, {"id": "qwen2"}, 7], "more": ["big"]}),
)


def bound(port: int) -> dict[str, Any]:
    return {
        "upstreams": {"a": {"servers": [f"http://127.0.0.1:{port}"], "kind": "openai", "retry": {"attempts": 1}}},
        "routes": [{"to": "a", "policies": {"auth": {"keys": "keys.yaml"}}}],
    }


def post(path: str, body: bytes, media_type: str = "application/json") -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: x", KEY, f"Content-Type: {media_type}", f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode() + body


BIG = b'{"model": "big", "messages": []}'

ALLOWED = [
    chat("small", KEY),
    chat("qwen2.5-7b", KEY),
    post("/v2/models/small/infer", b'{"inputs": []}'),
    post("/v1/classify?model=small", b"\x89PNG", "image/png"),
    get("/v1/models/small", KEY),
    get("/v2/health/ready", KEY),
]
REFUSED = [
    (404, chat("big", KEY)),
    (404, chat("smaller", KEY)),
    (404, post("/v1/chat/completions", BIG, "text/plain")),
    (404, post("/v1/chat/completions?model=small", BIG, "image/png")),
    (404, post("/v1/classify?model=small", BIG, "image/png")),
    (404, post("/v1/chat/completions?model=big", b'{"model": "small", "messages": []}')),
    (404, post("/v2/models/big/infer", b'{"model": "small", "inputs": []}')),
    (404, post("/v2/models/b%69g/infer", b'{"inputs": []}')),
    (404, post("/v2/models/small/../big/infer", b'{"inputs": []}')),
    (404, post("/x/models/small/v2/models/big/infer?model=small", b"\x89PNG", "image/png")),
    (404, post("/v1/chat/completions", b'{"model": ["big"], "messages": []}')),
    (404, get("/v1/models/big", KEY)),
    (404, get("/v1/realtime?model=big", KEY)),
    (403, post("/v1/chat/completions", b'{"model": "small", "model": "big", "messages": []}')),
    (403, post("/v1/chat/completions", b'{"messages": []}')),
    (403, post("/v1/chat/completions?model=small", b'{"messages": []}')),
    (403, post("/v1/chat/completions?model=small", b"\x1f\x8b", "application/json")),
    (403, post("/v1/audio/transcriptions?model=small", b"--x\r\n", "multipart/form-data; boundary=x")),
    (403, post("/v2/repository/index", b"{}")),
    (403, b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n" + KEY.encode() + b"\r\n\r\n"),
]


@pytest.mark.parametrize("request_bytes", ALLOWED, ids=range(len(ALLOWED)))
async def test_what_names_the_keys_models_passes(request_bytes: bytes) -> None:
    async with raw_upstream(sends(GOOD)) as upstream:
        config = bound(upstream.port)
        async with edge(config, materials={"keys.yaml": keys_file(models=["small", "qwen*"])}) as running:
            assert (await running.ask(request_bytes)).status == 200
    assert len(upstream.heads) == 1


@pytest.mark.parametrize(("status", "request_bytes"), REFUSED, ids=range(len(REFUSED)))
async def test_what_names_others_or_hides_them_does_not(status: int, request_bytes: bytes) -> None:
    async with raw_upstream(sends(GOOD)) as upstream:
        config = bound(upstream.port)
        async with edge(config, materials={"keys.yaml": keys_file(models=["small", "qwen*"])}) as running:
            answered = await running.ask(request_bytes)
            assert answered.status == status
            assert b"API key" in answered.body
    assert upstream.heads == []


async def test_a_list_of_models_has_those_of_the_key() -> None:
    async with raw_upstream(sends(LISTED)) as upstream:
        config = bound(upstream.port)
        async with edge(config, materials={"keys.yaml": keys_file(models=["small", "qwen*"])}) as running:
            answered = await running.ask(get("/v1/models", KEY, "Accept-Encoding: gzip"))
    assert orjson.loads(answered.body) == {"object": "list", "data": [{"id": "small"}, {"id": "qwen2"}]}
    assert b"accept-encoding" not in upstream.heads[0].lower()


async def test_a_list_that_cannot_be_read_is_not_sent() -> None:
    async with raw_upstream(sends(answer(b"200 OK", b"big", b"Content-Encoding: br", b"ETag: x"))) as upstream:
        config = bound(upstream.port)
        async with edge(config, materials={"keys.yaml": keys_file(models=["small"])}) as running:
            answered = await running.ask(get("/v1/models", KEY))
    assert orjson.loads(answered.body) == {"object": "list", "data": []}
    assert answered.get("Content-Encoding") is answered.get("ETag") is None


async def test_no_piece_of_a_list_is_sent() -> None:
    piece = answer(b"206 Partial Content", b'{"data":[{"id":"big"}', b"Content-Range: bytes 0-20/80")
    async with raw_upstream(sends(piece)) as upstream:
        config = bound(upstream.port)
        async with edge(config, materials={"keys.yaml": keys_file(models=["small"])}) as running:
            answered = await running.ask(get("/v1/models", KEY, "Range: bytes=0-20"))
    assert b"big" not in answered.body
    assert b"range" not in upstream.heads[0].lower()


async def test_a_key_that_may_use_all_sends_what_it_likes() -> None:
    async with raw_upstream(sends(LISTED)) as upstream:
        config = bound(upstream.port)
        async with edge(config, materials={"keys.yaml": keys_file(priority=True)}) as running:
            assert (await running.ask(post("/v1/chat/completions", BIG))).status == 200
            assert b"big" in (await running.ask(get("/v1/models", KEY))).body
