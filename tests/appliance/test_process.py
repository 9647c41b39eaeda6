"""The supervisor's body with real processes and a real control channel; the workers in the children are fakes."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from appliance.lock import claim
from appliance.resource_error import ResourceError
from tests.appliance.running import TIMEOUT_S, Running, free_port, of_process, run


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    monkeypatch.setattr("engine.model_folder.read", lambda path: None)  # the fake engines' folders hold words only
    return Running(tmp_path)


@pytest.fixture
async def two(files: Running) -> AsyncIterator[Running]:
    """Two proxies serve, and no engine."""
    files.write(more="workers: 2\ndrain: 5s")
    async with run(files) as running:
        yield running


@pytest.fixture
async def local(files: Running) -> AsyncIterator[Running]:
    """One proxy and an engine serve."""
    files.write_model("chat")
    files.write(models=("chat",))
    async with run(files) as running:
        yield running


async def test_it_serves_and_says_so(two: Running) -> None:
    assert await two.get("/healthz") == (200, "ok\n")
    children = await two.children()
    assert {name: child["state"] for name, child in children.items()} == {"proxy-1": "serving", "proxy-2": "serving"}
    pid, names = await two.who()
    assert int(pid) in {child["pid"] for child in children.values()}
    assert names == "app"


async def test_a_killed_worker_is_replaced_and_the_other_serves_on(two: Running) -> None:
    before = await two.children()
    survivor = before["proxy-2"]["pid"]
    os.kill(before["proxy-1"]["pid"], signal.SIGKILL)
    status = await two.until(lambda status: status["ready"] and status["children"][0]["restarts"] == 1)
    assert status["children"][1]["pid"] == survivor
    assert status["children"][0]["pid"] != before["proxy-1"]["pid"]


async def test_J01_a_reload_cuts_nothing_and_serves_the_new_configuration(two: Running) -> None:
    async with two.connected() as stream:
        pid, _ = await stream.who()
        two.write(upstream="other", more="workers: 2")
        assert await two.ask("reload", wait=True) == {"ok": True, "problems": [], "revision": 2}
        assert await stream.who() == [pid, "other"]


@pytest.mark.parametrize("broken", ["", "listeners: [", "listeners:\n\t- {}", "unknown: 1"])
async def test_J04_a_broken_file_changes_nothing(two: Running, broken: str) -> None:
    two.file.write_text(broken)
    answer = await two.ask("reload", wait=True)
    assert not answer["ok"]
    assert answer["revision"] == 1
    assert all(problem.startswith(str(two.file)) for problem in answer["problems"])
    assert await two.get("/healthz") == (200, "ok\n")
    _, metrics = await two.get("/metrics")
    assert "headrace_config_reload_failures_total 1.0" in metrics
    assert "headrace_config_last_reload_ok 0.0" in metrics


@pytest.mark.parametrize(("upstream", "problem"), [
    ("refused", "upstream refused: as its name says"),
    ("crash", "was killed by SIGSEGV"),
])  # fmt: skip
async def test_J04_what_a_worker_cannot_build_is_rolled_back(two: Running, upstream: str, problem: str) -> None:
    two.write(upstream=upstream, more="workers: 2")
    answer = await two.ask("reload", wait=True)
    assert problem in answer["problems"][0]
    await two.until(lambda status: status["ready"])
    assert (await two.who())[1] == "app"


async def test_J04_a_port_in_use_refuses_the_reload(two: Running) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    two.write(port=server.sockets[0].getsockname()[1])
    answer = await two.ask("reload", wait=True)
    assert "is in use (by " in answer["problems"][0]
    assert (await two.who())[1] == "app"
    server.close()


async def test_a_new_listener_reaches_the_workers_and_the_old_one_closes(two: Running) -> None:
    old, new = two.port, free_port()
    two.write(port=new, more="workers: 2")
    assert (await two.ask("reload", wait=True))["ok"]
    two.port = new
    assert (await two.who())[1] == "app"
    two.port = old
    with pytest.raises(ConnectionRefusedError):
        await two.who()


async def test_a_hung_worker_is_replaced(two: Running) -> None:
    pid = (await two.children())["proxy-1"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    status = await two.until(lambda status: status["ready"] and status["children"][0]["restarts"] == 1)
    assert status["children"][0]["pid"] != pid


async def test_O05_a_dead_engine_comes_back_and_no_proxy_is_restarted(local: Running) -> None:
    before = await local.children()
    os.kill(before["engine-1"]["pid"], signal.SIGKILL)
    await local.until(lambda status: status["children"][0]["restarts"] == 1)
    await local.until(lambda status: status["ready"])
    after = await local.children()
    assert after["proxy-1"]["pid"] == before["proxy-1"]["pid"]
    assert after["proxy-1"]["restarts"] == 0


async def test_the_engines_process_is_as_the_runtime_wants_it(local: Running) -> None:
    status = await local.until(lambda status: "session" in status["children"][0])
    engine = status["children"][0]
    assert (engine["telemetry_off"], engine["session"]) == ("1", True)


async def test_the_metrics_page_holds_the_engines_too(local: Running) -> None:
    _, page = await local.get("/metrics")
    assert "fake_engine_tokens_total 7" in page
    assert "headrace_engine_scraped 1.0" in page
    assert 'headrace_child_up{child="engine-1"} 1.0' in page


async def test_new_models_come_up_beside_the_old_and_replace_them(local: Running) -> None:
    local.write_model("other")
    local.write(models=("chat", "other"))
    assert (await local.ask("reload", wait=True))["ok"]
    status = await local.until(lambda status: "engine-1" not in [child["name"] for child in status["children"]])
    assert (status["generation"], status["ready"]) == (2, True)


async def test_models_that_cannot_load_are_rolled_back(local: Running) -> None:
    local.write_model("other", "corrupt")
    local.write(models=("other",))
    answer = await local.ask("reload", wait=True)
    assert "weights.bin is corrupt; import the model again" in answer["problems"][0]
    status = await local.ask("status")
    assert (status["generation"], status["ready"]) == (1, True)


async def test_a_model_that_can_never_load_ends_the_start(files: Running, caplog: pytest.LogCaptureFixture) -> None:
    files.write_model("chat", "corrupt")
    files.write(models=("chat",))
    async with run(files) as running:
        assert running.exit_code is not None
        assert await running.exit_code == 78
    assert "engine-1 failed: weights.bin is corrupt; import the model again" in caplog.text


async def test_O05_an_engine_in_trouble_makes_the_box_unready(local: Running) -> None:
    local.write_model("chat", "sick")
    assert (await local.ask("reload", wait=True))["ok"]
    status = await local.until(lambda status: not status["ready"])
    assert "the runner hangs" in status["faults"][0]
    code, body = await local.get("/healthz")
    assert (code, "engine-2" in body) == (503, True)


async def test_the_admin_socket_is_its_owners_alone(two: Running) -> None:
    assert (two.runtime_dir / "admin.sock").stat().st_mode & 0o777 == 0o600


async def test_the_admin_port_takes_no_orders(two: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", two.admin_port)
    writer.write(b"POST /stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 404 ")
    writer.close()


@pytest.mark.parametrize(("host", "status"), [
    ("127.0.0.1:9180", 200), ("[::1]:9180", 200), ("localhost", 200), ("rebound.example:9180", 403), ("", 403),
])  # fmt: skip
async def test_the_admin_port_answers_to_no_name_that_a_web_page_can_have(two: Running, host: str, status: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", two.admin_port)
    writer.write(f"GET /status HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
    writer.close()


async def test_a_runtime_directory_that_is_removed_is_made_again_and_the_engine_replaced(local: Running) -> None:
    shutil.rmtree(local.runtime_dir)
    async with asyncio.timeout(TIMEOUT_S):
        while not (local.runtime_dir / "admin.sock").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    status = await local.until(lambda status: status["children"][0]["restarts"] and status["ready"])
    assert [child["restarts"] for child in status["children"]] == [1, 0]
    assert (local.runtime_dir / "engine-1.sock").exists()
    assert (await local.ask("reload", wait=True))["ok"]


async def test_an_access_log_that_nobody_takes_is_refused_at_once(two: Running) -> None:
    os.mkfifo(two.directory / "fifo")
    two.write(more=f"workers: 2\nlog: {{access: {two.directory}/fifo}}")
    answer = await two.ask("reload", wait=True)
    assert answer["problems"] == [f"log.access: {two.directory}/fifo cannot be written: nobody reads the FIFO"]


async def test_no_child_leaves_a_core_dump_with_keys_in_it(local: Running) -> None:
    for child in (await local.children()).values():
        assert re.search(rb"Max core file size +0 ", of_process(child["pid"], "limits"))


async def test_a_secret_in_a_variable_stays_with_the_supervisor(
    files: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_KEY", "sk-secret")
    files.write(more="secrets: {other: {env: OTHER_KEY}}")
    async with run(files) as running:
        for child in (await running.children()).values():
            for place in "environ", "cmdline":
                assert b"sk-secret" not in of_process(child["pid"], place)
        assert "sk-secret" not in str(await running.ask("status"))


async def test_a_second_one_on_the_same_runtime_directory_is_refused(two: Running) -> None:
    with (
        pytest.raises(ResourceError, match=rf"another headrace \(pid {os.getpid()}\) is running there"),
        claim(two.runtime_dir),
    ):
        pass


async def takes_connections(running: Running) -> bool:
    try:
        await running.who()
    except ConnectionError:
        return False
    return True


async def test_D08_the_end_comes_when_the_last_stream_has_ended(two: Running) -> None:
    async with two.connected() as stream:
        await stream.who()
        await two.ask("stop")
        await two.until(lambda status: status["phase"] == "stopping")
        async with asyncio.timeout(TIMEOUT_S):
            while await takes_connections(two):  # a worker may not have heard of it yet
                pass
        assert (await two.get("/healthz"))[0] == 503
        assert len(await stream.who()) == 2
    assert two.exit_code is not None
    assert await two.exit_code == 0


async def test_D08_the_second_order_ends_at_once(two: Running) -> None:
    async with two.connected() as stream:
        await stream.who()
        await two.ask("stop")
        await two.until(lambda status: status["phase"] == "stopping")
        assert await two.end() == 130
        assert await stream.reader.read() == b""
