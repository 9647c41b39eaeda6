"""Imported decoders behind the engine's own socket: what they answer is what their float32 model says."""

from __future__ import annotations

import codecs
from pathlib import Path

import aiohttp
import pytest
from tokenizers import Tokenizer

from engine.importers.hugging_face import import_hugging_face
from engine.llm.vocabulary import load_vocabulary
from engine.settings import EngineSettings, ModelSettings
from engine.worker import EngineWorker
from tests.engine.tiny_hugging_face import byte_level_tokenizer, unigram_tokenizer, write_tiny_folder
from tests.fakes_engine import Engine, streamed_text

TOKENIZERS = {"tiktoken": byte_level_tokenizer, "tokenizers": unigram_tokenizer}


@pytest.mark.parametrize(("family", "kind"), [("qwen3", "tiktoken"), ("mistral", "tokenizers")])
async def test_the_greedy_answer_is_that_of_the_float32_model(tmp_path: Path, family: str, kind: str) -> None:
    tokenizer: Tokenizer = TOKENIZERS[kind]()
    model = write_tiny_folder(tmp_path / "source", family, tokenizer=tokenizer, config={"eos_token_id": 511})
    (tmp_path / "source" / "tokenizer_config.json").write_text("{}")
    (tmp_path / "source" / "chat_template.jinja").write_text("{{ messages[0].content }} → ")
    folder = import_hugging_face(tmp_path / "source", tmp_path / "tiny")
    assert folder.manifest.tokenizer.kind == kind
    tokens = tokenizer.encode("It's 日本 now → ", add_special_tokens=False).ids
    answer: list[int] = []
    for _ in range(16):
        answer.append(int(model.logits([*tokens, *answer])[-1].argmax()))
    vocabulary = load_vocabulary(folder)
    expected = codecs.decode(b"".join(map(vocabulary.token_bytes, answer)), "utf-8", "replace")

    settings = EngineSettings(
        str(tmp_path / "e.sock"), (ModelSettings(name="m", path=str(folder.path), slots=2, context=128),)
    )
    worker = EngineWorker(settings)
    await worker.start(lambda what: None)
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(settings.socket_path)) as session:
        assert worker._serving is not None
        served = Engine(worker._serving, session, settings.socket_path)
        ask = {"messages": [{"role": "user", "content": "It's 日本 now"}], "temperature": 0, "max_tokens": 16}
        whole = await served.post(**ask)
        streamed = await served.post(**ask, stream=True)
    assert await worker.drain(30)
    assert whole.text.rstrip("\ufffd") == expected.rstrip("\ufffd")  # a character that the limit cut is left out
    assert streamed_text(streamed.events) == whole.text
    assert whole.json["usage"]["prompt_tokens"] == len(tokens)
