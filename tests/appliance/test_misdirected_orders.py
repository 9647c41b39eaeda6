"""`headrace COMMAND -c FILE` reaches the headrace that serves FILE, and never another one that answers in its place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from appliance import exit_codes
from appliance.cli import run as headrace
from tests.appliance.running import Running, run

Capture = pytest.CaptureFixture[str]
ORDERS = [
    "status",
    "reload",
    "reload --wait",
    "events",
    "breaker list",
    "breaker open app",
    "variants list",
    "variants set r v 5%",
    "model served",
    "model unload m",
]


async def say(order: str, file: Path) -> int:
    """The exit code of one command."""
    return await asyncio.to_thread(headrace, [*order.split(), "-c", str(file)])


async def breaker_of(running: Running) -> object:
    return (await running.ask("breakers", order="list"))["breakers"]["app"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    """One whose runtime directory is where commands look when a file names none."""
    running = Running(tmp_path)
    running.write()
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(running.runtime_dir))
    return running


async def test_another_one_does_nothing_for_a_file_that_it_does_not_serve(files: Running, capsys: Capture) -> None:
    broken, missing = files.directory / "broken.yaml", files.directory / "none.yaml"
    other, same_place = files.directory / "other.yaml", files.directory / "same.yaml"
    broken.write_text("x: [\n")
    other.write_text("listeners: [{address: 127.0.0.1:1}]\n")
    same_place.write_text(files.file.read_text())
    async with run(files) as running:
        before = await breaker_of(running)
        for order in ORDERS:
            for file, code, told in (
                (broken, exit_codes.CANNOT_BOOT, f"{broken}:2:1: "),
                (missing, exit_codes.CANNOT_BOOT, f"{missing}: there is no such file\n"),
                (other, exit_codes.UNAVAILABLE, f"serves {files.file}, not {other}; to ask it, say `-c {files.file}`"),
                (same_place, exit_codes.UNAVAILABLE, f"serves {files.file}, not {same_place}"),
            ):
                assert await say(order, file) == code, (order, file)
                captured = capsys.readouterr()
                assert captured.out == "", (order, file)
                assert told in captured.err, (order, file)
        assert await breaker_of(running) == before
        assert (await running.ask("status"))["reloads"]["ok"] == 0
        assert await say("breaker open app --json", files.file) == exit_codes.OK
        assert await breaker_of(running) != before


async def test_a_file_that_was_broken_while_it_is_served_still_reaches_its_headrace(
    files: Running, capsys: Capture
) -> None:
    async with run(files):
        files.file.write_text(f"runtime_dir: {files.runtime_dir}\nlisteners: [\n")
        assert await say("status", files.file) == exit_codes.OK
        assert "phase: " in capsys.readouterr().out
        assert await say("reload --wait", files.file) == exit_codes.FAILED
        assert f"{files.file}:3:1: " in capsys.readouterr().err
        files.file.unlink()
        assert await say("reload --wait", files.file) == exit_codes.FAILED
        assert "there is no such file" in capsys.readouterr().err


async def test_a_broken_file_that_nobody_serves_is_told_to_be_broken(files: Running, capsys: Capture) -> None:
    files.file.write_text("x: [\n")
    assert await say("reload --wait", files.file) == exit_codes.CANNOT_BOOT
    said = capsys.readouterr().err
    assert said.startswith(f"{files.file}:2:1: ")
    assert said.endswith(f"headrace: found no headrace that serves {files.file}; mend the file and ask again\n")


async def test_a_file_by_another_name_is_the_same_file(files: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    (files.directory / "a link, ä.yaml").symlink_to(files.file)
    monkeypatch.chdir(files.directory)
    async with run(files):
        assert await say("status", Path("headrace.yaml")) == exit_codes.OK
        link = ["status", "-c", "a link, ä.yaml"]
        assert await asyncio.to_thread(headrace, link) == exit_codes.OK
