"""Tests as conversations with a pure core: ``play >> event << action << action``.

``>>`` hands an event in at the playbook's time; each ``<<`` takes the next action and must equal it; the next ``>>``,
and ``done()``, insist that nothing is left. Types named in ``aside`` are kept in ``asides`` instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol


class Core(Protocol):
    def handle(self, event: Any, now: float) -> Sequence[Any]: ...


class Playbook:
    """A conversation with ``core``, whose clock only ``at`` moves."""

    def __init__(self, core: Core, *, aside: tuple[type, ...] = (), now: float = 1000.0) -> None:
        self.core = core
        self.now = now
        self.asides: list[Any] = []
        self._aside = aside
        self._pending: deque[Any] = deque()

    def __rshift__(self, event: Any) -> Playbook:
        self.done()
        for action in self.core.handle(event, self.now):
            (self.asides if isinstance(action, self._aside) else self._pending).append(action)
        return self

    def __lshift__(self, expected: Any) -> Playbook:
        assert self._pending, f"expected {expected}, and nothing is left to do"
        actual = self._pending.popleft()
        assert actual == expected, f"expected {expected}, got {actual}, then {list(self._pending)}"
        return self

    def after(self, seconds: float) -> Playbook:
        """Let the time pass."""
        self.done()
        self.now += seconds
        return self

    def done(self) -> None:
        """Nothing more was to be done."""
        assert not self._pending, f"not expected: {list(self._pending)}"
