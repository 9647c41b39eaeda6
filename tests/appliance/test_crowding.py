"""Threads without cores to run on are told, and served."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from appliance import exit_codes
from appliance.cli import run
from appliance.config.crowding import check_crowding
from appliance.config.tables import HeadraceConfig
from tests.appliance.config_files import LISTENER, ConfigFiles

CORES = 4


def configured(models: dict[str, Any]) -> HeadraceConfig:
    document = {"listeners": [{"address": "127.0.0.1:1"}], "models": models}
    return HeadraceConfig.model_validate_json(json.dumps(document))


@pytest.mark.parametrize(
    "models",
    [
        {"threads": "auto", "m": {"path": "m", "instances": 4}},
        {"threads": 4, "m": {"path": "m", "instances": 2}},
        {"threads": 1, "m": {"path": "m", "instances": 4}},  # of one thread each
        {"threads": 3, "m": {"path": "m"}},
    ],
)
def test_what_has_cores_is_not_told_of(models: dict[str, Any]) -> None:
    assert check_crowding(configured(models), {}, CORES) == []


def test_more_threads_than_cores() -> None:
    [(key, message)] = check_crowding(configured({"threads": 6, "m": {"path": "m"}}), {}, CORES)
    assert key == ("models", "threads")
    assert message == "6 threads of a run share 4 cores; up to 4 run at once, so set `auto`"


def test_more_instances_than_cores_where_the_configuration_or_the_folder_says_so() -> None:
    of_its_own = {"threads": "auto", "m": {"path": "m", "instances": 6}}
    [(key, message)] = check_crowding(configured(of_its_own), {"m": 2}, CORES)
    assert key == ("models", "m", "instances")
    assert message == (
        "6 instances with a thread each share 4 cores; up to 4 instances run at once, "
        "and each holds the weights once more"
    )
    [(key, message)] = check_crowding(configured({"threads": "auto", "m": {"path": "m"}}), {"m": 6}, 1)
    assert key == ("models", "m")
    assert "share one core" in message


def test_check_and_the_start_warn(place: ConfigFiles, capsys: pytest.CaptureFixture[str]) -> None:
    place.model_folder("m")
    threads = len(os.sched_getaffinity(0)) + 1
    text = LISTENER + f"models: {{threads: {threads}, m: {{path: m}}}}\n"
    file = place.file("headrace.yaml", text)
    [warning] = place.load(text).warnings
    assert (warning.line, warning.key) == (2, "models.threads")
    assert run(["check", "-c", str(file)]) == exit_codes.OK
    said = capsys.readouterr()
    assert said.out == f"{file}: ok\n"
    assert said.err == f"warning: {file}:2:19: models.threads: {warning.message}\n"
    assert run(["check", "-c", str(file), "--json"]) == exit_codes.OK
    [told] = json.loads(capsys.readouterr().out)["warnings"]
    assert (told["line"], told["key"]) == (2, "models.threads")
