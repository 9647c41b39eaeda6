"""What a child finds in its environment, and which column of the shared table is its own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from appliance import children, events
from appliance.children import Children, child_environment
from proxy.shared.layout import Geometry
from proxy.shared.owner import SharedTableOwner

SYSTEMD = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1", "LISTEN_FDS": "1", "LISTEN_PID": "1", "LISTEN_FDNAMES": "x"}
SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]
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


def test_another_allocator_is_for_the_engine_alone() -> None:
    environ = {"HEADRACE_ALLOCATOR": "/usr/lib/libjemalloc.so.2"}
    assert child_environment(environ, "engine")["LD_PRELOAD"] == "/usr/lib/libjemalloc.so.2"
    assert "LD_PRELOAD" not in child_environment(environ, "proxy")
    assert "LD_PRELOAD" not in child_environment({"HEADRACE_ALLOCATOR": ""}, "engine")


def test_an_installed_program_needs_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site.getsitepackages", lambda: [ROOT])
    assert child_environment({}, "proxy") == {}


async def test_a_proxy_gets_a_column_of_its_own_that_its_successor_may_have() -> None:
    happened: asyncio.Queue[events.Event] = asyncio.Queue()
    running = Children(happened.put_nowait, lambda name, step: None, lambda name, facts: None, command=SLEEPER)
    running._shared.close()
    running._shared = SharedTableOwner(Geometry(limits=1, keys=1, permits=1, records=1, tallies=1, columns=2))
    try:
        for number in (1, 2, 3):
            running.spawn(number, f"proxy-{number}", "proxy", "info")
        refused = [await happened.get() for _ in range(2)]
        why = "could not be started: 2 workers are there, the most that the shared table has columns for"
        assert refused == [events.Fatal(3, why), events.Exited(3, 1)]
        assert [child.column for child in running.running.values()] == [0, 1]
        running.kill(1, "SIGKILL")
        ended = await happened.get()
        assert isinstance(ended, events.Exited)
        assert ended.child == 1
        running.spawn(4, "proxy-1", "proxy", "info")
        assert running.running[4].column == 0
    finally:
        running.close()
