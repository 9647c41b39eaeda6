"""`headrace breaker` on its way: the command, the admin socket, the workers, and back."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from appliance import admin_client, exit_codes
from appliance.cli import run as headrace
from appliance.commands.breaker import spell
from tests.appliance.config_files import ConfigFiles
from tests.appliance.running import Running, run

Capture = pytest.CaptureFixture[str]
LISTENER = "listeners: [{address: 127.0.0.1:8080}]\n"
CLOSED = {
    "state": "closed",
    "forced": False,
    "since_s": None,
    "cause": None,
    "requests": 12,
    "failed": 1,
    "refused": 0,
    "first_byte_s": 0.0125,
}
PROBES = {"given": 2, "in_flight": 1, "good": 1, "failed": 0}


async def test_an_order_goes_to_the_workers_and_their_answer_comes_back(tmp_path: Path) -> None:
    files = Running(tmp_path)
    files.write(more="workers: 2")
    async with run(files) as running:
        answer = await running.ask("breakers", order="list")
        assert answer == {"ok": True, "problems": [], "breakers": {"app": {"state": "closed"}}}
        answer = await running.ask("breakers", order="open", upstream="app", for_s=300.0)
        assert answer["breakers"] == {"app": {"state": "open 300.0"}}
        answer = await running.ask("breakers", order="reset")
        assert answer["breakers"] == {"app": {"state": "reset None"}}
        answer = await running.ask("breakers", order="close", upstream="ap")
        assert answer["problems"] == ["there is no upstream named 'ap'; known: app"]
        for wrong in ({"order": "shut"}, {"order": "open", "for_s": -1}, {"order": "open", "for_s": "5m"}):
            with pytest.raises(ConnectionError, match="400"):
                await running.ask("breakers", **wrong)


async def test_workers_that_end_instead_of_answering_are_not_waited_for(tmp_path: Path) -> None:
    files = Running(tmp_path)
    files.write(upstream="mute", more="workers: 2")
    async with run(files) as running:
        answer = await running.ask("breakers", order="list")
        assert answer == {"ok": False, "problems": ["no worker serves; see `headrace status`"], "breakers": {}}


def test_the_command_asks_and_tells(place: ConfigFiles, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    answer = {"ok": True, "problems": [], "breakers": {"app": CLOSED}}

    def call(runtime_dir: Path, verb: str, *, configuration: Path, **arguments: Any) -> dict[str, Any]:
        assert verb == "breakers"
        asked.append(arguments)
        return answer

    monkeypatch.setattr(admin_client, "call", call)
    file = str(place.file("headrace.yaml", LISTENER))
    for arguments in (["list"], ["open", "app", "--for", "5m"], ["open", "app"], ["close", "app"], ["reset"]):
        assert headrace(["breaker", *arguments, "-c", file]) == exit_codes.OK
        said = capsys.readouterr().out
        assert said == "app: closed since the start; 1 of 12 requests failed; first byte 12.5 ms\n"
    assert [tuple(each.values()) for each in asked] == [
        ("list", None, None),
        ("open", "app", 300.0),
        ("open", "app", None),
        ("close", "app", None),
        ("reset", None, None),
    ]
    assert headrace(["breaker", "list", "app", "-c", file, "--json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out) == {"app": CLOSED}
    answer = {"ok": True, "problems": [], "breakers": {}}
    assert headrace(["breaker", "list", "-c", file]) == exit_codes.OK
    assert capsys.readouterr().out == "there are no upstreams\n"
    answer = {"ok": False, "problems": ["there is no upstream named 'ap'; known: app"], "breakers": {}}
    assert headrace(["breaker", "reset", "ap", "-c", file]) == exit_codes.FAILED
    assert capsys.readouterr().err == "headrace: there is no upstream named 'ap'; known: app\n"


@pytest.mark.parametrize("arguments", ["open", "close", "open app --for 5", "open app --for 0s"])
def test_an_order_that_is_not_understood_is_not_given(
    place: ConfigFiles, capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setattr(admin_client, "call", lambda *_, **__: pytest.fail("it was given"))
    file = str(place.file("headrace.yaml", LISTENER))
    assert headrace(["breaker", *arguments.split(), "-c", file]) == exit_codes.USAGE
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "closed since the start; 1 of 12 requests failed; first byte 12.5 ms"),
        (
            {"state": "warning", "since_s": 60.0, "cause": "many requests are refused", "refused": 3},
            "warning since 2026-01-01 11:59:00, many requests are refused; 1 of 12 requests failed; 3 refused; "
            "first byte 12.5 ms",
        ),
        (
            {"state": "open", "since_s": 3.5, "cause": "too many failures", "first_byte_s": None, "failed": 7,
             "probes": PROBES, "next_probe_s": 6.5},
            "open since 2026-01-01 11:59:56, too many failures; 7 of 12 requests failed; next probe in 6 s",
        ),
        (
            {"state": "open", "forced": True, "since_s": 0.0, "cause": "opened by order", "first_byte_s": None,
             "probes": PROBES, "next_probe_s": None},
            "open (forced) since 2026-01-01 12:00:00, opened by order; 1 of 12 requests failed; no probe",
        ),
        (
            {"state": "half-open", "since_s": 0.0, "cause": "the open time has passed", "first_byte_s": None,
             "probes": PROBES, "next_probe_s": 0.0},
            "half-open since 2026-01-01 12:00:00, the open time has passed; 1 of 12 requests failed; "
            "probes: 2 given, 1 in flight, 1 good, 0 failed; next probe now",
        ),
    ],
)  # fmt: skip
def test_a_breaker_in_a_line(row: dict[str, Any], said: str) -> None:
    assert spell("app", {**CLOSED, **row}, datetime(2026, 1, 1, 12)) == f"app: {said}"
