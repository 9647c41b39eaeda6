"""`headrace model load` and its like on their way: the command, the admin socket, the engine, and back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from appliance import admin_client, exit_codes
from appliance.cli import run as headrace
from appliance.model_orders import hear
from tests.appliance.config_files import LISTENER, ConfigFiles
from tests.appliance.running import Running, run

Capture = pytest.CaptureFixture[str]


async def test_an_order_goes_to_the_engine_that_serves_and_its_answer_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.model_folder.read", lambda path: None)  # the fake engines' folders hold words only
    files = Running(tmp_path)
    files.write_model("m")
    files.write(models=("m",))
    async with run(files) as running:
        answer = await running.ask("models", order="swap", name="m", path="/new")
        assert answer == {"ok": True, "problems": [], "models": [{"name": "m", "state": "swap", "reason": "/new"}]}
        answer = await running.ask("models")
        assert answer["models"] == [{"name": "", "state": "list", "reason": ""}]
        answer = await running.ask("models", order="load", name="faulty", path="x")
        assert answer == {"ok": False, "problems": ["ValueError: x"], "models": []}
        answer = await running.ask("models", order="load", name="deadly")
        assert answer["problems"] == ["the engine ended before it answered; see its log"]
        for wrong in ({"order": "lift"}, {"name": 3}, {"path": None}):
            with pytest.raises(ConnectionError, match="400"):
                await running.ask("models", **wrong)


async def test_without_an_engine_an_order_is_told_so(tmp_path: Path) -> None:
    files = Running(tmp_path)
    files.write()
    async with run(files) as running:
        answer = await running.ask("models", order="load", name="m")
        assert answer == {"ok": False, "problems": ["no engine serves; see `headrace status`"], "models": []}


async def test_an_engine_that_never_answers_is_not_waited_for_for_ever() -> None:
    asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer = await hear(asked, answer_s=0.0)
    assert answer["problems"] == ["the engine did not answer within 0 s; see its log"]
    assert asked.cancelled()


def test_the_command_asks_and_tells(place: ConfigFiles, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    rows = [
        {"name": "a", "version": "1", "state": "READY", "reason": ""},
        {"name": "b", "version": None, "state": "UNAVAILABLE", "reason": "not loaded yet"},
    ]
    answer: dict[str, Any] = {"ok": True, "problems": [], "models": rows}

    def call(runtime_dir: Path, verb: str, *, configuration: Path, **arguments: Any) -> dict[str, Any]:
        assert verb == "models"
        asked.append(arguments)
        return answer

    monkeypatch.setattr(admin_client, "call", call)
    file = str(place.file("headrace.yaml", LISTENER))
    assert headrace(["model", "served", "-c", file]) == exit_codes.OK
    assert capsys.readouterr().out == "a  READY\nb  UNAVAILABLE  not loaded yet\n"
    for arguments in (["load", "a"], ["unload", "a"], ["swap", "a", "/new/a"]):
        assert headrace(["model", *arguments, "-c", file]) == exit_codes.OK
        assert capsys.readouterr().out == "a  READY\n"
    assert [tuple(each.values()) for each in asked] == [
        ("list", "", ""),
        ("load", "a", ""),
        ("unload", "a", ""),
        ("swap", "a", "/new/a"),
    ]
    assert headrace(["model", "load", "b", "-c", file, "--json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out) == rows
    answer = {"ok": False, "problems": ["model 'a': model.onnx is damaged"], "models": []}
    assert headrace(["model", "load", "a", "-c", file]) == exit_codes.FAILED
    assert capsys.readouterr().err == "headrace: model 'a': model.onnx is damaged\n"


def test_a_repository_is_a_directory_that_models_may_lie_in(place: ConfigFiles) -> None:
    place.model_folder("all/m")
    loaded = place.load(LISTENER + "models: {repository: all, control: clients}\n")
    assert loaded.engine is not None
    assert (loaded.engine.repository, loaded.engine.control) == (str(place.root / "all"), "clients")
    assert loaded.engine.models == ()
    assert loaded.proxy.engine_socket == loaded.engine.socket_path
    loaded = place.load(LISTENER + "models: {repository: all, m: {queue: 7}}\n")
    assert loaded.engine is not None
    assert loaded.engine.control == "admin"
    assert [(model.name, model.path, model.max_queue) for model in loaded.engine.models] == [
        ("m", str(place.root / "all/m"), 7)
    ]
    [problem] = place.problems(LISTENER + "models: {repository: all, n: {queue: 7}}\n")
    assert "models.n: there is no model folder all/n; import one with" in problem
    [problem] = place.problems(LISTENER + "models: {repository: none}\n")
    assert "models.repository: there is no directory none; make it or name another one" in problem
    [problem] = place.problems(LISTENER + "models: {n: {queue: 7}}\n")
    assert "models.n.path: is missing; it is required where there is no `models.repository`" in problem
