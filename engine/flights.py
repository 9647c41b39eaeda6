"""Runs of one lane that go on beside each other, each on a thread of its own.

Owns those threads and which runs have not landed. Everything but the runs themselves belongs to the device's thread; a
run that has ended comes back to it as a command.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from engine.job import BesideStep, Lane

Landed = Callable[[Lane, BesideStep, BaseException | None], None]
Command = Callable[[], None]


class Flights:
    """The runs in the air. All are of one lane."""

    def __init__(self, name: str, obey: Callable[[Command], None], landed: Landed) -> None:
        """obey: has the device's thread do something. landed: what it does with each run that has ended, however."""
        self.lane: Lane | None = None  # whose runs they are, or were last
        self._name = name
        self._obey = obey
        self._landed = landed
        self._began_at: dict[BesideStep, float] = {}
        self._waiting: SimpleQueue[tuple[Lane, BesideStep] | None] = SimpleQueue()
        self._num_threads = 0

    def __len__(self) -> int:
        return len(self._began_at)

    def since(self) -> float | None:
        """When the oldest of them began; None: there is none."""
        return min(self._began_at.values(), default=None)

    def launch(self, lane: Lane, step: BesideStep, now: float) -> None:
        """Begin a run. It is one of the lane whose runs are in the air, if any are."""
        self.lane = lane
        self._began_at[step] = now
        if len(self) > self._num_threads:
            self._num_threads += 1
            threading.Thread(target=self._main, name=f"{self._name}-{self._num_threads}", daemon=True).start()
        self._waiting.put((lane, step))

    def close(self) -> None:
        """End the threads; nothing is launched any more."""
        for _ in range(self._num_threads):
            self._waiting.put(None)

    def _main(self) -> None:
        while (launched := self._waiting.get()) is not None:
            lane, step = launched
            error: BaseException | None = None
            try:
                step.compute()
            except Exception as raised:
                error = raised
            self._obey(self._landing(lane, step, error))
            del launched, lane, step, error  # the model may be unloaded while this thread waits

    def _landing(self, lane: Lane, step: BesideStep, error: BaseException | None) -> Command:
        def land() -> None:
            del self._began_at[step]
            self._landed(lane, step, error)

        return land
