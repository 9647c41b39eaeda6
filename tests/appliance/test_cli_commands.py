"""keys, cert, model, reload and status: what they print, and how each failure reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import engine
from appliance import admin_client, exit_codes
from appliance.cli import run
from engine.model_folder import ModelError
from tests.appliance.config_files import LISTENER, ConfigFiles
from tests.appliance.test_atomic import full_disk

Capture = pytest.CaptureFixture[str]
Progress = Callable[[str, int, int], None]


def test_keys_from_first_to_last(tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "keys.yaml")
    assert run(["keys", "add", "--file", file, "--id", "laptop"]) == exit_codes.OK
    captured = capsys.readouterr()
    key = captured.out.strip()
    assert key.startswith("hr_")
    assert key not in captured.err
    assert run(["keys", "add", "--file", file, "--json"]) == exit_codes.OK
    assert set(json.loads(capsys.readouterr().out)) == {"id", "key"}
    assert run(["keys", "revoke", "laptop", "--file", file]) == exit_codes.OK
    capsys.readouterr()
    assert run(["keys", "list", "--file", file, "--json"]) == exit_codes.OK
    listed = json.loads(capsys.readouterr().out)
    assert [(each["id"], each["revoked"] is None) for each in listed] == [("laptop", False), ("key-1", True)]
    assert run(["keys", "list", "--file", file]) == exit_codes.OK
    assert key not in capsys.readouterr().out


def test_a_keys_own_budget_is_shown(tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "keys.yaml")
    assert run(["keys", "add", "--file", file, "--id", "a", "--budget", "monthly=500"]) == exit_codes.OK
    capsys.readouterr()
    assert run(["keys", "list", "--file", file]) == exit_codes.OK
    assert capsys.readouterr().out.endswith("valid  500 tokens of monthly\n")
    assert run(["keys", "list", "--file", file, "--json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out)[0]["budgets"] == {"monthly": {"tokens": 500}}
    assert run(["keys", "add", "--file", file, "--budget", "monthly"]) == exit_codes.USAGE
    assert "write NAME=TOKENS" in capsys.readouterr().err


def test_what_a_key_may_is_shown(tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "keys.yaml")
    may = [
        "--priority",
        "--context",
        "--upstream",
        "cloud",
        "--upstream",
        "far",
        "--model",
        "small",
        "--model",
        "qwen*",
    ]
    assert run(["keys", "add", "--file", file, "--id", "a", *may, "--budget", "daily=5"]) == exit_codes.OK
    assert run(["keys", "add", "--file", file, "--id", "b"]) == exit_codes.OK
    capsys.readouterr()
    assert run(["keys", "list", "--file", file]) == exit_codes.OK
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("valid  priority  context  upstreams cloud, far  models small, qwen*  5 tokens of daily")
    assert second.endswith("valid")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["list"], "cannot read {file}: No such file or directory"),
        (["revoke", "x"], "cannot write {file}: No such file or directory"),
        (["add", "--id", "a b"], "{file}: keys[0].id: expected up to 64 letters"),
    ],
)
def test_keys_that_cannot_be(tmp_path: Path, capsys: Capture, arguments: list[str], says: str) -> None:
    file = tmp_path / "keys.yaml"
    assert run(["keys", *arguments, "--file", str(file)]) == exit_codes.FAILED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says.format(file=file) in captured.err
    assert captured.err.count("\n") == 1


def test_keys_on_a_full_disk(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "keys.yaml"
    run(["keys", "add", "--file", str(file)])
    before = file.read_bytes()
    capsys.readouterr()
    with full_disk(64):
        assert run(["keys", "add", "--file", str(file)]) == exit_codes.FAILED
    captured = capsys.readouterr()
    assert captured.out == ""  # a key that was not kept is not shown
    assert captured.err == f"headrace: cannot write {file}: File too large; nothing was changed\n"
    assert file.read_bytes() == before


def test_cert_local(tmp_path: Path, capsys: Capture) -> None:
    directory = tmp_path / "tls"
    assert run(["cert", "local", "--dir", str(directory), "--host", "box.local", "--json"]) == exit_codes.OK
    made = json.loads(capsys.readouterr().out)
    assert {"localhost", "127.0.0.1", "::1", "box.local"} <= set(made["hosts"])
    assert (made["made_ca"], made["made_cert"]) == (True, True)
    assert run(["cert", "local", "--dir", str(directory)]) == exit_codes.OK
    out = capsys.readouterr().out
    assert "(kept)" in out
    assert f"Hand out {directory}/ca.pem" in out


def test_cert_local_that_cannot_be(tmp_path: Path, capsys: Capture) -> None:
    assert run(["cert", "local", "--dir", str(tmp_path), "--host", "a b"]) == exit_codes.FAILED
    assert "'a b' is neither a host name nor an address" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert run(["cert", "local", "--dir", str(tmp_path / "file/tls")]) == exit_codes.FAILED
    assert "Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("room_bytes", [16, 500], ids=["no key fits", "the keys fit, no certificate"])
def test_cert_local_on_a_full_disk(tmp_path: Path, capsys: Capture, room_bytes: int) -> None:
    with full_disk(room_bytes):
        assert run(["cert", "local", "--dir", str(tmp_path / "tls")]) == exit_codes.FAILED
    assert "File too large; nothing was changed" in capsys.readouterr().err
    assert list((tmp_path / "tls").iterdir()) == []


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A catalogue that downloads nothing."""

    def pull(name: str, models_dir: Path, progress: Progress, weights: str | None = None) -> Any:
        if name not in fake.CATALOG:
            raise ModelError(f"there is no model {name} in the catalogue")
        for done in range(3):
            progress("download", done, 2)
        progress("import", 0, 0)
        changes = (f"{name} is smaller now",)
        return SimpleNamespace(name=name, path=models_dir / name, manifest=SimpleNamespace(changes=changes))

    def import_model(path: Path, *others: Any) -> Any:
        raise OSError(28, "No space left on device")

    fake = SimpleNamespace(CATALOG={"small": None}, pull=pull, import_model=import_model)
    monkeypatch.setitem(sys.modules, "engine.catalog", fake)
    monkeypatch.setattr(engine, "catalog", fake, raising=False)
    return fake


