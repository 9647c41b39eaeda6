"""Engines and appliances that serve a model to the benchmarks.

Owns starting them with the default models of this checkout; knows nothing of what is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.peers import HEADRACE
from bench.processes import HERE, child_of, free_port, server, unix_server
from bench.sse_client import Server

CHAT, EMBEDDING, CLASSIFIER = "smollm2-135m-instruct", "all-minilm-l6-v2", "open-nsfw"
MODELS = Path(os.environ.get("HEADRACE_MODELS", HERE.parent / ".headrace" / "models"))


def num_cores() -> int:
    """Cores that this process, and so everything that it starts, may use."""
    return len(os.sched_getaffinity(0))


def model_folder(name: str) -> Path:
    """The folder of a default model; it is pulled if it is not there."""
    if not (MODELS / name / "model.yaml").exists():
        subprocess.run([*HEADRACE, "model", "pull", name, "--dir", str(MODELS)], check=True)
    return MODELS / name


@contextmanager
def engine_alone(
    folder: Path, *flags: str, program: Sequence[str] = ("-P", "-m", "engine")
) -> Iterator[tuple[Server, int]]:
    """``python -m engine`` with one model. Yields where to ask it, and its process."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        path = f"{directory}/engine.sock"
        command = [sys.executable, *program, "--socket", path, "--model", f"{folder.name}={folder}", *flags]
        with unix_server(command, path=path) as process:
            yield Server(socket_path=path), process.pid


@contextmanager
def appliance(name: str, options: str = "", *, tls: bool = True) -> Iterator[tuple[Server, int]]:
    """``headrace serve`` with one model behind TLS. Yields where to ask it, and the process of its engine.

    name: of a default model. options: more of its YAML table, as ``slots: 32``. tls: no: without.
    """
    with edge(
        f"models: {{{name}: {{path: {model_folder(name)}, {options}}}}}\nroutes: [{{to: engine}}]\n", tls=tls
    ) as (
        found,
        pid,
    ):
        yield found, child_of(pid, "engine")


@contextmanager
def edge(text: str, *, tls: bool = False) -> Iterator[tuple[Server, int]]:
    """``headrace serve`` with one listener and more of its configuration. Yields where to ask it, and its process."""
    port, secure = free_port(), ""
    with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        if tls:
            subprocess.run([*HEADRACE, "cert", "local", "--dir", directory], check=True, capture_output=True)
            secure = f", tls: {{certificates: [{{cert: {directory}/localhost.pem, key: {directory}/localhost.key}}]}}"
        file = Path(directory) / "headrace.yaml"
        file.write_text(
            f"admin: {{address: null}}\nruntime_dir: {directory}\nlog: {{access: off}}\n"
            f"listeners: [{{address: 127.0.0.1:{port}{secure}}}]\n{text}"
        )
        with server([*HEADRACE, "serve", "-c", str(file)], port=port) as process:
            yield Server(port=port, ca=f"{directory}/ca.pem"), process.pid
