"""A whole appliance as a test sees it: a real process from a real file, asked over TLS, and ended in any case."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from openai import DefaultHttpxClient, OpenAI

HEADRACE = [sys.executable, "-P", "-m", "appliance.cli"]
CHAT, EMBEDDING = "smollm2-135m-instruct", "all-minilm-l6-v2"
TIMEOUT_S = 60.0


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def gone(writer: asyncio.StreamWriter) -> None:
    """Break the connection off and see it ended: a TLS close waits for the other side, and may outlast a test."""
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> Any:
    """The first true value of ``condition``; fails, naming ``what``, when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {timeout_s:.0f} s in vain for {what}")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The OpenAI error object in the body."""
        found: dict[str, Any] = self.json["error"]
        return found


class Appliance:
    """One ``headrace serve``. The configuration may use {port}, {admin}, {tls} and {models}; {{ }} are braces."""

    def __init__(self, directory: Path, configuration: str, models: Path) -> None:
        self.directory = directory
        self.port, self.admin_port = free_port(), free_port()
        self.tls = directory / "tls"
        self.file = directory / "headrace.yaml"
        self._log_path = directory / "log"
        self._runtime_dir = tempfile.mkdtemp(prefix="headrace-")  # short: a unix socket's path is bounded
        self._models = models
        self._process: subprocess.Popen[bytes] | None = None
        self.run("cert", "local", "--dir", str(self.tls))
        self.write(configuration)

    def write(self, configuration: str) -> None:
        """Puts the configuration into the file; a running appliance learns of it by a reload."""
        values = {"port": self.port, "admin": self.admin_port, "tls": self.tls, "models": self._models}
        own = f"runtime_dir: {self._runtime_dir}\nadmin: {{address: 127.0.0.1:{self.admin_port}}}\n"
        self.file.write_text(own + configuration.format(**values))

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs another ``headrace`` command and returns what it said."""
        done = subprocess.run([*HEADRACE, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S)
        assert not check or done.returncode == 0, done.stderr
        return done

    def start(self) -> Appliance:
        """Starts the process and waits until it says that it is ready."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*HEADRACE, "serve", "-c", str(self.file)], stdout=log, stderr=log, start_new_session=True
            )
        wait_for(self._is_ready_or_ended, "the appliance to be ready")
        assert self._process.poll() is None, self.log
        return self

    def _is_ready_or_ended(self) -> bool:
        assert self._process is not None
        try:
            self._admin("/healthz")
        except OSError:
            return self._process.poll() is not None
        return True

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Asks it to end and returns its exit status."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal_number)
        try:
            return self._process.wait(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise AssertionError(f"did not end\n{self.log}") from None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """All that it has written to stdout and stderr."""
        return self._log_path.read_text(errors="replace")

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def trust(self) -> ssl.SSLContext:
        """A client's TLS context that trusts the appliance's CA and nothing else."""
        return ssl.create_default_context(cafile=self.tls / "ca.pem")

    def children(self, kind: str) -> list[int]:
        """The process ids of its children of a kind, ``proxy`` or ``engine``."""
        return sorted(pid for pid in _children_of(self.pid) if kind in _command_of(pid))

    def get(self, path: str) -> Answer:
        """The answer to a GET on a connection of its own."""
        return self._ask("GET", path)

    def post(self, path: str, body: bytes) -> Answer:
        """The answer to a POST of JSON on a connection of its own."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.trust, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    @contextmanager
    def stream(self, path: str, body: bytes) -> Iterator[http.client.HTTPResponse]:
        """The answer to a POST of JSON, to be read as it comes; at the end of the block the client is gone."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.trust, timeout=TIMEOUT_S)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json", "Connection": "close"})
            with connection.getresponse() as answer:
                yield answer
        finally:
            connection.close()

    def metrics(self) -> str:
        """What the admin listener shows at /metrics."""
        return self._admin("/metrics")

    def _admin(self, path: str) -> str:
        with urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text


def openai_client(appliance: Appliance, key: str = "none") -> OpenAI:
    """The official client, trusting the appliance's CA, without retries."""
    http_client = DefaultHttpxClient(verify=appliance.trust)
    return OpenAI(
        base_url=f"{appliance.url}/v1", api_key=key, max_retries=0, timeout=TIMEOUT_S, http_client=http_client
    )


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except FileNotFoundError:
        return []
