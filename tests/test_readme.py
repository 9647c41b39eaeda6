"""What the documents tell a reader to type is typed here."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks, commands
from tests.e2e.appliance import free_port

TIMEOUT_S = 300.0
KNOWN = {
    "README.md": [
        "./install.sh try",
        "curl -N",
        "./install.sh test",
        "sudo ./install.sh --dry-run",
        "sudo ./install.sh",
    ],
    "CONTRIBUTING.md": ["./install.sh test"],
}


@dataclass
class Tried:
    """A running ``./install.sh try`` of its own home and port, and what it has printed until the end of its show."""

    process: subprocess.Popen[str]
    home: Path
    port: int
    shown: str

    def here(self, text: str) -> str:
        """The text of a document or of the show, as it must be typed for this home and port."""
        return text.replace("127.0.0.1:8443", f"127.0.0.1:{self.port}").replace(".headrace/", f"{self.home}/")

    def run(self, command: str) -> str:
        """What the shell command prints; it must succeed."""
        done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def tried(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    home, port = tmp_path_factory.mktemp("home"), free_port()
    (home / "models").symlink_to(models)
    environment = {**os.environ, "HEADRACE_HOME": str(home), "HEADRACE_PORT": str(port)}
    process = subprocess.Popen(
        ["./install.sh", "try"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    watchdog = threading.Timer(TIMEOUT_S, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if "Ctrl-C" in line:
            break
    yield Tried(process, home, port, shown)
    watchdog.cancel()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_every_command_of_the_documents_is_known_to_these_tests() -> None:
    for document, begins in KNOWN.items():
        assert [next((b for b in begins if c.startswith(b)), c) for c in commands(document)] == begins


def test_try_shows_the_answer(tried: Tried) -> None:
    question, _, answer = tried.shown.partition("> What is the capital of France?")
    assert f"ready on https://127.0.0.1:{tried.port}" in question, tried.shown
    assert "Paris" in answer.partition("Ask it yourself")[0]


def test_try_writes_its_configuration_once(tried: Tried) -> None:
    assert f"127.0.0.1:{tried.port}" in (tried.home / "headrace.yaml").read_text()
    assert not (tried.home / "models" / "headrace.yaml").exists()


def test_the_lines_that_try_prints_stream_an_answer(tried: Tried) -> None:
    curl, python = re.findall(r"^(?:curl|python3) .*$", tried.shown, re.MULTILINE)
    assert "Paris" in tried.run(curl)
    assert "Paris" in tried.run(python)


def test_the_readmes_curl_line_streams_an_answer(tried: Tried) -> None:
    [line] = [command for command in commands("README.md") if command.startswith("curl")]
    answer = tried.run(tried.here(line))
    assert "Paris" in answer
    assert answer.rstrip().endswith("data: [DONE]")


def test_the_readmes_python_runs(tried: Tried, tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text(tried.here(blocks("README.md", "python")[0]))
    assert "Paris" in tried.run(f"{sys.executable} {script}")


def test_the_readmes_configuration_is_sound(tried: Tried, tmp_path: Path) -> None:
    """As it stands in the README, but for the places of its files."""
    shutil.copytree(tried.home / "tls", tmp_path / "tls")
    (tmp_path / "keys.yaml").write_text("keys: []\n")
    text = blocks("README.md", "yaml")[0].replace("/etc/headrace", str(tmp_path))
    file = tmp_path / "headrace.yaml"
    file.write_text(text.replace("/var/lib/headrace", str(tried.home)))
    tried.run(f"{sys.executable} -P -m appliance.cli check -c {file}")


def test_ctrl_c_drains_and_exits_with_zero(tried: Tried) -> None:
    """The last test of this file: it ends the server, the way a terminal does, with a signal to the whole group."""
    os.killpg(tried.process.pid, signal.SIGINT)
    assert tried.process.wait(timeout=TIMEOUT_S) == 0
