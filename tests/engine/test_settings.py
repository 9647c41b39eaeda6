"""Settings travel as JSON and say what is wrong with them."""

from __future__ import annotations

import json

import pytest

from engine.__main__ import parse_arguments
from engine.batching.settings import BatchingSettings, LevelSettings
from engine.settings import EngineSettings, ModelSettings


def test_settings_survive_the_control_channel() -> None:
    chat = ModelSettings(
        name="chat", path="/m/chat", slots=4, context=512, provider_options={"device_id": "1"}, fallback=("cpu",)
    )
    levels = LevelSettings(8, 0.5), LevelSettings(), LevelSettings(queue=2)
    batching = BatchingSettings(8, "auto", "rate", "tokens", levels, slo_p99_s=0.1, log="every")
    settings = EngineSettings(
        "/run/e.sock", (chat, ModelSettings(name="embed", path="/m/e", batching=batching)), threads=2
    )
    assert EngineSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_an_unknown_key_is_an_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        EngineSettings.from_json({"socket_path": "/e", "models": [], "colour": 1})


@pytest.mark.parametrize(
    "fields",
    [{"slots": 0}, {"max_queue": 0}, {"max_stall_s": 0.0}, {"idle_unload_s": 0}],
)
def test_values_out_of_range_name_the_model(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="'chat'"):
        ModelSettings(name="chat", path="/m", **fields)


def test_two_models_of_one_name_and_a_long_socket_path_are_errors() -> None:
    model = ModelSettings(name="a", path="/m")
    with pytest.raises(ValueError, match="share a name"):
        EngineSettings("/e", (model, model))
    with pytest.raises(ValueError, match="107"):
        EngineSettings("/" + "e" * 106, ())
    with pytest.raises(ValueError, match=r"memory must be above 0 and at most 1, not 1\.5"):
        EngineSettings("/e", (), memory=1.5)


def test_the_command_line_makes_the_same_settings(capsys: pytest.CaptureFixture[str]) -> None:
    settings = parse_arguments(["--socket", "/e", "--model", "a=/m/a=b", "--model", "b=/m/b", "--slots", "2"])
    assert settings.socket_path == "/e"
    assert [(model.name, model.path, model.slots) for model in settings.models] == [
        ("a", "/m/a=b", 2),
        ("b", "/m/b", 2),
    ]
    assert all(model.speculation for model in settings.models)
    plain = parse_arguments(["--socket", "/e", "--model", "a=/m", "--no-speculation"])
    assert [model.speculation for model in plain.models] == [False]
    for bad in (["--model", "a"], ["--model", "a=/m", "--slots", "0"], ["--model", "a=/m", "--model", "a=/m"]):
        with pytest.raises(SystemExit, match="2"):
            parse_arguments(["--socket", "/e", *bad])
    assert "NAME=DIR" in capsys.readouterr().err