@pytest.mark.usefixtures("catalog")
def test_model_pull(tmp_path: Path, capsys: Capture) -> None:
    assert run(["model", "pull", "small", "--dir", str(tmp_path), "--json"]) == exit_codes.OK
    captured = capsys.readouterr()
    path = str(tmp_path / "small")
    assert json.loads(captured.out) == {"name": "small", "path": path, "changes": ["small is smaller now"]}
    assert "download" in captured.err
    assert run(["model", "pull", "small", "--dir", str(tmp_path)]) == exit_codes.OK
    assert "small: small is smaller now" in capsys.readouterr().err
    assert run(["model", "pull", "tiny", "--dir", str(tmp_path)]) == exit_codes.FAILED
    assert capsys.readouterr().err == "headrace: there is no model tiny in the catalogue\n"


@pytest.mark.usefixtures("catalog")
def test_model_import_on_a_full_disk(tmp_path: Path, capsys: Capture) -> None:
    assert run(["model", "import", "m.gguf", "--dir", str(tmp_path)]) == exit_codes.FAILED
    said = capsys.readouterr().err
    assert f"headrace: cannot make a model folder in {tmp_path}: No space left on device; nothing was changed\n" in said


def test_model_import_of_a_shape_that_is_none(tmp_path: Path, capsys: Capture) -> None:
    for shape in ("x", "=1,2", "x=1,b"):
        assert run(["model", "import", "m.onnx", "--shape", shape, "--dir", str(tmp_path)]) == exit_codes.USAGE
        assert f"--shape {shape}: write TENSOR=N,N,.." in capsys.readouterr().err


@pytest.mark.usefixtures("catalog")
def test_model_list(place: ConfigFiles, capsys: Capture) -> None:
    place.model_folder("chat")
    place.file("broken/model.yaml", "format: 9\n")
    place.file("not-a-model", "")
    assert run(["model", "list", "--dir", str(place.root), "--json"]) == exit_codes.OK
    listed = json.loads(capsys.readouterr().out)
    assert [(each["name"], "problem" in each) for each in listed["models"]] == [("broken", True), ("chat", False)]
    assert listed["available"] == ["small"]
    assert run(["model", "list", "--dir", str(place.root)]) == exit_codes.OK
    assert "`headrace model pull small` gets it" in capsys.readouterr().out


def test_model_fit(place: ConfigFiles, capsys: Capture) -> None:
    sizes = {"layers": 4, "hidden": 1, "heads": 1, "kv_heads": 2, "head_dim": 64, "vocab_size": 9, "top_k": 1}
    facts = {**sizes, "context": 1024, "max_chunk": 512, "eos_ids": [0]}
    place.model_folder("chat", chat=facts)
    fit = ["model", "fit", "chat", "--dir", str(place.root), "--memory"]
    assert run([*fit, "9MiB"]) == exit_codes.OK
    assert capsys.readouterr().out.splitlines() == [
        "chat in 9 MiB: 0 MiB for the model itself",
        "    2  slots full with 1024 tokens, 4 MiB each",
        "    4  slots full with 512 tokens, 2 MiB each",
    ]
    assert run([*fit, "3MiB"]) == exit_codes.OK
    assert "the longest context that fits is 768 tokens; the model was trained for 1024\n" in capsys.readouterr().out
    assert run([*fit, "4KiB"]) == exit_codes.OK
    assert "it does not fit: 2 MiB more for one text of 512 tokens\n" in capsys.readouterr().out
    assert run(["model", "fit", str(place.root / "chat"), "--memory", "9MiB", "--json"]) == exit_codes.OK
    fitting = json.loads(capsys.readouterr().out)
    assert (fitting["name"], fitting["longest_context"]) == ("chat", 1024)
    assert fitting["fits"][0] == {"context": 1024, "slot_bytes": 4 << 20, "slots": 2}


