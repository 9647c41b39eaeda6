"""Bad input of each kind gets an error that says what to do; nothing is lost or half-written."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance import exit_codes
from tests.e2e.appliance import CHAT, EMBEDDING, HEADRACE, TIMEOUT_S, Appliance
from tests.e2e.conftest import MODELS_AND_EDGE
from tests.engine.tiny_gguf import write_tiny_gguf

HELLO = [{"role": "user", "content": "hello"}]
PATH = {"chat": "/v1/chat/completions", "embed": "/v1/embeddings"}


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": CHAT, "messages": HELLO, "max_tokens": 4, **fields}).encode()


REQUESTS = {
    "an unknown model": ("chat", chat(model="gpt-9"), 404, CHAT),
    "malformed JSON": ("chat", b'{"model": ', 400, "JSON"),
    "a JSON array": ("chat", b"[]", 400, "object"),
    "messages of the wrong type": ("chat", chat(messages="hello"), 400, "messages"),
    "a temperature of the wrong type": ("chat", chat(temperature="hot"), 400, "temperature"),
    "a number out of range": ("chat", chat(max_tokens=-1), 400, "max_tokens"),
    "no input": ("embed", json.dumps({"model": EMBEDDING}).encode(), 400, "input"),
    "input of the wrong type": ("embed", json.dumps({"model": EMBEDDING, "input": [1.5]}).encode(), 400, "input"),
    "a chat model asked to embed": ("embed", json.dumps({"model": CHAT, "input": "x"}).encode(), 400, CHAT),
    "a prompt of ten megabytes": ("chat", chat(messages=[{"role": "user", "content": "x" * 10_000_000}]), 413, "bytes"),
    "a prompt longer than the context": (
        "chat",
        chat(messages=[{"role": "user", "content": "a b " * 9000}]),
        422,
        "8192",
    ),
}


@pytest.mark.parametrize("what", REQUESTS)
def test_a_bad_request_is_refused_with_its_reason_and_the_next_is_served(appliance: Appliance, what: str) -> None:
    kind, body, status, says = REQUESTS[what]
    answer = appliance.post(PATH[kind], body)
    assert answer.status == status, answer.body
    assert says in answer.error["message"]
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert appliance.post(PATH["chat"], chat()).status == 200


@pytest.fixture
def stopped(models: Path, tmp_path: Path) -> Appliance:
    """An appliance that was configured and not started."""
    return Appliance(tmp_path, MODELS_AND_EDGE, models)


def serve(file: Path, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """What ``headrace serve`` does with a file that it cannot serve."""
    command = [*HEADRACE, "serve", "-c", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, preexec_fn=limit)


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    done = serve(tmp_path / "nowhere.yaml")
    assert done.returncode == exit_codes.CANNOT_BOOT
    assert "nowhere.yaml" in done.stderr


def test_a_missing_certificate_is_named_with_its_line(stopped: Appliance) -> None:
    (stopped.tls / "localhost.pem").unlink()
    done = serve(stopped.file)
    assert done.returncode == exit_codes.CANNOT_BOOT
    assert f"{stopped.tls}/localhost.pem" in done.stderr
    assert f"{stopped.file}:{line_of_the_certificate(stopped)}:" in done.stderr


@pytest.mark.parametrize("spoil", [lambda key: key.write_text("no key\n"), lambda key: (key.unlink(), key.mkdir())])
def test_an_unreadable_key_is_named(stopped: Appliance, spoil: Callable[[Path], Any]) -> None:
    spoil(stopped.tls / "localhost.key")
    done = serve(stopped.file)
    assert done.returncode == exit_codes.CANNOT_BOOT
    assert f"{stopped.file}:{line_of_the_certificate(stopped)}:" in done.stderr
    assert "certificates[0].key" in done.stderr


def line_of_the_certificate(appliance: Appliance) -> int:
    lines = appliance.file.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if "certificates:" in line)


def test_a_port_in_use_is_named(stopped: Appliance) -> None:
    with socket.create_server(("127.0.0.1", stopped.port)):
        done = serve(stopped.file)
    assert done.returncode == exit_codes.CANNOT_CREATE
    assert f"127.0.0.1:{stopped.port}" in done.stderr
    assert "in use" in done.stderr


def missing(folder: Path) -> str:
    (folder / "weights.bin").unlink()
    return "weights.bin"


def cut_short(folder: Path) -> str:
    weights = folder / "weights.bin"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size // 2)
    return "weights.bin"


def not_yaml(folder: Path) -> str:
    (folder / "model.yaml").write_text("{")
    return "model.yaml"


def other_graph(folder: Path) -> str:
    graph = folder / "model.onnx"
    graph.write_bytes(b"\0" * graph.stat().st_size)
    return "model.onnx"


@pytest.mark.parametrize("spoil", [missing, cut_short, not_yaml, other_graph])
def test_a_corrupt_model_folder_stops_the_start_and_names_the_file(
    models: Path, tmp_path: Path, spoil: Callable[[Path], str]
) -> None:
    for name in (CHAT, EMBEDDING):
        (tmp_path / "models").mkdir(exist_ok=True)
        shutil.copytree(models / name, tmp_path / "models" / name)
    file = spoil(tmp_path / "models" / EMBEDDING)
    broken = Appliance(tmp_path, MODELS_AND_EDGE, tmp_path / "models")
    done = serve(broken.file)
    assert done.returncode == exit_codes.CANNOT_BOOT
    assert f"{EMBEDDING}/{file}" in done.stderr


def no_space() -> None:
    """In the child: writing beyond a kilobyte fails, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))


def test_a_full_disk_leaves_the_keys_as_they_were(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    for _ in range(7):
        subprocess.run([*HEADRACE, "keys", "add", "--file", keys], check=True, capture_output=True, timeout=TIMEOUT_S)
    before = keys.read_bytes()
    done = subprocess.run(
        [*HEADRACE, "keys", "add", "--file", keys],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        preexec_fn=no_space,
    )
    assert done.returncode == exit_codes.FAILED
    assert str(keys) in done.stderr
    assert done.stdout == ""
    assert keys.read_bytes() == before
    assert list(tmp_path.iterdir()) == [keys]


def test_a_full_disk_leaves_no_half_imported_model(tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    write_tiny_gguf(source)
    target = tmp_path / "models"
    command = [*HEADRACE, "model", "import", str(source), "--dir", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, preexec_fn=no_space)
    assert done.returncode == exit_codes.FAILED
    assert str(target) in done.stderr
    assert not target.exists() or list(target.iterdir()) == []
