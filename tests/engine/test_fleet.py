"""Models that come into memory when they are asked for and leave it for others: a fleet of fakes on a real device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from engine import fleet as fleet_module
from engine.errors import EngineError, Kind, RequestError
from engine.fleet import RETRY_S
from tests.engine.fleet_box import Box, open_box, use
from tests.fakes_engine import until


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with open_box() as opened:
        yield opened


async def test_at_the_start_as_many_are_loaded_as_fit_and_share_what_is_left(box: Box) -> None:
    fleet = box.fleet(box.entry("a"), box.entry("b"), box.entry("c"))
    told: list[str] = []
    await fleet.start(told.append)
    assert list(fleet.loaded) == ["a", "b"]
    assert [model.kv_bytes for model in box.made] == [20, 20]
    assert told == ["loading a", "loading b", "c does not fit beside the others and is loaded when it is asked for"]
    await fleet.close()
    assert all(model.closed for model in box.made)


async def test_a_model_that_can_never_fit_is_told_at_the_start(box: Box) -> None:
    with pytest.raises(EngineError, match=r"needs 1 MiB for weights and 2 MiB for one .* 0 MiB; set"):
        await box.fleet(box.entry("huge", 1 << 20, 2 << 20)).start(lambda what: None)


async def test_the_least_recently_used_leaves_for_one_that_is_asked_for_and_comes_back(box: Box) -> None:
    fleet = box.fleet(box.entry("a"), box.entry("b"), box.entry("c"))
    await fleet.start(lambda what: None)
    a, b = box.made
    box.now = 1.0
    assert await use(fleet, "a") is a
    assert (await use(fleet, "c")).name == "c"
    assert b.closed
    assert not a.closed
    assert list(fleet.loaded) == ["a", "c"]
    box.now = 2.0
    again = await use(fleet, "b")
    assert again is not b
    assert list(fleet.loaded) == ["b", "c"]
    numbers = fleet.statistics()
    assert [numbers["b"][name] for name in ("loaded", "loads_total", "unloads_total", "slots")] == [1, 2, 1, 1]
    assert "slots" not in numbers["a"]
    await fleet.close()


async def test_what_one_leaves_the_others_share(box: Box) -> None:
    fleet = box.fleet(box.entry("a"), box.entry("b", idle_unload_s=10))
    await fleet.start(lambda what: None)
    a, _ = box.made
    box.now = 10.0
    await fleet.sweep()
    assert list(fleet.loaded) == ["a"]
    assert a.kv_bytes == 70
    box.budget = 60  # others have taken some of the box's memory
    await fleet.sweep()
    assert a.kv_bytes == 30
    await fleet.close()


async def test_it_looks_for_idle_models_by_itself_and_goes_on_when_that_fails(
    box: Box, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet_module, "_SWEEP_S", 0.0)
    fleet = box.fleet(box.entry("a", idle_unload_s=10))
    await fleet.start(lambda what: None)
    monkeypatch.setattr(fleet, "_budget", lambda: 1 // 0)
    await until(lambda: "models could not be unloaded" in caplog.text)
    monkeypatch.setattr(fleet, "_budget", lambda: 100)
    assert list(fleet.loaded) == ["a"]
    box.now = 10.0
    await until(lambda: not fleet.loaded)
    await fleet.close()


async def test_a_used_model_stays_and_the_other_waits_for_its_users_to_leave(box: Box) -> None:
    fleet = box.fleet(box.entry("a"), box.entry("b", 60, 20))
    await fleet.start(lambda what: None)
    async with AsyncExitStack() as users:
        await users.enter_async_context(fleet.hold(fleet.entries["a"]))
        waiting = asyncio.ensure_future(use(fleet, "b"))
        await until(lambda: fleet.entries["b"].num_users == 1)
        assert not box.made[0].closed
    assert (await waiting).name == "b"
    assert box.made[0].closed
    await fleet.close()


async def test_while_the_others_stay_in_use_it_is_refused_with_their_names(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "ROOM_WAIT_S", 0.0)
    fleet = box.fleet(box.entry("a"), box.entry("b", 60, 20))
    await fleet.start(lambda what: None)
    async with fleet.hold(fleet.entries["a"]):
        with pytest.raises(RequestError, match="needs the memory of others, and they are in use: a") as caught:
            await use(fleet, "b")
    assert caught.value.kind is Kind.OVERLOADED
    assert caught.value.retry_after_s is not None
    await fleet.close()


async def test_requests_wait_together_for_one_load_and_only_so_many(box: Box) -> None:
    box.gate.clear()
    fleet = box.fleet(box.entry("a", max_waiting=2))
    waiting = [asyncio.ensure_future(use(fleet, "a")) for _ in range(2)]
    await until(lambda: fleet.entries["a"].num_users == 2)
    with pytest.raises(RequestError, match="is being loaded and 2 wait for it; try again in 2 s"):
        await use(fleet, "a")
    box.gate.set()
    first, second = await asyncio.gather(*waiting)
    assert first is second
    assert len(box.made) == 1
    await fleet.close()


async def test_a_load_goes_on_for_the_others_when_one_leaves(box: Box) -> None:
    box.gate.clear()
    fleet = box.fleet(box.entry("a"))
    leaves, stays = (asyncio.ensure_future(use(fleet, "a")) for _ in range(2))
    await until(lambda: fleet.entries["a"].num_users == 2)
    leaves.cancel()
    await asyncio.wait([leaves])
    box.gate.set()
    assert (await stays).name == "a"
    await fleet.close()


async def test_a_damaged_model_is_503_without_its_path_and_is_not_tried_again_at_once(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    box.fails.add("a")
    fleet = box.fleet(box.entry("a"), box.entry("b"))
    for _ in range(3):
        with pytest.raises(RequestError, match="'a' could not be loaded; the engine's log says why") as caught:
            await use(fleet, "a")
        assert caught.value.kind is Kind.UNAVAILABLE
    assert caplog.messages == ["a is damaged"]
    assert (await use(fleet, "b")).name == "b"
    box.fails.clear()
    box.now += RETRY_S
    assert (await use(fleet, "a")).name == "a"
    await fleet.close()
