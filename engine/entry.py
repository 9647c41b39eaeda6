"""One name that the engine serves: what its folder said, the models in memory for it, and who uses them.

Owns what a request that asks for the name would find: that it serves, that it would be loaded first, or why neither.
Pure; the ways into memory and out of it are ``engine.fleet``'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from engine.manifest import Manifest
from engine.model import Model, ModelKind
from engine.residency import Need, Resident

_LOAD_S = 2.0  # what loading takes until it has been measured


@dataclass(frozen=True, slots=True)
class Source:
    """A model's folder as it was when it was read."""

    kind: ModelKind
    load: Callable[[int], Model]  # blocking, for any thread; given the bytes for keys and values; raises EngineError
    need: Need = Need(0)  # noqa: RUF009 (frozen)
    created: int = 0  # seconds since the epoch
    version: str = "1"
    manifest: Manifest | None = None  # None: there is no folder


class State(StrEnum):
    """What a request would find, in the words of Triton's model repository."""

    READY = "READY"  # it is in memory, or loaded when it is asked for
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"  # unloaded, while requests that it had taken before go on
    UNAVAILABLE = "UNAVAILABLE"


class Loaded:
    """A model in memory. Once it is retired nobody new is given it, and it goes when its last user has left."""

    def __init__(self, entry: Entry, number: int, model: Model, need: Need, now: float) -> None:
        """number: no other one has it."""
        self.entry = entry
        self.number = number
        self.model = model
        self.need = need
        self.num_users = 0  # requests that hold it
        self.used_at = now  # when the last of them left, monotonic seconds
        self.leaves = False  # it is being freed: nothing may be asked of it any more

    @property
    def retired(self) -> bool:
        return self.entry.current is not self

    @property
    def resident(self) -> Resident:
        """How ``engine.residency`` sees it. In use is also what is waited for, what is kept until its successor is
        there, and what goes by itself."""
        entry = self.entry
        kept = True if self.retired else entry.num_waiting or entry.is_loading
        return Resident(self.number, self.need, self.num_users + kept, self.used_at, entry.idle_unload_s)


class Entry:
    """One name of the fleet, in memory or not."""

    def __init__(
        self,
        name: str,
        source: Source,
        *,
        reread: Callable[[], Source] | None = None,
        max_waiting: int = 128,
        idle_unload_s: float | None = None,
    ) -> None:
        """reread: the folder as it is now, blocking, raises EngineError; None: it never changes. max_waiting: requests
        that may wait for it to be loaded. idle_unload_s: see Resident.
        """
        self.name = name
        self.source = source
        self.reread = reread or (lambda: source)
        self.max_waiting = max_waiting
        self.idle_unload_s = idle_unload_s
        self.loaded: list[Loaded] = []  # all that is in memory
        self.current: Loaded | None = None  # the one of them that requests are given
        self.is_needed = True  # False: others are served without it
        self.is_loading = False
        self.is_wanted = True  # False: an operator has unloaded it
        self.has_failed = False  # the last time it could not be loaded
        self.failed_at = -math.inf
        self.num_waiting = 0  # requests that wait for it to be loaded
        self.num_loads = 0  # these two only grow
        self.num_unloads = 0
        self.load_s = _LOAD_S

    def serves(self, loaded: Loaded, source: Source) -> None:
        """From now on requests are given ``loaded``, which came from ``source``."""
        self.loaded.append(loaded)
        self.source, self.current = source, loaded
        self.has_failed, self.failed_at = False, -math.inf
        self.num_loads += 1

    def failed(self, now: float) -> None:
        """It could not be loaded; what served before still does."""
        self.has_failed, self.failed_at = True, now

    @property
    def kind(self) -> ModelKind:
        return self.source.kind

    @property
    def model(self) -> Model | None:
        """The model that requests are given; None: none is in memory."""
        return None if self.current is None else self.current.model

    @property
    def num_users(self) -> int:
        """Requests that hold one of its models or wait for one."""
        return self.num_waiting + sum(each.num_users for each in self.loaded)

    @property
    def num_draining(self) -> int:
        """Requests that go on with a model that nobody new is given."""
        return sum(each.num_users for each in self.loaded if each.retired)

    @property
    def state(self) -> State:
        """What a request would find."""
        if self.current is not None:
            return State.READY
        if self.is_loading:
            return State.LOADING
        if not self.is_wanted:
            return State.UNLOADING if self.loaded else State.UNAVAILABLE
        return State.UNAVAILABLE if self.has_failed else State.READY

    @property
    def reason(self) -> str:
        """A few words beside the state, without paths; empty when there is nothing to say."""
        if self.has_failed:
            kept = ", and the one before it serves" if self.current else ""
            return f"it could not be loaded; the engine's log says why{kept}"
        if self.loaded and (self.num_draining or not self.current):
            return f"{self.num_draining} requests go on with the one before"
        if not self.is_wanted:
            return "unloaded"
        return "" if self.current or self.is_loading else "loaded when it is asked for"

    def statistics(self) -> dict[str, float]:
        """Numbers by name, the model's own among them while it is loaded."""
        ours: dict[str, float] = {
            "loaded": self.current is not None,
            "loads_total": self.num_loads,
            "unloads_total": self.num_unloads,
            "users": self.num_users,
            "draining": self.num_draining,
        }
        if (model := self.model) is None:
            return ours
        return {**ours, "requests": model.admission.num_inside, **model.statistics()}
