"""The models of an engine in the memory they share: loaded when they are asked for, unloaded when others need the room,
and replaced while they serve.

Owns each model's way into memory and out of it, on the event loop, one at a time; who has to go is decided in
``engine.residency``. What is loaded while others serve takes processor time from them, no turns: a model is warmed up
in a thread of its own and joins the device when it is ready. Only then do requests move to it from the one before,
which ends what it has taken and is freed when its last request has ended; each of these is bounded by itself, so
nothing is cut. A load that fails changes nothing. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from engine.device import Device
from engine.entry import Entry, Loaded, Source
from engine.errors import EngineError, Kind, RequestError
from engine.model import Model
from engine.residency import Need, Resident, allotments, idle_too_long, to_unload

ROOM_WAIT_S = 10.0  # how long a model that is asked for waits until others are idle
RETRY_S = 5.0  # so long after it could not be loaded a model is not tried again, unless it is ordered
MAX_ORDERS = 16  # that may wait for their turn
_SWEEP_S = 5.0
_NEWCOMER = 0  # the number of a model that is not loaded yet
_DEVICE_S = 30.0  # for what is done between two runs
_log = logging.getLogger(__name__)


class Fleet:
    """All models of an engine, on its device."""

    def __init__(
        self,
        entries: Iterable[Entry],
        device: Device,
        *,
        budget: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """budget: the bytes that all models may take together, as it is now."""
        self.entries = {entry.name: entry for entry in entries}
        self._device = device
        self._budget = budget
        self._clock = clock
        self._loaded: dict[int, Loaded] = {}  # by its number
        self._num_loads = 0
        self._one_at_a_time = asyncio.Lock()  # first come, first served
        self._num_orders = 0
        self._somebody_left = asyncio.Event()
        self._has_freed = False  # since the last sweep
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waking: dict[Entry, asyncio.Task[None]] = {}

    @property
    def loaded(self) -> dict[str, Model]:
        """The models that requests are given, by name."""
        return {entry.name: entry.model for entry in self.entries.values() if entry.model is not None}

    async def start(self, progress: Callable[[str], None]) -> None:
        """Load, in their order, as many models as the budget has room for; the others come when they are asked for.

        Raises EngineError when one that is needed cannot be loaded, or could never be.
        """
        for entry in self.entries.values():
            try:
                await self._begin_with(entry, progress)
            except EngineError as error:
                if entry.is_needed:
                    raise
                entry.failed(self._clock())
                _log.error("%s", error)
        self._begin(self._sweep_now_and_then())

    def hold(self, entry: Entry) -> Hold:
        """The entry's model, which stays in memory until the end of an ``async with`` block; loaded first when it is
        not there.

        Raises RequestError (503) when it cannot be, when too many requests wait for it, when too many other models are
        in use, and when it has been unloaded by an order.
        """
        return Hold(self, entry)

    async def take(self, entry: Entry) -> Loaded:
        """What ``hold`` begins with; ``leave`` is its end."""
        loaded = entry.current or await self._wake(entry)
        loaded.num_users += 1
        return loaded

    def leave(self, loaded: Loaded) -> None:
        """One of its users has no more to do with it."""
        loaded.num_users -= 1
        if not loaded.num_users:
            loaded.used_at = self._clock()
            self._somebody_left.set()
            if loaded.retired:
                self._begin(self._free(loaded))

    async def load(self, entry: Entry, reread: Callable[[], Source] | None = None) -> None:
        """An order: read the folder again, load what it is now, and move requests to it from what serves so far.
        reread: of another folder, which takes the place of the entry's.

        Raises EngineError, which says why and may name paths, or RequestError (503) when there is no room. What served
        before serves then as if nothing had been ordered. It goes on when whoever ordered it has left.
        """
        await self._obey(partial(self._replace, entry, reread or entry.reread))

    async def unload(self, entry: Entry) -> None:
        """An order: give the entry's model to nobody new until it is loaded by an order; free it when its last user has
        left. Raises RequestError (503) when too many orders wait."""
        await self._obey(partial(self._dismiss, entry))

    def adopt(self, entry: Entry, source: Source, model: Model) -> None:
        """Give requests this model from now on, which came from ``source`` and is on the device."""
        self._num_loads += 1
        loaded = Loaded(entry, self._num_loads, model, source.need, self._clock())
        self._loaded[loaded.number] = loaded
        entry.serves(loaded, source)

    async def sweep(self) -> None:
        """Unload what nobody has used for its ``idle_unload_s``; share the memory out anew, as much as there is now."""
        async with self._one_at_a_time:
            for number in idle_too_long(self._clock(), self._residents()):
                await self._evict(self._loaded[number])
            await self._share_out()
        if self._has_freed:  # what a request that was just ending still held is free by now
            self._has_freed = False
            await asyncio.to_thread(_trim)

    def statistics(self) -> dict[str, dict[str, float]]:
        """Plain numbers of each model, by its name; more of them while it is loaded."""
        return {name: entry.statistics() for name, entry in self.entries.items()}

    async def close(self) -> None:
        """Free every model. The device has stopped, or no request is inside."""
        for task in self._tasks:
            task.cancel()
        for loaded in self._loaded.values():
            loaded.entry.current = None
            loaded.entry.loaded.clear()
            if not loaded.leaves:
                loaded.model.close()
        self._loaded.clear()

    # The way in.

    async def _begin_with(self, entry: Entry, progress: Callable[[str], None]) -> None:
        need, budget_bytes = entry.source.need, self._budget()
        if need.total > budget_bytes:
            raise EngineError(_too_large(entry.name, need, budget_bytes), permanent=False)
        if to_unload(need, budget_bytes, self._residents()) != []:
            progress(f"{entry.name} does not fit beside the others and is loaded when it is asked for")
            return
        progress(f"loading {entry.name}")
        await self._bring(entry, lambda: entry.source)

    async def _wake(self, entry: Entry) -> Loaded:
        """What the entry has in memory, as soon as it has something there. Raises RequestError."""
        if entry.num_waiting >= entry.max_waiting:
            raise _later(f"the model {entry.name!r} is being loaded and {entry.max_waiting} wait for it", entry.load_s)
        entry.num_waiting += 1
        try:
            while entry.current is None:
                if not entry.is_wanted:
                    message = f"the model {entry.name!r} was unloaded and serves again when it is loaded by an order"
                    raise RequestError(Kind.UNAVAILABLE, message)
                if (since_s := self._clock() - entry.failed_at) < RETRY_S:
                    raise _cannot_load(entry, RETRY_S - since_s)
                if entry not in self._waking:
                    self._waking[entry] = self._begin(self._bring_in(entry))
                await asyncio.shield(self._waking[entry])
            return entry.current
        finally:
            entry.num_waiting -= 1

    async def _bring_in(self, entry: Entry) -> None:
        """Load it for those who wait, unless an order has come first. Raises RequestError."""
        try:
            async with self._one_at_a_time:
                if entry.current is None and entry.is_wanted:
                    await self._bring(entry, entry.reread)
        except EngineError as error:
            _log.error("%s", error)
            raise _cannot_load(entry, RETRY_S) from None
        finally:
            del self._waking[entry]

    async def _replace(self, entry: Entry, reread: Callable[[], Source]) -> None:
        before = entry.current
        await self._bring(entry, reread)
        entry.is_wanted, entry.reread = True, reread
        if before is not None:
            self._retire(before)
        _log.info("%s is loaded", entry.name)

    async def _bring(self, entry: Entry, read: Callable[[], Source]) -> None:
        """Load it beside all that is in memory and cannot leave; then it is what requests are given. Raises EngineError
        or RequestError, and then changes nothing."""
        entry.is_loading = True
        try:
            source = await asyncio.to_thread(read)
            await self._make_room(entry, source.need)
            model = await self._load(entry, source)
        except EngineError:
            entry.failed(self._clock())
            raise
        finally:
            entry.is_loading = False
        self._device.attach(model.lane)
        self.adopt(entry, source, model)

    async def _make_room(self, entry: Entry, need: Need) -> None:
        """Beside whatever serves for this entry, which stays until its successor is there."""
        kept_bytes = 0 if entry.current is None else entry.current.need.total
        deadline = self._clock() + ROOM_WAIT_S
        while (numbers := to_unload(need, budget_bytes := self._budget(), self._residents())) is None:
            if need.total + kept_bytes > budget_bytes:
                raise EngineError(_too_large(entry.name, need, budget_bytes, kept_bytes), permanent=False)
            self._somebody_left.clear()
            try:
                async with asyncio.timeout(deadline - self._clock()):
                    await self._somebody_left.wait()
            except TimeoutError:
                others = ", ".join(dict.fromkeys(each.entry.name for each in self._loaded.values()))
                message = f"the model {entry.name!r} needs the memory of others, and they are in use: {others}"
                raise _later(message, ROOM_WAIT_S) from None
        for number in numbers:
            await self._evict(self._loaded[number])

    async def _load(self, entry: Entry, source: Source) -> Model:
        began_at = self._clock()
        kv_bytes = await self._share_out(Resident(_NEWCOMER, source.need, 0, began_at))
        try:
            model = await asyncio.to_thread(source.load, kv_bytes)
        except BaseException:
            await self._share_out()
            raise
        entry.load_s = self._clock() - began_at
        return model

    # The way out.

    async def _dismiss(self, entry: Entry) -> None:
        loaded, entry.current, entry.is_wanted = entry.current, None, False
        if loaded is not None:
            self._retire(loaded)

    def _retire(self, loaded: Loaded) -> None:
        """Nobody new is given it: free it now or when the last of its users leaves."""
        loaded.entry.num_unloads += 1
        _log.info("%s: requests that go on with the model so far: %d", loaded.entry.name, loaded.num_users)
        if not loaded.num_users:
            self._begin(self._free(loaded))

    async def _evict(self, loaded: Loaded) -> None:
        """Free the memory of a model without users. Whoever asks for it from now on waits until it is loaded again."""
        loaded.entry.current = None
        loaded.entry.num_unloads += 1
        await self._free(loaded)
        _log.info("%s is unloaded until it is asked for", loaded.entry.name)

    async def _free(self, loaded: Loaded) -> None:
        """Free a retired model without users; called once. Raises EngineError when the device is stuck inside a run: it
        may still look at the model, which is left where it is, and goes with its process."""
        loaded.leaves = True
        if not await self._device.detach(loaded.model.lane, _DEVICE_S):
            raise EngineError(f"the device did not let go of {loaded.entry.name}", permanent=False)
        await asyncio.to_thread(_close, loaded)
        del self._loaded[loaded.number]
        loaded.entry.loaded.remove(loaded)
        self._somebody_left.set()  # there is more room
        self._has_freed = True

    # Turns and memory.

    async def _obey(self, order: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do it in its turn, also when whoever ordered it leaves meanwhile."""
        if self._num_orders >= MAX_ORDERS:
            raise _later(f"{MAX_ORDERS} orders to load or unload models wait for their turn", 1.0)
        self._num_orders += 1

        async def in_turn() -> None:
            try:
                async with self._one_at_a_time:
                    await order()
            finally:
                self._num_orders -= 1

        await asyncio.shield(self._begin(in_turn()))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Whoever waits for it is told how it ended, if anybody does; the log is told why."""
        self._tasks.discard(task)
        match None if task.cancelled() else task.exception():
            case None | RequestError():
                pass
            case EngineError() as error:
                _log.error("%s", error)
            case error:
                _log.error("a model could not be moved", exc_info=error)

    async def _share_out(self, newcomer: Resident | None = None) -> int:
        """Tell each loaded model what it may take for keys and values; what is the newcomer's."""
        residents = [*self._residents(), *([newcomer] if newcomer else [])]
        shares = allotments(self._budget(), residents)

        def tell(models: dict[int, Model]) -> None:
            for number in models.keys() & shares.keys():
                models[number].allot(shares[number])

        models = {each.number: each.model for each in self._loaded.values() if not each.leaves}
        await self._device.do(partial(tell, models), _DEVICE_S)
        return shares.get(newcomer.number, 0) if newcomer else 0

    def _residents(self) -> list[Resident]:
        return [each.resident for each in self._loaded.values()]

    async def _sweep_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            try:
                await self.sweep()
            except Exception:
                _log.exception("models could not be unloaded; trying again in %g s", _SWEEP_S)