def test_model_fit_of_what_is_no_chat_model_or_no_size(place: ConfigFiles, capsys: Capture) -> None:
    place.model_folder("chat")
    assert run(["model", "fit", "absent", "--dir", str(place.root)]) == exit_codes.FAILED
    assert "is this a model folder? `headrace model pull` makes one" in capsys.readouterr().err
    assert run(["model", "fit", "chat", "--dir", str(place.root), "--memory", "8 gigs"]) == exit_codes.FAILED
    assert "write a number with a unit" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "reload"])
def test_where_no_headrace_runs(place: ConfigFiles, capsys: Capture, command: str) -> None:
    file = place.file("headrace.yaml", LISTENER + "runtime_dir: run\n")
    assert run([command, "-c", str(file)]) == exit_codes.UNAVAILABLE
    said = capsys.readouterr().err
    assert (
        said
        == f"headrace: no headrace serves {file}: nothing answers in {place.root}/run; start it with `headrace serve`\n"
    )


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (PermissionError(13, "Permission denied"), exit_codes.FAILED, "run this as root or as the user that serves"),
        (TimeoutError("timed out"), exit_codes.UNAVAILABLE, "did not answer: timed out; see its log"),
        (ConnectionResetError(104, "reset"), exit_codes.UNAVAILABLE, "did not answer"),
    ],
)
def test_a_headrace_that_does_not_answer(
    place: ConfigFiles, capsys: Capture, monkeypatch: pytest.MonkeyPatch, error: OSError, code: int, says: str
) -> None:
    def call(runtime_dir: Path, verb: str, *, configuration: Path, **arguments: Any) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(admin_client, "call", call)
    assert run(["status", "-c", str(place.file("headrace.yaml", LISTENER))]) == code
    assert says in capsys.readouterr().err


def test_reload_asks_and_tells_the_verdict(
    place: ConfigFiles, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = "headrace.yaml:3:1: wrkers: unknown key; did you mean `workers`?"
    asked: list[tuple[Path, str, dict[str, Any]]] = []
    answers = [
        {"ok": True, "problems": [], "revision": 2},
        {"ok": True, "problems": [], "revision": 2},
        {"ok": False, "problems": [problem], "revision": 2},
        {"ok": False, "problems": [problem], "revision": 2},
    ]

    def call(runtime_dir: Path, verb: str, *, configuration: Path, **arguments: Any) -> dict[str, Any]:
        asked.append((runtime_dir, verb, arguments))
        return answers[len(asked) - 1]

    monkeypatch.setattr(admin_client, "call", call)
    file = str(place.file("headrace.yaml", LISTENER + "runtime_dir: run\n"))
    assert run(["reload", "-c", file]) == exit_codes.OK
    assert "asked for a reload" in capsys.readouterr().out
    assert run(["reload", "-c", file, "--wait"]) == exit_codes.OK
    assert capsys.readouterr().out == "reloaded\n"
    assert run(["reload", "-c", file, "--wait"]) == exit_codes.FAILED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{problem}\nheadrace: nothing was changed; the configuration from before still serves\n"
    assert run(["reload", "-c", file, "--wait", "--json"]) == exit_codes.FAILED
    assert json.loads(capsys.readouterr().out) == answers[3]
    assert asked[0] == (place.root / "run", "reload", {"wait": False})
    assert asked[1] == (place.root / "run", "reload", {"wait": True})


def test_status_is_a_page_or_json(place: ConfigFiles, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    upstreams = {"app": {"breaker": "closed", "servers": {"a": {"idle": 1, "ejected": False}}}}
    children = [{"name": "proxy-1", "pid": 7, "reason": "", "upstreams": upstreams}]
    page = {
        "ready": True,
        "faults": [],
        "listeners": ["https://a", "https://b"],
        "reloads": {"ok": 1, "last_problems": ["a.yaml:1:1: no"]},
        "children": children,
    }
    monkeypatch.setattr(admin_client, "call", lambda runtime_dir, verb, configuration: page)
    file = str(place.file("headrace.yaml", LISTENER))
    assert run(["status", "-c", file]) == exit_codes.OK
    assert capsys.readouterr().out.splitlines() == [
        "ready: yes",
        "faults: none",
        "listeners:",
        "  https://a",
        "  https://b",
        "reloads:  ok=1",
        "  last_problems:",
        "    a.yaml:1:1: no",
        "children:",
        "  proxy-1:  pid=7",
        "    upstreams:",
        "      app:  breaker=closed",
        "        servers:",
        "          a:  idle=1  ejected=no",
    ]
    assert run(["status", "-c", file, "--json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out) == page
