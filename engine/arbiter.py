"""Whose turn it is on a device, and how long the turn may be.

Pure. Lanes with work take turns, so between two steps of a lane every other lane runs at most once: nobody starves. A
reader of a begun stream waits for decode steps; while there is one, all lanes together may add ``max_stall_s`` to the
time between two of its tokens, so each lane gets an equal share of it. A lane's own prefill chunk rides in its decode
step and is paid out of its own share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: While nobody decodes a turn is bounded only so that a cancel or a new request is noticed soon.
IDLE_ALLOWANCE_S = 0.5


class Claim(NamedTuple):
    """What one lane says of itself before each turn."""

    ready: bool  # it has a step to run
    decoding: bool  # a begun stream waits for its next token
    max_stall_s: float  # what may be added to a decode step of this lane


class Turn(NamedTuple):
    """The lane to run, and what its step may take beyond the decode steps in it."""

    lane: int
    allowance_s: float


class Arbiter:
    """Round robin over the lanes that have work."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, claims: Sequence[Claim]) -> Turn | None:
        """The next turn, or None when no lane has work. Claims come in the same order every time."""
        ready = [index for index, claim in enumerate(claims) if claim.ready]
        if not ready:
            return None
        self._last = next((index for index in ready if index > self._last), ready[0])
        stalls_s = [claim.max_stall_s for claim in claims if claim.decoding]
        return Turn(self._last, min(stalls_s) / len(ready) if stalls_s else IDLE_ALLOWANCE_S)
