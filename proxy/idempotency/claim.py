"""The right to carry a request out, which one of all that have the same key has; the others wait for it to be given up.

A claim and its end are permits of the shared table, so that all workers see them and one that dies gives them back. The
end is told before a client can have the last byte of the answer, and lasts until the answer is kept where all find it:
whoever repeats a request that is over may wait for a disk, and is not told that it is still being carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from proxy.idempotency.store import AnswerStore, StoreError
from proxy.shared.permits import Permits

_POLL_S: Final = 0.01
_MAX_POLLS: Final = 500  # a writer waits for those of other workers, for as long


class Claim:
    """One request's at the place of its key. at: when it came, by the wall clock. kept: what is kept there."""

    __slots__ = ("_claims", "_end", "_ends", "_name", "_permit", "at", "kept", "place")

    def __init__(self, claims: Permits, ends: Permits, place: bytes, at: float) -> None:
        self._claims = claims
        self._ends = ends
        self._name = place.hex()
        self._permit = -1
        self._end = -1
        self.place = place
        self.at = at
        self.kept: bytes | None = None

    @property
    def is_held(self) -> bool:
        """Whether it is this request's to be carried out."""
        return self._permit >= 0

    def take(self) -> bool:
        """Take it, unless another request has it."""
        self._permit = self._claims.take(self._name, 1)
        return self._permit >= 0

    def over(self) -> None:
        """The answer is complete: it is kept, or not, in a moment."""
        if self._end < 0:
            self._end = self._ends.take(self._name, 1)

    def give_back(self) -> None:
        """To whoever repeats the request."""
        if self._permit >= 0:
            self._claims.give_back(self._permit)
        if self._end >= 0:
            self._ends.give_back(self._end)
        self._permit = self._end = -1

    async def wait(self, store: AnswerStore) -> None:
        """Get what is kept, or the claim if nothing is, when the request that has it is over; neither while it is not.
        Raises StoreError if it got the claim and nobody can say what is kept."""
        for _ in range(_MAX_POLLS):
            is_over = self._ends.open(self._name) > 0  # asked first: what is over by now is kept when this is not
            try:
                await self.look_up(store)
            except StoreError:
                return
            if self.kept is not None:
                return
            if self.take():
                await self.look_up(store)
                return
            if not is_over:
                return
            await asyncio.sleep(_POLL_S)

    async def look_up(self, store: AnswerStore) -> None:
        """Get what is kept. Raises StoreError."""
        found = store.get(self.place, self.at)
        if found is None or isinstance(found, bytes):
            self.kept = found
        else:
            await self.receive(found)

    async def receive(self, found: Awaitable[bytes | None]) -> None:
        """Get what is being looked up. Raises StoreError."""
        self.kept = await found
