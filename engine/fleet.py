"""The models of an engine in the memory they share: loaded when they are asked for, unloaded when others need the room.

Owns each model's way into memory and out of it, on the event loop, one at a time; who has to go is decided in
``engine.residency``. What is loaded while others serve takes processor time from them, no turns: a model is warmed up
in a thread of its own and joins the device when it is ready. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial

from engine.device import Device
from engine.errors import EngineError, Kind, RequestError
from engine.model import Model, ModelKind
from engine.residency import Need, Resident, allotments, idle_too_long, to_unload

ROOM_WAIT_S = 10.0  # how long a model that is asked for waits until others are idle
RETRY_S = 5.0  # so long after it could not be loaded a model is not tried again
_SWEEP_S = 5.0
_LOAD_S = 2.0  # what loading takes until it has been measured
_DEVICE_S = 30.0  # for what is done between two runs
_log = logging.getLogger(__name__)


class Entry:
    """One model of the configuration, in memory or not."""

    def __init__(
        self,
        name: str,
        kind: ModelKind,
        load: Callable[[int], Model],
        *,
        need: Need = Need(0),  # noqa: B008 (frozen)
        created: int = 0,
        max_waiting: int = 128,
        idle_unload_s: float | None = None,
    ) -> None:
        """load: blocking, for any thread; given the bytes it may take for keys and values, raises EngineError. created:
        seconds since the epoch. max_waiting: requests that may wait for it to be loaded. idle_unload_s: see Resident.
        """
        self.name = name
        self.kind = kind
        self.load = load
        self.need = need
        self.created = created
        self.max_waiting = max_waiting
        self.idle_unload_s = idle_unload_s
        self.model: Model | None = None
        self.loading: asyncio.Task[Model] | None = None
        self.num_users = 0  # requests that hold it or wait for it
        self.num_loads = 0  # these two only grow
        self.num_unloads = 0
        self.used_at = -math.inf  # when the last user left
        self.failed_at = -math.inf
        self.load_s = _LOAD_S

    def statistics(self) -> dict[str, float]:
        """Numbers by name, the model's own among them while it is loaded."""
        ours: dict[str, float] = {
            "loaded": self.model is not None,
            "loads_total": self.num_loads,
            "unloads_total": self.num_unloads,
            "users": self.num_users,
        }
        if (model := self.model) is None:
            return ours
        return {**ours, "requests": model.admission.num_inside, **model.statistics()}

    @property
    def resident(self) -> Resident:
        """How ``engine.residency`` sees it."""
        return Resident(self.name, self.need, self.num_users, self.used_at, self.idle_unload_s)


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
        self._one_at_a_time = asyncio.Lock()
        self._somebody_left = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def loaded(self) -> dict[str, Model]:
        """The models in memory, by name."""
        return {entry.name: entry.model for entry in self.entries.values() if entry.model is not None}

    async def start(self, progress: Callable[[str], None]) -> None:
        """Load, in their order, as many models as the budget has room for; the others come when they are asked for.

        Raises EngineError when one of them cannot be loaded, or could never be.
        """
        budget_bytes = self._budget()
        for entry in self.entries.values():
            if entry.need.total > budget_bytes:
                raise EngineError(_too_large(entry, budget_bytes), permanent=False)
            if to_unload(entry.need, budget_bytes, self._residents()) != []:
                progress(f"{entry.name} does not fit beside the others and is loaded when it is asked for")
                continue
            progress(f"loading {entry.name}")
            await self._load(entry)
        self._sweeper = asyncio.create_task(self._sweep_now_and_then())

    @contextlib.asynccontextmanager
    async def hold(self, entry: Entry) -> AsyncIterator[Model]:
        """The entry's model, which stays in memory until the end of the block; loaded first when it is not there.

        Raises RequestError (503) when it cannot be, when too many requests wait for it, or when too many other models
        are in use.
        """
        entry.num_users += 1
        try:
            yield entry.model or await self._wake(entry)
        finally:
            entry.num_users -= 1
            if not entry.num_users:
                entry.used_at = self._clock()
                self._somebody_left.set()

    async def sweep(self) -> None:
        """Unload what nobody has used for its ``idle_unload_s``; share the memory out anew, as much as there is now."""
        async with self._one_at_a_time:
            for name in idle_too_long(self._clock(), self._residents()):
                await self._unload(self.entries[name])
            await self._share_out()

    def statistics(self) -> dict[str, dict[str, float]]:
        """Plain numbers of each model, by its name; more of them while it is loaded."""
        return {name: entry.statistics() for name, entry in self.entries.items()}

    async def close(self) -> None:
        """Free every model. The device has stopped, or no request is inside."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for entry in self.entries.values():
            if entry.loading is not None:
                entry.loading.cancel()
            if entry.model is not None:
                entry.model.close()
                entry.model = None

    async def _wake(self, entry: Entry) -> Model:
        if entry.num_users > entry.max_waiting:
            raise _later(f"the model {entry.name!r} is being loaded and {entry.max_waiting} wait for it", entry.load_s)
        if (since_s := self._clock() - entry.failed_at) < RETRY_S:
            raise _cannot_load(entry, RETRY_S - since_s)
        if entry.loading is None:
            entry.loading = asyncio.create_task(self._bring_in(entry))
            entry.loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # all may have left
        return await asyncio.shield(entry.loading)

    async def _bring_in(self, entry: Entry) -> Model:
        """Load it as soon as there is room. Raises RequestError."""
        try:
            async with self._one_at_a_time:
                await self._make_room(entry)
                return await self._load(entry)
        except EngineError as error:
            _log.error("%s", error)
            entry.failed_at = self._clock()
            raise _cannot_load(entry, RETRY_S) from None
        finally:
            entry.loading = None

    async def _make_room(self, entry: Entry) -> None:
        deadline = self._clock() + ROOM_WAIT_S
        while (names := to_unload(entry.need, budget_bytes := self._budget(), self._residents())) is None:
            if entry.need.total > budget_bytes:
                raise EngineError(_too_large(entry, budget_bytes), permanent=False)
            self._somebody_left.clear()
            try:
                async with asyncio.timeout(deadline - self._clock()):
                    await self._somebody_left.wait()
            except TimeoutError:
                others = ", ".join(each.name for each in self._residents())
                message = f"the model {entry.name!r} needs the memory of others, and they are in use: {others}"
                raise _later(message, ROOM_WAIT_S) from None
        for name in names:
            await self._unload(self.entries[name])

    async def _load(self, entry: Entry) -> Model:
        """Load it beside the others, for which there is room. Raises EngineError."""
        began_at = self._clock()
        kv_bytes = await self._share_out(entry)
        try:
            model = entry.model = await asyncio.to_thread(entry.load, kv_bytes)
        except BaseException:
            await self._share_out()
            raise
        entry.used_at = self._clock()
        entry.load_s = entry.used_at - began_at
        entry.num_loads += 1
        self._device.attach(model.lane)
        return model

    async def _unload(self, entry: Entry) -> None:
        """Free the memory of a model without users. Whoever asks for it from now on waits until it is loaded again."""
        model, entry.model = entry.model, None
        if model is None:
            return
        entry.num_unloads += 1
        if not await self._device.detach(model.lane, _DEVICE_S):
            raise EngineError(f"the device did not let go of {entry.name}", permanent=False)
        await asyncio.to_thread(_free, model)
        _log.info("%s is unloaded", entry.name)

    async def _share_out(self, newcomer: Entry | None = None) -> int:
        """Tell each loaded model what it may take for keys and values; what is the newcomer's."""
        residents = self._residents() if newcomer is None else [*self._residents(), newcomer.resident]
        shares = allotments(self._budget(), residents)

        def tell(models: dict[str, Model]) -> None:
            for name in models.keys() & shares.keys():
                models[name].allot(shares[name])

        await self._device.do(partial(tell, self.loaded), _DEVICE_S)
        return shares.get(newcomer.name, 0) if newcomer else 0

    def _residents(self) -> list[Resident]:
        return [entry.resident for entry in self.entries.values() if entry.model is not None]

    async def _sweep_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            try:
                await self.sweep()
            except Exception:
                _log.exception("models could not be unloaded; trying again in %g s", _SWEEP_S)


def _free(model: Model) -> None:
    """Blocking: close it and hand what the allocator keeps back to the system, which is a third of a small model."""
    model.close()
    with contextlib.suppress(AttributeError, OSError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)


def _too_large(entry: Entry, budget_bytes: int) -> str:
    weights, context = entry.need.weights >> 20, entry.need.context >> 20
    return (
        f"model {entry.name!r} needs {weights} MiB for weights and {context} MiB for one context, and all models"
        f" together may take {budget_bytes >> 20} MiB; set a shorter context, raise models.memory or free some"
    )


def _later(message: str, seconds: float) -> RequestError:
    return RequestError(Kind.OVERLOADED, f"{message}; try again in {math.ceil(seconds)} s", retry_after_s=seconds)


def _cannot_load(entry: Entry, seconds: float) -> RequestError:
    """Why is for the log: it may name paths."""
    message = f"the model {entry.name!r} could not be loaded; the engine's log says why"
    return RequestError(Kind.UNAVAILABLE, message, retry_after_s=seconds)
