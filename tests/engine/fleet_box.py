"""A fleet of fakes on a real device, and what a test can turn: the budget, the clock, whether loading goes on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import ClassVar

from engine.admission import Admission
from engine.device import Device
from engine.entry import Entry, Source
from engine.errors import EngineError
from engine.fleet import Fleet
from engine.model import Model, ModelKind
from engine.residency import Need


class IdleLane:
    """A lane that never has work."""

    max_stall_s = 1.0
    width = 1

    def __init__(self, name: str) -> None:
        self.name = name

    def ready(self, now: float) -> bool:
        return False

    def decoding(self) -> bool:
        return False

    def tidy(self, now: float) -> None:
        pass

    def wake_at(self) -> float | None:
        return None


class FakeModel:
    kind: ClassVar[ModelKind] = "chat"
    created = 0

    def __init__(self, name: str, kv_bytes: int) -> None:
        self.name = name
        self.kv_bytes = kv_bytes
        self.lane = IdleLane(name)
        self.admission = Admission(running=1, queue=1, work_s=lambda: 0.0)
        self.closed = False

    def allot(self, num_bytes: int) -> None:
        assert not self.closed
        self.kv_bytes = num_bytes

    def statistics(self) -> dict[str, float]:
        return {"slots": 1}

    def close(self) -> None:
        assert not self.closed
        self.closed = True


@dataclass
class Box:
    """What the test can turn. fails: models that cannot be loaded; damaged: folders that cannot be read."""

    device: Device
    budget: int = 100
    now: float = 0.0
    fails: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    entered: threading.Event = field(default_factory=threading.Event)
    num_loading: int = 0
    opened: list[str] = field(default_factory=list)  # for whoever reads folders
    made: list[FakeModel] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def entry(self, name: str, weights: int = 30, context: int = 10, **options: float) -> Entry:
        def load(kv_bytes: int) -> Model:
            self.num_loading += 1
            assert self.num_loading == 1
            self.entered.set()
            assert self.gate.wait(20)
            self.num_loading -= 1
            if name in self.fails:
                raise EngineError(f"{name} is damaged", permanent=True)
            self.made.append(FakeModel(name, kv_bytes))
            return self.made[-1]

        def reread() -> Source:
            if name in self.damaged:
                raise EngineError(f"the folder of {name} is damaged", permanent=True)
            return source

        source = Source("chat", load, Need(weights, context))
        return Entry(name, source, reread=reread, **options)  # type: ignore[arg-type]

    def fleet(self, *entries: Entry) -> Fleet:
        return Fleet(entries, self.device, budget=lambda: self.budget, clock=lambda: self.now)


@contextlib.asynccontextmanager
async def open_box() -> AsyncIterator[Box]:
    device = Device("test", [], asyncio.get_running_loop())
    device.start()
    yield Box(device)
    assert await device.stop(10)


async def use(fleet: Fleet, name: str) -> Model:
    async with fleet.hold(fleet.entries[name]) as model:
        return model
