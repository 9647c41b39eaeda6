"""Models that are loaded anew, unloaded and swapped while they serve (case O10): a fleet of fakes on a real device."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import fleet as fleet_module
from engine.entry import State
from engine.errors import EngineError, Kind, RequestError
from engine.fleet import Fleet
from tests.engine.fleet_box import Box, open_box, use
from tests.fakes_engine import until


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with open_box() as opened:
        yield opened


async def refused(fleet: Fleet, name: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await use(fleet, name)
    return caught.value


async def test_O10_the_new_one_is_loaded_beside_the_old_one_which_serves_until_it_is_ready(box: Box) -> None:
    fleet = box.fleet(box.entry("a"))
    a = fleet.entries["a"]
    await fleet.start(lambda what: None)
    box.gate.clear()
    box.entered.clear()
    loading = asyncio.ensure_future(fleet.load(a))
    await until(box.entered.is_set)
    assert await use(fleet, "a") is box.made[0]
    assert a.state is State.READY
    box.gate.set()
    await loading
    assert await use(fleet, "a") is box.made[1]
    await until(lambda: box.made[0].closed)
    await until(lambda: len(a.loaded) == 1)
    assert (a.num_loads, a.num_unloads, a.reason) == (2, 1, "")
    await fleet.close()


async def test_O10_requests_in_flight_end_on_the_old_one_which_then_goes(box: Box) -> None:
    fleet = box.fleet(box.entry("a"))
    a = fleet.entries["a"]
    await fleet.start(lambda what: None)
    async with AsyncExitStack() as users:
        held = [await users.enter_async_context(fleet.hold(a)) for _ in range(28)]
        await fleet.load(a)
        assert await use(fleet, "a") is box.made[1]
        assert set(held) == {box.made[0]}
        assert not box.made[0].closed
        assert a.statistics()["draining"] == 28
        assert a.reason == "28 requests go on with the one before"
    await until(lambda: box.made[0].closed)
    assert not box.made[1].closed
    await fleet.close()


@pytest.mark.parametrize("where", ["fails", "damaged"])
async def test_O10_a_failed_load_keeps_the_old_one(box: Box, where: str, caplog: pytest.LogCaptureFixture) -> None:
    fleet = box.fleet(box.entry("a"))
    a = fleet.entries["a"]
    await fleet.start(lambda what: None)
    getattr(box, where).add("a")
    for _ in range(2):
        with pytest.raises(EngineError, match="a is damaged"):
            await fleet.load(a)
    assert await use(fleet, "a") is box.made[0]
    assert a.state is State.READY
    assert a.reason == "it could not be loaded; the engine's log says why, and the one before it serves"
    assert sum("a is damaged" in message for message in caplog.messages) == 2
    getattr(box, where).clear()
    await fleet.load(a)
    assert a.reason == ""
    await fleet.close()


async def test_O10_unloaded_in_flight_ends_well_and_others_are_503_until_an_order_loads_it(box: Box) -> None:
    fleet = box.fleet(box.entry("a"))
    a = fleet.entries["a"]
    await fleet.start(lambda what: None)
    async with fleet.hold(a) as held:
        await fleet.unload(a)
        assert a.state is State.UNLOADING
        error = await refused(fleet, "a")
        assert (error.kind, error.message) == (
            Kind.UNAVAILABLE,
            "the model 'a' was unloaded and serves again when it is loaded by an order",
        )
        assert held is box.made[0]
        assert not box.made[0].closed
    await until(lambda: box.made[0].closed)
    await until(lambda: a.state is State.UNAVAILABLE)
    assert a.reason == "unloaded"
    await fleet.unload(a)
    await refused(fleet, "a")
    assert len(box.made) == 1
    await fleet.load(a)
    assert await use(fleet, "a") is box.made[1]
    await fleet.close()


async def test_O10_orders_are_obeyed_one_after_another_in_their_order(box: Box) -> None:
    """FakeModel and Box insist that no two load at a time and that nothing is closed twice."""
    fleet = box.fleet(box.entry("a"))
    a = fleet.entries["a"]
    await asyncio.gather(fleet.load(a), fleet.unload(a), fleet.load(a))
    assert await use(fleet, "a") is box.made[1]
    await asyncio.gather(fleet.load(a), fleet.load(a))
    assert await use(fleet, "a") is box.made[3]
    await asyncio.gather(fleet.load(a), fleet.unload(a))
    assert (await refused(fleet, "a")).kind is Kind.UNAVAILABLE
    await until(lambda: all(model.closed for model in box.made))
    assert len(box.made) == 5
    await fleet.close()


async def test_O10_who_waits_for_a_model_that_is_unloaded_meanwhile_is_told(box: Box) -> None:
    fleet = box.fleet(box.entry("a"), box.entry("b"))
    box.gate.clear()
    loading = asyncio.ensure_future(fleet.load(fleet.entries["b"]))
    await until(box.entered.is_set)
    unloading = asyncio.ensure_future(fleet.unload(fleet.entries["a"]))
    await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(refused(fleet, "a")) for _ in range(3)]
    await until(lambda: fleet.entries["a"].num_users == 3)
    box.gate.set()
    assert {(await each).kind for each in waiting} == {Kind.UNAVAILABLE}
    await asyncio.gather(loading, unloading)
    assert [model.name for model in box.made] == ["b"]
    await fleet.close()


async def test_an_order_is_carried_out_although_whoever_gave_it_has_left(box: Box) -> None:
    fleet = box.fleet(box.entry("a"))
    box.gate.clear()
    ordering = asyncio.ensure_future(fleet.load(fleet.entries["a"]))
    await until(box.entered.is_set)
    ordering.cancel()
    await asyncio.wait([ordering])
    box.gate.set()
    await until(lambda: "a" in fleet.loaded)
    await fleet.close()


async def test_only_so_many_orders_wait(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "MAX_ORDERS", 2)
    fleet = box.fleet(box.entry("a"))
    orders = [asyncio.ensure_future(fleet.load(fleet.entries["a"])) for _ in range(3)]
    with pytest.raises(RequestError, match="2 orders to load or unload models wait") as caught:
        await orders.pop()
    assert caught.value.retry_after_s == 1.0
    await asyncio.gather(*orders)
    await fleet.close()


async def test_the_new_one_takes_the_room_of_idle_others_but_never_that_of_the_old_one(box: Box) -> None:
    fleet = box.fleet(box.entry("a"), box.entry("b"))
    await fleet.start(lambda what: None)
    await fleet.load(fleet.entries["a"])
    assert box.made[1].closed
    assert await use(fleet, "a") is box.made[2]
    assert fleet.entries["b"].state is State.READY
    assert fleet.entries["b"].reason == "loaded when it is asked for"
    await until(lambda: box.made[0].closed)
    box.budget = 60
    with pytest.raises(EngineError, match=r"beside 0 MiB of the one that serves.*unload that one first"):
        await fleet.load(fleet.entries["a"])
    assert await use(fleet, "a") is box.made[2]
    await fleet.close()


async def test_a_model_that_is_still_in_use_keeps_its_room_after_it_was_unloaded(box: Box) -> None:
    fleet = box.fleet(box.entry("a", 60, 20), box.entry("b", 60, 20))
    await fleet.load(fleet.entries["a"])
    async with fleet.hold(fleet.entries["a"]):
        await fleet.unload(fleet.entries["a"])
        waiting = asyncio.ensure_future(use(fleet, "b"))
        await until(lambda: fleet.entries["b"].is_loading)
        assert len(box.made) == 1
    assert (await waiting).name == "b"
    assert box.made[0].closed
    await fleet.close()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["hold", "load", "unload", "sweep", "other"]), max_size=25), st.integers(0, 1 << 32))
def test_O10_whatever_is_ordered_a_model_in_use_is_not_freed_and_one_out_of_use_is(steps: list[str], seed: int) -> None:
    """Two models of which one fits, requests that stay for a few turns of the loop, and orders at any time."""
    drawn = random.Random(seed)

    async def request(fleet: Fleet, name: str) -> None:
        turns = drawn.randrange(30)
        with contextlib.suppress(RequestError):
            async with fleet.hold(fleet.entries[name]) as model:
                for _ in range(turns):
                    await asyncio.sleep(0)
                    assert not model.closed  # type: ignore[attr-defined]

    async def live() -> None:
        async with open_box() as box:
            fleet = box.fleet(box.entry("a", 20, 5), box.entry("b", 60, 10, idle_unload_s=1))
            tasks = []
            for step in steps:
                box.now += drawn.random()
                match step:
                    case "hold":
                        tasks.append(asyncio.ensure_future(request(fleet, "a")))
                    case "other":
                        tasks.append(asyncio.ensure_future(request(fleet, "b")))
                    case "load":
                        tasks.append(asyncio.ensure_future(fleet.load(fleet.entries["a"])))
                    case "unload":
                        tasks.append(asyncio.ensure_future(fleet.unload(fleet.entries["a"])))
                    case "sweep":
                        tasks.append(asyncio.ensure_future(fleet.sweep()))
                for _ in range(drawn.randrange(20)):
                    await asyncio.sleep(0)
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(result is None or isinstance(result, RequestError) for result in done), done
            serving = sorted(id(model) for model in fleet.loaded.values())
            await until(lambda: sum(len(entry.loaded) for entry in fleet.entries.values()) == len(serving))
            assert sorted(id(model) for model in box.made if not model.closed) == serving
            assert not any(entry.num_users for entry in fleet.entries.values())
            await fleet.close()
            assert all(model.closed for model in box.made)

    asyncio.run(live())
