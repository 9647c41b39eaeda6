"""What is served: the fleet of models, the device that runs them, and the requests that are inside.

Owns the lookup of a model, the granting of places, the watch over the device on behalf of those who wait for it, and
what draining means. Every endpoint is handed one Serving. Knows no wire format.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from engine.device import Device
from engine.entry import Entry
from engine.errors import Kind, RequestError, invalid
from engine.fleet import Fleet
from engine.model import Model
from engine.pool import Pool
from engine.repository import Repository
from engine.settings import Control
from engine.use import Place, Use, of_another_kind

_RETRY_S = 5.0
WATCH_S = 10.0  # how often a request that waits asks whether the device is still well


M = TypeVar("M", bound=Model)
T = TypeVar("T")


class Serving:
    """One engine's models on its device."""

    def __init__(
        self,
        fleet: Fleet,
        device: Device,
        *,
        hang_s: float,
        max_body_bytes: int,
        repository: Repository | None = None,
        control: Control = "admin",
    ) -> None:
        """control: who may load and unload models over HTTP."""
        self.fleet = fleet
        self.repository = repository or Repository(fleet)
        self.control = control
        self.device = device
        self.pool = Pool()
        self.hang_s = hang_s
        self.max_body_bytes = max_body_bytes
        self.draining = False
        self.num_body_bytes = 0  # of all bodies that are being read and parsed
        self.num_inside = 0  # requests between their head and the end of their answer
        self._watches: set[_Watch] = set()  # of those who wait for the device
        self._looks = False  # whether a look at it is due
        self._emptied = asyncio.Event()  # set whenever the last request leaves

    def get(self, name: str) -> Entry:
        """The model called ``name``, loaded or not. Raises RequestError (404, 503)."""
        entry = self.fleet.entries.get(name)
        if entry is None:
            raise self.repository.unknown(name)
        return entry

    def find(self, name: Any, type_: type[Model]) -> Entry:
        """The model called ``name``, of the kind that an endpoint serves, loaded or not. Raises RequestError."""
        if not isinstance(name, str) or not name:
            raise invalid("you must say which model: a non-empty string", "model")
        entry = self.get(name)
        if entry.kind != type_.kind:
            raise of_another_kind(name, entry.kind)
        return entry

    def enter(self) -> None:
        """Count a request from its head to ``leave``, the end of its answer: draining waits for it, also while it
        uploads."""
        self.num_inside += 1

    def leave(self) -> None:
        """Its answer has ended."""
        self.num_inside -= 1
        if not self.num_inside:
            self._emptied.set()

    def use(self, name: Any, type_: type[M]) -> Use[M]:
        """The model called ``name``, loaded if it was not, and one of its places, until the end of an ``async with``
        block. Raises RequestError: 400, 404, 503."""
        return Use(self, self.find(name, type_), type_)

    def place(self, model: Model) -> Place:
        """One of the model's places, held in a ``with`` block while a request is worked on. Raises RequestError (503,
        Retry-After)."""
        return Place(self, model)

    def take_place(self, model: Model) -> None:
        """What ``place`` begins with; ``model.admission.leave`` is its end."""
        error = self.failure(time.monotonic())
        if error is not None:
            raise error
        retry_after_s = model.admission.enter()
        if retry_after_s is not None:
            limit = f"{model.admission.running} running, {model.admission.queue} waiting"
            message = f"the model {model.name!r} is full ({limit}); try again in {math.ceil(retry_after_s)} s"
            raise RequestError(Kind.OVERLOADED, message, retry_after_s=retry_after_s)

    async def watched(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` on the device comes to. Raises RequestError (503) once the device cannot serve any more."""
        watch = _Watch()  # one look for all that wait costs a tenth of a task and a timer for each
        self._watches.add(watch)
        if not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_later(WATCH_S, self._look)
        try:
            return await work
        except asyncio.CancelledError:
            if (error := watch.error) is None or watch.task.uncancel() > watch.num_cancels:
                raise  # whoever asked has left
            raise error from None
        finally:
            self._watches.discard(watch)

    def _look(self) -> None:
        """End what waits for a device that cannot serve any more; look again as long as something waits."""
        loop = asyncio.get_running_loop()
        self._looks = bool(self._watches)
        if self._looks:
            loop.call_later(WATCH_S, self._look)
        now = time.monotonic()
        if self.problem(now) is not None:
            for watch in self._watches:
                if watch.error is None:
                    watch.error = self.failure(now)
                    watch.task.cancel()

    def failure(self, now: float) -> RequestError | None:
        """``problem`` as what a request is answered; None: the device can serve."""
        problem = self.problem(now)
        if problem is None:
            return None
        return RequestError(Kind.UNAVAILABLE, f"the engine cannot serve: {problem}", retry_after_s=_RETRY_S)

    def problem(self, now: float) -> str | None:
        """Why the device cannot serve now; None: it can. now: monotonic seconds. Any thread."""
        if self.device.broken is not None:
            return self.device.broken
        busy_s = self.device.busy_s(now)
        if busy_s > self.hang_s:
            return f"the runner has been inside one run for {busy_s:.0f} s (more than {self.hang_s:.0f} s)"
        return None

    async def drain(self, deadline_s: float) -> bool:
        """Wait until no request is inside; False: some still are after ``deadline_s``.

        Whoever listens has stopped before. What comes on a connection that is open already was on its way when the
        engine was told to go, so it is served, and its connection ends with it.
        """
        self.draining = True
        self._emptied.clear()
        if self.num_inside:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadline_s):
                    await self._emptied.wait()
        return not self.num_inside


class _Watch:
    """The task that waits for the device, as ``asyncio.timeout`` would end it."""

    __slots__ = ("error", "num_cancels", "task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.num_cancels = task.cancelling()  # by others
        self.error: RequestError | None = None
