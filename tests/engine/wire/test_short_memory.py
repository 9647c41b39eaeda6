"""Answers that outgrow the memory: some go back to wait, and nobody's reader sees anything of it but time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fakes_engine import FakeDecoder, chat_model, engine, streamed_text


async def test_what_goes_back_to_wait_loses_and_repeats_no_token_that_was_sent(tmp_path: Path) -> None:
    decoder = FakeDecoder(slots=4, context=200)
    model = chat_model(decoder, max_held=260)
    texts = [f"{number}" * (60 + number) for number in range(1, 9)]
    async with engine(tmp_path, model) as served:
        asks = [served.post(messages=[{"role": "user", "content": text}], stream=True) for text in texts]
        answers = await asyncio.gather(*asks)
        metrics = (await served.get("/metrics")).raw.decode()
    assert [streamed_text(answer.events) for answer in answers] == texts
    assert [answer.events[-2]["choices"][0]["finish_reason"] for answer in answers] == ["stop"] * len(texts)
    assert model.lane.scheduler.num_preempted > 0
    assert f'headrace_engine_preempted_total{{model="m"}} {float(model.lane.scheduler.num_preempted)}' in metrics
    assert not decoder.held
