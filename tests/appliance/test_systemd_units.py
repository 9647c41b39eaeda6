"""The units that are installed: systemd itself judges them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from appliance.config import HeadraceConfig

UNITS = Path(__file__).resolve().parent.parent.parent / "systemd"
HEADRACE = "/opt/headrace/venv/bin/headrace"


def settings(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", (UNITS / name).read_text(), re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    for unit in UNITS.iterdir():
        text = unit.read_text().replace(HEADRACE, sys.executable)
        (tmp_path / unit.name).write_text(text)
    units = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_supervisor_relies_on() -> None:
    service = settings("headrace.service")
    assert service["Type"] == ["notify"]
    assert service["KillMode"] == ["mixed"]
    assert service["OOMPolicy"] == ["continue"]
    assert service["RestartPreventExitStatus"] == ["78"]
    assert service["ExecReload"] == [f"{HEADRACE} reload --wait -c /etc/headrace/headrace.yaml"]
    assert int(service["TimeoutStopSec"][0]) > HeadraceConfig.model_fields["drain"].default
