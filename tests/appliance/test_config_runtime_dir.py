"""The server and the commands that call it agree on the runtime directory."""

from __future__ import annotations

from pathlib import Path

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
    assert locate_runtime_dir(path, {}, 0) == place.root / "run"
    path = place.file("headrace.yaml", "listeners: [\n")
    assert locate_runtime_dir(path, {}, 0) == Path("/run/headrace")
