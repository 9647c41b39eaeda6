"""What is served: the fleet of models, the device that runs them, and the requests that are inside.

Owns the lookup of a model, the granting of places, the watch over the device on behalf of those who wait for it, and
what draining means. Every endpoint is handed one Serving. Knows no wire format.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar, cast

from engine.device import Device
from engine.entry import Entry
from engine.errors import Kind, RequestError, invalid
from engine.fleet import Fleet
from engine.model import Model, ModelKind
from engine.pool import Pool
from engine.repository import Repository
from engine.settings import Control

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
        self._patience: set[asyncio.Timeout] = set()  # of those who wait for the device
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
            raise _of_another_kind(name, entry.kind)
        return entry

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Count a request from its head to the end of its answer: draining waits for it, also while it uploads."""
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1
            if not self.num_inside:
                self._emptied.set()

    @contextlib.asynccontextmanager
    async def use(self, name: Any, type_: type[M]) -> AsyncIterator[M]:
        """The model called ``name``, loaded if it was not, and one of its places, until the end of the block. Raises
        RequestError: 400, 404, 503."""
        entry = self.find(name, type_)
        async with self.fleet.hold(entry) as model:
            if model.kind != type_.kind:  # another folder was loaded under this name while the request waited
                raise _of_another_kind(model.name, model.kind)
            with self.place(model):
                yield cast(M, model)

    @contextlib.contextmanager
    def place(self, model: Model) -> Iterator[None]:
        """Hold one of the model's places while a request is worked on. Raises RequestError (503, Retry-After)."""
        error = self.failure(time.monotonic())
        if error is not None:
            raise error
        retry_after_s = model.admission.enter()
        if retry_after_s is not None:
            limit = f"{model.admission.running} running, {model.admission.queue} waiting"
            message = f"the model {model.name!r} is full ({limit}); try again in {math.ceil(retry_after_s)} s"
            raise RequestError(Kind.OVERLOADED, message, retry_after_s=retry_after_s)
        try:
            yield
        finally:
            model.admission.leave()

    async def watched(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` on the device comes to. Raises RequestError (503) once the device cannot serve any more."""
        patience = asyncio.timeout(None)  # one look for all that wait costs a tenth of a task and a timer for each
        try:
            async with patience:
                self._patience.add(patience)
                if not self._looks:
                    self._looks = True
                    asyncio.get_running_loop().call_later(WATCH_S, self._look)
                return await work
        except TimeoutError:
            if patience.expired() and (error := self.failure(time.monotonic())) is not None:
                raise error from None
            raise
        finally:
            self._patience.discard(patience)

    def _look(self) -> None:
        """End what waits for a device that cannot serve any more; look again as long as something waits."""
        loop = asyncio.get_running_loop()
        self._looks = bool(self._patience)
        if self._looks:
            loop.call_later(WATCH_S, self._look)
        if self.problem(time.monotonic()) is not None:
            for patience in self._patience:
                if not patience.expired():
                    patience.reschedule(loop.time())

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


def _of_another_kind(name: str, kind: ModelKind) -> RequestError:
    return invalid(f"the model {name!r} is of kind {kind}; this endpoint does not serve it", "model")
