"""What a request held on the device goes with the request, not when the interpreter next searches for rings."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from engine.http.message import Request
from engine.llm.sequence import Sequence
from tests.fakes_engine import FakeDecoder, chat_model, echo, engine, until


def num_alive() -> int:
    return sum(isinstance(each, Sequence) for each in gc.get_objects())


async def test_what_an_answer_was_made_with_goes_with_it(tmp_path: Path) -> None:
    decoder = FakeDecoder(slots=4, context=100_000)
    model = chat_model(decoder)
    async with engine(tmp_path, model) as served:
        gc.collect()
        gc.disable()
        try:
            assert (await served.post(n=2)).status == 200
            assert (await served.post(stream=True, n=2)).status == 200
            await until(lambda: num_alive() == 0)
            decoder.script = lambda read, chosen: ord("y")
            async with served.open_stream(messages=[{"role": "user", "content": "x"}]) as response:
                await response.content.readany()
            await until(lambda: num_alive() == 0)
        finally:
            gc.enable()
        decoder.script = echo
        assert (await served.post()).text == "hi"


async def test_what_failed_goes_with_its_answer(tmp_path: Path) -> None:
    def fail(rows: Any) -> None:
        if len(rows[0].tokens) > 1:
            raise RuntimeError("no memory")

    decoder = FakeDecoder()
    async with engine(tmp_path, chat_model(decoder)) as served:
        decoder.before_run = fail
        gc.collect()
        gc.disable()
        try:
            for stream in (False, True):
                assert (await served.post(stream=stream)).status == 500
                await until(lambda: not [each for each in gc.get_objects() if isinstance(each, Request)], 5.0)
        finally:
            gc.enable()
        decoder.before_run = lambda rows: None
        assert (await served.post()).text == "hi"
