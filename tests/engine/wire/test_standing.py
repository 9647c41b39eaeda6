"""The headers that say whose a request is, how urgent, and until when its answer is of use."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from engine.errors import RequestError
from engine.llm.standing import Standing
from engine.wire.standing import read_standing
from tests.engine.wire.chat_errors import assert_openai_error
from tests.fakes_engine import FakeDecoder, chat_model, engine, read_events


def test_without_headers_a_request_is_nobodys_normal_and_has_all_the_time() -> None:
    assert read_standing({}, 7.0) == Standing("", 1, None)


@pytest.mark.parametrize(("written", "seconds"), [("2s", 2.0), ("500ms", 0.5), ("0.25s", 0.25), ("0s", 0.0)])
def test_a_deadline_counts_from_the_arrival(written: str, seconds: float) -> None:
    headers = {"headrace-key": "team-a", "headrace-priority": "low", "headrace-deadline": written}
    assert read_standing(headers, 7.0) == Standing("team-a", 2, 7.0 + seconds)


@pytest.mark.parametrize(("streams", "seconds"), [(False, 1.0), (True, 2.0)])
def test_a_timeout_is_a_deadline_of_what_begins_when_it_is_done(streams: bool, seconds: float) -> None:
    headers = {"headrace-deadline": "2s", "headrace-timeout": "1000ms"}
    assert read_standing(headers, 7.0, streams=streams) == Standing("", 1, 7.0 + seconds)
    only = read_standing({"headrace-timeout": "1s"}, 7.0, streams=streams)
    assert only.deadline_at == (None if streams else 8.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("headrace-timeout", "1"),
        ("headrace-priority", "urgent"),
        ("headrace-priority", ""),
        ("headrace-deadline", "2"),
        ("headrace-deadline", "-1s"),
        ("headrace-deadline", "nan s"),
        ("headrace-deadline", "1e9s"),
        ("headrace-deadline", "9999999999s"),
        ("headrace-key", "k" * 257),
    ],
)
def test_what_cannot_be_meant_is_a_400_that_names_the_header(name: str, value: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_standing({name: value}, 0.0)
    assert (caught.value.kind.status, caught.value.param) == (400, name)


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


PATH = "/v1/chat/completions"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_cannot_be_in_time_is_told_so_with_numbers(tmp_path: Path, stream: bool) -> None:
    decoder = FakeDecoder()
    async with engine(tmp_path, chat_model(decoder)) as served:
        late = await served.send(PATH, body(stream=stream), **{"headrace-deadline": "0s"})
        bad = await served.send(PATH, body(), **{"headrace-deadline": "soon"})
        after = await served.send(PATH, body(), **{"headrace-deadline": "3600s"})
        assert served.serving.num_inside == 0
    assert (late.status, late.json["error"]["code"]) == (408, "deadline_exceeded")
    assert_openai_error(late.json)
    assert bad.status == 400
    assert after.text == "hi"
    assert len(decoder.runs) == 3  # the late one was never run


class Watch:
    """The device's clock, which can be put forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


async def test_an_answer_that_is_not_whole_at_its_deadline_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch()
    monkeypatch.setattr("engine.device.time", watch)
    decoder = FakeDecoder(lambda read, chosen: ord("y"), context=1 << 20)
    async with (
        engine(tmp_path, chat_model(decoder)) as served,
        served.open_stream({"headrace-deadline": "3600s"}) as response,
    ):
        raw = await response.content.readuntil(b"\n\n")
        watch.ahead_s = 3600.0
        events = read_events(raw + await response.read())
    assert response.status == 200
    assert events[-1]["error"]["code"] == "deadline_exceeded"
    assert not decoder.held


async def test_a_whole_answer_that_was_not_made_in_time_tells_what_it_has_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch()
    monkeypatch.setattr("engine.device.time", watch)
    steps = []

    def endless(_read: object, _chosen: object) -> int:
        steps.append(1)
        if len(steps) > 8:
            watch.ahead_s = 3600.0
        return ord("y")

    async with engine(tmp_path, chat_model(FakeDecoder(endless, context=1 << 20))) as served:
        late = await served.send(PATH, body(), **{"headrace-deadline": "3600s"})
        whole = await served.send(PATH, body(max_tokens=1))
    assert (late.status, late.json["error"]["code"]) == (408, "deadline_exceeded")
    assert late.json["usage"]["prompt_tokens"] == whole.json["usage"]["prompt_tokens"]
    assert late.json["usage"]["completion_tokens"] > 1


async def test_the_headers_reach_all_sequences_of_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = chat_model(FakeDecoder())
    made = []
    make = model.sequence
    monkeypatch.setattr(model, "sequence", lambda *arguments: made.append(make(*arguments)) or made[-1])
    async with engine(tmp_path, model) as served:
        headers = {"headrace-key": "team-a", "headrace-priority": "high"}
        assert (await served.send(PATH, body(n=2), **headers)).text == "hi"
        completed = await served.send("/v1/completions", json.dumps({"model": "m", "prompt": "hi"}).encode(), **headers)
        assert completed.status == 200
    assert [(each.key, each.priority) for each in made] == [("team-a", 0)] * 3
