"""The server and the commands that call it agree on the runtime directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.config.runtime_dir import locate_runtime_dir, runtime_dir_of
from tests.appliance.config_files import LISTENER, ConfigFiles

FILE = Path("/etc/headrace/headrace.yaml")


def test_systemd_decides_before_the_user() -> None:
    environ = {"RUNTIME_DIRECTORY": "/run/headrace:/run/other", "XDG_RUNTIME_DIR": "/run/user/1"}
    assert runtime_dir_of(FILE, None, environ, 1) == Path("/run/headrace")
    assert runtime_dir_of(FILE, None, {}, 0) == Path("/run/headrace")


def test_two_configurations_of_one_user_do_not_meet() -> None:
    environ = {"XDG_RUNTIME_DIR": "/run/user/1"}
    one, other = (runtime_dir_of(Path(name), None, environ, 1) for name in ("/a.yaml", "/b.yaml"))
    assert one != other
    assert one.parent == other.parent == Path("/run/user/1")
    assert "1" in runtime_dir_of(FILE, None, {}, 1).name


def test_a_broken_file_still_tells_where_its_headrace_is(place: ConfigFiles) -> None:
    path = place.file("headrace.yaml", LISTENER + "runtime_dir: run\nwrkers: 2\n")
    assert locate_runtime_dir(path, {}, 0) == (place.root / "run", ())
    path = place.file("headrace.yaml", "runtime_dir: 'run' # here\nlisteners: [\n")
    runtime_dir, problems = locate_runtime_dir(path, {}, 0)
    assert runtime_dir == place.root / "run"
    assert problems


@pytest.mark.parametrize("text", ["listeners: [\n", "listeners: [\nruntime_dir: {\n", "runtime_dir: 7\nlisteners: [\n"])
def test_where_a_broken_file_does_not_tell_it_the_default_is_only_likely(place: ConfigFiles, text: str) -> None:
    runtime_dir, problems = locate_runtime_dir(place.file("headrace.yaml", text), {}, 0)
    assert runtime_dir == Path("/run/headrace")
    assert problems


def test_a_file_that_is_not_there_is_told(place: ConfigFiles) -> None:
    runtime_dir, problems = locate_runtime_dir(place.root / "none.yaml", {}, 0)
    assert runtime_dir == Path("/run/headrace")
    assert [problem.message for problem in problems] == ["there is no such file"]