class Hold:
    """One user of a model in memory."""

    __slots__ = ("_entry", "_fleet", "_loaded")

    def __init__(self, fleet: Fleet, entry: Entry) -> None:
        self._fleet = fleet
        self._entry = entry

    async def __aenter__(self) -> Model:
        self._loaded = await self._fleet.take(self._entry)
        return self._loaded.model

    async def __aexit__(self, *ended: object) -> None:
        self._fleet.leave(self._loaded)


def _close(loaded: Loaded) -> None:
    """Blocking: close the model and free it."""
    loaded.model.close()
    del loaded.model  # the runtime's session goes with its last reference
    _trim()


def _trim() -> None:
    """Blocking: hand what the allocator keeps back to the system, a third of a small model."""
    with contextlib.suppress(AttributeError, OSError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)


def _too_large(name: str, need: Need, budget_bytes: int, kept_bytes: int = 0) -> str:
    weights, context = need.weights >> 20, need.context >> 20
    beside = f" beside {kept_bytes >> 20} MiB of the one that serves" if kept_bytes else ""
    advice = "unload that one first" if kept_bytes else "set a shorter context"
    return (
        f"model {name!r} needs {weights} MiB for weights and {context} MiB for one context{beside}, and all models"
        f" together may take {budget_bytes >> 20} MiB; {advice}, raise models.memory or free some"
    )


def _later(message: str, seconds: float) -> RequestError:
    return RequestError(Kind.OVERLOADED, f"{message}; try again in {math.ceil(seconds)} s", retry_after_s=seconds)


def _cannot_load(entry: Entry, seconds: float) -> RequestError:
    """Why is for the log: it may name paths."""
    message = f"the model {entry.name!r} could not be loaded; the engine's log says why"
    return RequestError(Kind.UNAVAILABLE, message, retry_after_s=seconds)
