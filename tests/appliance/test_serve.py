"""The program as it is run: reloads, kills, drains and refusals, with real proxies and streams that go on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.appliance.running import of_process
from tests.appliance.served import TIMEOUT_S, Served, Stream, is_running, streaming_upstream


@pytest.fixture
async def upstream() -> AsyncIterator[int]:
    async with streaming_upstream() as port:
        yield port


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    server = Served(tmp_path)
    yield server
    await server.close()


async def test_J01_a_hundred_streams_outlive_reloads_of_every_kind(served: Served, upstream: int) -> None:
    served.write(upstream)
    await served.start()
    streams = [await served.stream() for _ in range(100)]
    async with streaming_upstream() as other:
        for revision, change in enumerate(
            [{"path": "/events"}, {"path": "/other"}, {"path": "/*", "upstream_port": other}], start=2
        ):
            served.write(**{"upstream_port": upstream, **change})
            served.signal(signal.SIGHUP)
            await served.until(lambda revision=revision: f"revision {revision} serves" in served.log, "the reload")
            await asyncio.gather(*(stream.event() for stream in streams))
        assert await served.status_of("/elsewhere") == 200


async def test_J01_many_reloads_at_once_refuse_no_connection(served: Served, upstream: int) -> None:
    served.write(upstream)
    await served.start()
    before = await served.pids()
    reloads = [asyncio.ensure_future(served.ask("reload", wait=True)) for _ in range(20)]
    while not all(reload.done() for reload in reloads):
        assert await served.status_of("/") == 200
    assert all(reload.result()["ok"] for reload in reloads)
    assert await served.pids() == before


async def test_J04_a_broken_file_changes_nothing_and_the_log_names_the_line(served: Served, upstream: int) -> None:
    served.write(upstream)
    await served.start()
    stream = await served.stream()
    served.file.write_text(served.file.read_text().replace("listeners:", "listenres:"))
    served.signal(signal.SIGHUP)
    await served.until(lambda: "the reload was refused" in served.log, "the refusal")
    assert f"{served.file}:7:1: listenres: " in served.log
    await stream.event()
    assert await served.status_of("/") == 200


async def test_a_killed_worker_takes_only_its_own_streams(served: Served, upstream: int) -> None:
    served.write(upstream, workers=2)
    await served.start()
    before = await served.pids()
    streams = [await served.stream() for _ in range(20)]
    os.kill(before["proxy-1"], signal.SIGKILL)
    outcomes = await asyncio.gather(*map(_outlives, streams))
    assert await served.status_of("/") == 200
    await served.until(lambda: "proxy-1 serves again" in served.log, "the successor")
    after = await served.pids()
    assert after["proxy-2"] == before["proxy-2"]
    assert after["proxy-1"] != before["proxy-1"]
    assert len(set(outcomes)) <= 2
    assert await asyncio.gather(*map(_outlives, streams)) == outcomes


async def test_K04_counts_outlive_a_killed_worker_and_gauges_do_not(served: Served, upstream: int) -> None:
    served.write(upstream)
    await served.start()
    for _ in range(5):
        await served.status_of("/")
    streams = [await served.stream() for _ in range(3)]

    async def until_open(num_streams: int) -> dict[str, float]:
        async with asyncio.timeout(TIMEOUT_S):
            while (metrics := await served.metrics())["headrace_exchanges"] != num_streams:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return metrics

    before = await until_open(3)
    assert before["headrace_requests_total"] == 5
    os.kill((await served.pids())["proxy-1"], signal.SIGKILL)
    for stream in streams:
        await stream.rest()
    after = await until_open(0)
    await served.until(lambda: "proxy-1 serves again" in served.log, "the successor")
    await served.status_of("/")
    assert (await until_open(0))["headrace_requests_total"] >= after["headrace_requests_total"] >= 5


async def test_a_reload_opens_a_rotated_access_log_anew(served: Served, upstream: int, tmp_path: Path) -> None:
    access_log, rotated = tmp_path / "access", tmp_path / "access.1"
    served.write(upstream, access_log=str(access_log))
    await served.start()
    await served.status_of("/first")
    await served.until(lambda: "/first" in access_log.read_text(), "the first line")
    access_log.rename(rotated)
    assert (await served.ask("reload", wait=True))["ok"]
    await served.status_of("/second")
    await served.until(lambda: "/second" in access_log.read_text(), "the second line")
    assert "/second" not in rotated.read_text()


async def _outlives(stream: Stream) -> bool:
    try:
        for _ in range(5):
            await stream.event()
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return True


async def test_D08_idle_connections_end_at_once_and_streams_at_the_limit(served: Served, upstream: int) -> None:
    served.write(upstream, drain="1s")
    await served.start()
    streams = [await served.stream() for _ in range(3)]
    idle = [await served.connect() for _ in range(2)]
    served.signal(signal.SIGTERM)
    assert [await each.rest() for each in idle] == [b"", b""]
    await asyncio.gather(*(stream.event() for stream in streams))
    with pytest.raises(ConnectionError):
        await served.status_of("/")
    rests = await asyncio.gather(*(stream.rest() for stream in streams))
    assert not any(rest.endswith(b"0\r\n\r\n") for rest in rests)  # cut, and to be seen as cut
    assert await served.wait() == 0


async def test_D08_the_end_comes_as_soon_as_all_is_idle(served: Served, upstream: int) -> None:
    served.write(upstream, drain="1h")
    await served.start()
    stream = await served.stream()
    served.signal(signal.SIGTERM)
    await stream.event()
    await stream.close()
    assert await served.wait() == 0


async def test_D08_a_second_signal_forces_the_end(served: Served, upstream: int) -> None:
    served.write(upstream, drain="1h")
    await served.start()
    stream, pids = await served.stream(), await served.pids()
    served.signal(signal.SIGINT)
    await served.until(lambda: "stopping" in served.log, "the drain")
    served.signal(signal.SIGINT)
    assert await served.wait() == 130
    await stream.rest()
    assert not any(map(is_running, pids.values()))


async def test_children_do_not_outlive_a_killed_supervisor(served: Served, upstream: int) -> None:
    served.write(upstream)
    await served.start()
    pids = await served.pids()
    served.signal(signal.SIGKILL)
    await served.until(lambda: not any(map(is_running, pids.values())), "the children's end")
    await served.wait()
    await served.start()
    assert await served.status_of("/") == 200


async def test_a_port_in_use_is_named_with_its_owner(served: Served, upstream: int) -> None:
    served.port = upstream
    served.write(upstream)
    await served.spawn()
    assert await served.wait() == 73
    assert f"address 127.0.0.1:{upstream} is in use (by " in served.log
    assert f"pid {os.getpid()}" in served.log


async def test_a_second_one_is_refused(served: Served, upstream: int, tmp_path: Path) -> None:
    served.write(upstream)
    await served.start()
    second = Served(tmp_path)
    second.log_path = tmp_path / "second"
    await second.spawn()
    assert await second.wait() == 73
    assert f"another headrace (pid {served.process.pid}) is running there" in second.log
    assert await served.status_of("/") == 200


async def test_the_admin_address_of_a_listener_is_refused(served: Served, upstream: int) -> None:
    served.admin_port = served.port
    served.write(upstream)
    await served.spawn()
    assert await served.wait() == 78
    assert f"admin.address: 127.0.0.1:{served.port} is a listener's address" in served.log


async def test_a_missing_file_is_a_clear_error(served: Served) -> None:
    await served.spawn()
    assert await served.wait() == 78
    assert f"{served.file}: there is no such file" in served.log


async def test_the_service_manager_hears_all_of_it(served: Served, upstream: int, tmp_path: Path) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(TIMEOUT_S)
    served.write(upstream)
    environ = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}

    def heard() -> str:
        return manager.recv(4096).decode().split("\n")[0]

    await served.spawn(env=environ)  # not `start`: a manager listens all the time, or its queue of ten is full of pings

    async def until(state: str) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while await asyncio.to_thread(heard) != state:
                pass

    await until("READY=1")
    await until("WATCHDOG=1")
    served.signal(signal.SIGHUP)
    await until("RELOADING=1")
    await until("READY=1")
    assert b"NOTIFY_SOCKET" not in of_process((await served.pids())["proxy-1"], "environ")
    served.signal(signal.SIGTERM)
    await until("STOPPING=1")
    assert await served.wait() == 0
    manager.close()


async def test_sockets_of_the_service_manager_are_adopted(served: Served, upstream: int) -> None:
    with socket.create_server(("127.0.0.1", served.port)) as theirs:
        served.write(upstream)
        script = f'exec 3<&{theirs.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
        await served.start("bash", "-c", script, "bash", pass_fds=[theirs.fileno()])
        assert await served.status_of("/") == 200
