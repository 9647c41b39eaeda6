"""What a breaker gives a request: a permit, one of the few for probes, or a refusal. Pure.

A permit tells its breaker of the request it was given for: its first byte, and its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from proxy.upstream.breaker import Breaker


class Refused(NamedTuple):
    """The breaker does not let this request through; come back after ``retry_after_s`` seconds."""

    retry_after_s: float


class Permit:
    """A request's pass while the breaker serves. ``settle`` exactly once: all requests of a generation share it."""

    __slots__ = ("_breaker", "generation")

    def __init__(self, breaker: Breaker, generation: float) -> None:
        self._breaker = breaker
        self.generation = generation

    @property
    def probe(self) -> bool:
        """Whether it is one of the few that half-open gives."""
        return False

    def answered(self, now: float, first_byte_s: float = 0.0) -> None:
        """The first byte of the answer is there, after ``first_byte_s`` (0.0: not known). How it ends is still open."""
        if first_byte_s:
            self._breaker.first_byte(self.generation, first_byte_s, now)

    def settle(self, ok: bool | None, now: float, refused: bool = False, retry_after_s: float = 0.0) -> None:
        """The request has ended: True good, False the upstream failed, None neither. refused: the upstream takes no
        more now (429: ok is None; 503: False). retry_after_s: when it wants to be asked again.

        None and not refused counts as nothing at all: the client left, or it was never sent.
        """
        if ok and not refused:
            self._breaker.good(self.generation, now)
        elif refused or ok is not None:
            self._breaker.harm(self.generation, ok is False, refused, retry_after_s, now)


class Probe(Permit):
    """A request's pass while the breaker is half-open. A second ``settle`` does nothing."""

    __slots__ = ("_holds_place", "_settled")

    def __init__(self, breaker: Breaker, generation: float) -> None:
        super().__init__(breaker, generation)
        self._holds_place = True
        self._settled = False

    @property
    def probe(self) -> bool:
        return True

    def answered(self, now: float, first_byte_s: float = 0.0) -> None:
        """Its place goes to the next one."""
        if self._holds_place and not self._settled:
            self._holds_place = False
            self._breaker.probe_answered(self.generation, now)

    def settle(self, ok: bool | None, now: float, refused: bool = False, retry_after_s: float = 0.0) -> None:
        """As of any permit; a refusal (429) gives the probe back, as if it had not been given."""
        if not self._settled:
            self._settled = True
            self._breaker.probe_ended(self.generation, self._holds_place, ok, retry_after_s, now)
