"""`headrace variants` on its way: the command, the admin socket, the workers, and back; and who may reach a variant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance import admin_client, exit_codes
from appliance.cli import run as headrace
from appliance.commands.variants import spell
from tests.appliance.config_files import ConfigFiles
from tests.appliance.running import Running, run

Capture = pytest.CaptureFixture[str]
LISTENER = "listeners: [{address: 127.0.0.1:8080}]\n"
CONTROL: dict[str, Any] = {
    "variant": "control",
    "share": 0.9,
    "stopped": None,
    "stopped_for_s": None,
    "requests": 900,
    "good": 891,
    "gone": 3,
    "outcomes": 0,
    "good_outcomes": 0,
    "answer_s": 0.25,
    "first_byte_s": 0.0125,
    "first_token_s": None,
    "prompt_tokens": 0,
    "completion_tokens": 0,
}
LIGHT = {
    **CONTROL,
    "variant": "light",
    "share": 0.1,
    "requests": 100,
    "good": 80,
    "gone": 0,
    "answer_s": None,
    "z": -11.213,
    "p": 1.23e-9,
    "verdict": "worse",
}


async def test_an_order_goes_to_the_workers_and_their_answer_comes_back(tmp_path: Path) -> None:
    files = Running(tmp_path)
    files.write(more="workers: 2")
    async with run(files) as running:
        answer = await running.ask("variants", order="list")
        assert answer == {"ok": True, "problems": [], "variants": {"r": [{"variant": "control"}]}}
        answer = await running.ask("variants", order="set", route="r", variant="light", share=0.1)
        assert answer["variants"] == {"r": [{"variant": "set r light 0.1"}]}
        answer = await running.ask("variants", order="reset", route="r")
        assert answer["variants"] == {"r": [{"variant": "reset r None 0.0"}]}
        answer = await running.ask("variants", order="set", route="r", variant="light", share=0.5)
        assert answer == {"ok": False, "problems": ["too much"], "variants": {}}
        answer = await running.ask("variants", order="list", route="q")
        assert answer["problems"] == ["no route named 'q' has variants; those that have: r"]
        for wrong in (
            {"order": "stop"},
            {"order": "set", "route": "r", "variant": "light", "share": 2},
            {"order": "set", "route": "r", "share": 0.1},
            {"order": "reset"},
        ):
            with pytest.raises(ConnectionError, match="400"):
                await running.ask("variants", **wrong)


async def test_workers_that_end_instead_of_answering_are_not_waited_for(tmp_path: Path) -> None:
    files = Running(tmp_path)
    files.write(upstream="mute", more="workers: 2")
    async with run(files) as running:
        answer = await running.ask("variants", order="list")
        assert answer == {"ok": False, "problems": ["no worker serves; see `headrace status`"], "variants": {}}


def test_the_command_asks_and_tells(place: ConfigFiles, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    answer = {"ok": True, "problems": [], "variants": {"chat": [CONTROL, LIGHT]}}

    def call(runtime_dir: Path, verb: str, *, configuration: Path, **arguments: Any) -> dict[str, Any]:
        assert verb == "variants"
        asked.append(arguments)
        return answer

    monkeypatch.setattr(admin_client, "call", call)
    file = str(place.file("headrace.yaml", LISTENER))
    for arguments in (
        ["list"],
        ["list", "chat"],
        ["set", "chat", "light", "5%"],
        ["reset", "chat"],
        ["reset", "chat", "light"],
    ):
        assert headrace(["variants", *arguments, "-c", file]) == exit_codes.OK
        assert capsys.readouterr().out == "\n".join(["route chat", *spell([CONTROL, LIGHT]), ""])
    assert [tuple(each.values()) for each in asked] == [
        ("list", None, None, 0.0),
        ("list", "chat", None, 0.0),
        ("set", "chat", "light", 0.05),
        ("reset", "chat", None, 0.0),
        ("reset", "chat", "light", 0.0),
    ]
    assert headrace(["variants", "-c", file]) == exit_codes.OK
    assert capsys.readouterr().out.startswith("route chat\n")
    assert headrace(["variants", "list", "-c", file, "--json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out) == {"chat": [CONTROL, LIGHT]}
    answer = {"ok": True, "problems": [], "variants": {}}
    assert headrace(["variants", "list", "-c", file]) == exit_codes.OK
    assert capsys.readouterr().out == "no route has variants\n"
    answer = {"ok": False, "problems": ["chat has no variant 'b'; it has light"], "variants": {}}
    assert headrace(["variants", "set", "chat", "b", "5%", "-c", file]) == exit_codes.FAILED
    assert capsys.readouterr().err == "headrace: chat has no variant 'b'; it has light\n"


@pytest.mark.parametrize(
    "arguments",
    ["set", "set chat light", "set chat light 0.1", "set chat light 110%", "set chat light 5% --jsn", "reset"],
)
def test_an_order_that_is_not_understood_is_not_given(
    place: ConfigFiles, capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setattr(admin_client, "call", lambda *_, **__: pytest.fail("it was given"))
    file = str(place.file("headrace.yaml", LISTENER))
    assert headrace(["variants", *arguments.split(), "-c", file]) == exit_codes.USAGE
    assert capsys.readouterr().err


def test_a_share_below_nothing_is_told_to_be_none(place: ConfigFiles, capsys: Capture) -> None:
    file = str(place.file("headrace.yaml", LISTENER))
    assert headrace(["variants", "set", "chat", "light", "-1%", "-c", file]) == exit_codes.USAGE
    said = capsys.readouterr().err
    assert "'-1%' is not understood; write a number with a unit (%), like 20%" in said
    assert "No such option" not in said


def test_the_table_shows_what_is_known() -> None:
    stopped = {**LIGHT, "share": 0.0, "stopped": "harm", "stopped_for_s": 12.3, "outcomes": 4, "good_outcomes": 1}
    assert spell([CONTROL, stopped]) == [
        "  variant  share  requests  success  gone    answer  first byte  outcomes    good       z         p  verdict",
        "  control    90%       900   99.00%     3  250.0 ms     12.5 ms",
        "  light       0%       100   80.00%                     12.5 ms         4  25.00%  -11.21  1.23e-09  "
        "worse; stopped for harm 12 s ago",
    ]


def test_a_variant_to_an_upstream_with_our_key_needs_a_key_as_its_route_would(place: ConfigFiles) -> None:
    place.file("s", "sk-1")
    file = (
        "listeners: [{address: 0.0.0.0:80}]\nsecrets: {a: {file: s}}\n"
        "upstreams: {app: {servers: ['http://a']}, paid: {servers: ['https://b'], key: {secret: a}}}\n"
        "routes: [{to: app, policies: {variants: {of: {b: {share: 5%, to: paid}}}}}]\n"
    )
    [problem] = place.problems(file)
    assert "routes[0]: serves app without a key" in problem
    assert place.problems(file.replace("to: paid", "model: m")) == []
