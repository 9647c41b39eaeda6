"""The command line as a whole: exit codes, where output goes, and what a start loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from appliance import exit_codes, process
from appliance.cli import run
from appliance.commands import serve
from tests.appliance.config_files import LISTENER, ConfigFiles

COMMANDS = [
    ("serve",),
    ("check",),
    ("reload",),
    ("status",),
    ("model", "pull"),
    ("model", "import"),
    ("model", "list"),
    ("keys", "add"),
    ("keys", "list"),
    ("keys", "revoke"),
    ("cert", "local"),
    ("route", "explain"),
    ("version",),
]

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: tuple[str, ...], capsys: Capture) -> None:
    assert run([*command, "--help"]) == exit_codes.OK
    assert f"Usage: headrace {' '.join(command)}" in capsys.readouterr().out


def test_help_documents_every_exit_code(capsys: Capture) -> None:
    assert run(["--help"]) == exit_codes.OK
    out = capsys.readouterr().out
    codes = [value for name, value in vars(exit_codes).items() if name.isupper()]
    assert codes
    for code in codes:
        assert f"\n    {code} " in out


@pytest.mark.parametrize("arguments", [["srve"], ["check", "--nonsense"], ["keys", "revoke"], ["cert", "local"]])
def test_arguments_that_are_not_understood(arguments: list[str], capsys: Capture) -> None:
    assert run(arguments) == exit_codes.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Error: " in captured.err


def test_version(capsys: Capture) -> None:
    assert run(["version"]) == exit_codes.OK
    assert capsys.readouterr().out.startswith("headrace ")
    assert run(["version", "--json"]) == exit_codes.OK
    assert set(json.loads(capsys.readouterr().out)) == {"headrace", "python"}


def test_a_start_loads_nothing_heavy() -> None:
    heavy = "aiohttp", "cryptography", "numpy", "onnxruntime", "pydantic", "rich", "tiktoken", "yaml", "engine", "proxy"
    code = f"import sys, appliance.cli; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout == "[]\n", done.stderr


def test_a_fault_of_ours_is_one_sentence_too(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def broken(path: Path) -> int:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(process, "serve", broken)
    assert run(["serve"]) == exit_codes.INTERNAL
    captured = capsys.readouterr()
    assert captured.err.startswith("headrace: internal fault, please report it: RuntimeError: out of luck (")
    assert captured.err.count("\n") == 1


def test_serve_hands_on_the_file_and_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def served(path: Path) -> int:
        asked.append(path)
        return exit_codes.CANNOT_CREATE

    monkeypatch.setattr(process, "serve", served)
    assert run(["serve", "-c", "some.yaml"]) == exit_codes.CANNOT_CREATE
    monkeypatch.setenv("HEADRACE_CONFIG", "other.yaml")
    run(["serve"])
    monkeypatch.delenv("HEADRACE_CONFIG")
    run(["serve"])
    assert asked == [Path("some.yaml"), Path("other.yaml"), serve.DEFAULT_CONFIG]


def test_check_says_ok_or_every_problem(place: ConfigFiles, capsys: Capture) -> None:
    file = place.file("headrace.yaml", LISTENER)
    assert run(["check", "-c", str(file)]) == exit_codes.OK
    assert capsys.readouterr().out == f"{file}: ok\n"
    place.file("headrace.yaml", LISTENER + "drain: 5\nwrkers: 1\n")
    assert run(["check", "-c", str(file)]) == exit_codes.CANNOT_BOOT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.split(": ")[:2] for line in captured.err.splitlines()] == [
        [f"{file}:2:8", "drain"],
        [f"{file}:3:1", "wrkers"],
    ]


def test_check_for_scripts(place: ConfigFiles, capsys: Capture) -> None:
    file = place.file("headrace.yaml", LISTENER + "drain: 5\n")
    assert run(["check", "-c", str(file), "--json"]) == exit_codes.CANNOT_BOOT
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    [problem] = said["problems"]
    assert (problem["file"], problem["line"], problem["column"], problem["key"]) == (str(file), 2, 8, "drain")
    place.file("headrace.yaml", LISTENER)
    assert run(["check", "-c", str(file), "--json", "--print"]) == exit_codes.OK
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is True
    assert said["configuration"]["drain"] == "30s"


def test_check_prints_what_is_in_effect_and_no_secret(place: ConfigFiles, capsys: Capture) -> None:
    place.file("s", "sk-hidden\n")
    place.file("conf.d/app.yaml", "upstreams: {app: {servers: ['http://a:1'], key: {secret: s}}}\n")
    text = "include: [conf.d/*.yaml]\nsecrets: {s: {file: s}}\n" + LISTENER
    file = place.file("headrace.yaml", text)
    assert run(["check", "-c", str(file), "--print"]) == exit_codes.OK
    out = capsys.readouterr().out
    assert "http://a:1" in out
    assert "first_byte: 60s" in out or "first_byte: 1m" in out
    assert "sk-hidden" not in out
    assert run(["check", "-c", str(place.file("again.yaml", out))]) == exit_codes.OK


def test_output_to_a_closed_pipe_is_no_fault(place: ConfigFiles) -> None:
    file = place.file("headrace.yaml", LISTENER)
    command = f"{sys.executable} -m appliance.cli check -c {file} --print | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert "Traceback" not in done.stderr
