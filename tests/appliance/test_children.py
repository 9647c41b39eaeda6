"""What a child finds in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance import children
from appliance.children import child_environment

SYSTEMD = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1", "LISTEN_FDS": "1", "LISTEN_PID": "1", "LISTEN_FDNAMES": "x"}
ROOT = str(Path(children.__file__).resolve().parent.parent)


def test_what_systemd_says_to_the_supervisor_is_not_passed_on() -> None:
    assert child_environment({**SYSTEMD, "HOME": "/", "PYTHONPATH": "/lib"}, "proxy") == {
        "HOME": "/",
        "PYTHONPATH": f"{ROOT}:/lib",
    }


def test_variables_that_hold_secrets_stay_with_the_supervisor() -> None:
    assert "OPENAI_KEY" not in child_environment({"OPENAI_KEY": "sk-1", "HOME": "/"}, "engine", {"OPENAI_KEY"})


def test_the_engine_is_told_what_its_libraries_read_at_import() -> None:
    environ = child_environment({}, "engine")
    assert (environ["ORT_DISABLE_TELEMETRY"], environ["NUMPY_MADVISE_HUGEPAGE"]) == ("1", "0")


def test_an_installed_program_needs_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site.getsitepackages", lambda: [ROOT])
    assert child_environment({}, "proxy") == {}
