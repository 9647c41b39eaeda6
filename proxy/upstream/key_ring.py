"""The keys that an upstream gives us, of which the next one is used when one is refused. Pure.

The first usable key is used for everything, so that the others are there when it is not: a key that was answered 429
rests for as long as the answer says, one that was answered 401, 402 or 403 for long, since a person must mend that, and
is then tried again. When all rest, the one that rests least is used: that our share is used up goes to the client.
Until when each rests is one record for the whole box.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from proxy.shared.record import Record

REFUSES_KEY: Final = frozenset({401, 402, 403, 429})
#: What is between the upstream and us alone: a client told so would take it for its own key, or its own bill.
OURS: Final = frozenset({401, 402})
REFUSED_S: Final = 600.0  # a key that is not valid
MIN_REST_S: Final = 10.0  # a key that has used up its share, if the answer does not say how long
MAX_REST_S: Final = 3600.0


class KeyRing:
    """One upstream's. values: what is sent as Authorization. record: of as many numbers. tell: told of a key that
    begins to rest, by whichever worker has seen it first: its index, the status and how long it rests."""

    __slots__ = ("_record", "_tell", "values")

    def __init__(
        self, values: Sequence[bytes], record: Record, tell: Callable[[int, int, float], None] | None = None
    ) -> None:
        self.values = tuple(values)
        self._record = record
        self._tell = tell

    def choose(self, now: float, tried: Container[int] = ()) -> int:
        """The index of the key for the next attempt. tried: those that were refused for this request."""
        rests = self._record.load()
        best = -1
        for index, until in enumerate(rests):
            if index in tried:
                continue
            if until <= now:
                return index
            if best < 0 or until < rests[best]:
                best = index
        return max(best, 0)

    def has_other(self, now: float, tried: Container[int]) -> bool:
        """Whether some key is usable that was not tried."""
        return any(until <= now and index not in tried for index, until in enumerate(self._record.load()))

    def refused(self, index: int, status: int, retry_after_s: float, now: float) -> None:
        """An answer of REFUSES_KEY to this key."""
        rest_s = min(retry_after_s or MIN_REST_S, MAX_REST_S) if status == 429 else REFUSED_S
        rests = self._record.begin()
        begins = rests[index] <= now
        rests[index] = max(rests[index], now + rest_s)
        self._record.commit(rests)
        if begins and self._tell is not None:
            self._tell(index, status, rest_s)
