"""What every limit's memory in the shared table can be asked, whichever way it counts.

``cost`` is what a request uses of the limit: 1 of a limit on requests, its tokens of a limit on tokens. What has been
counted is corrected when it is known better (``adjust``): a request that used less gives back, one that used more goes
into debt, up to a bound.
"""

from __future__ import annotations

from proxy.gcra import Gcra, Terms
from proxy.shared.locks import ALL_LIMITS, LIMITS_DONE, Locks


class LimitMemory(Gcra):
    """One limit under a snapshot's terms, over numbers that outlive the snapshot and the worker."""

    __slots__ = ("_locks",)

    def __init__(self, terms: Terms, locks: Locks) -> None:
        super().__init__(terms)
        self._locks = locks

    def decide(self, key: str, now: float, cost: float = 1.0) -> float:
        """Count one request of ``key`` if it fits: what the key has used then. Else -1 less what it has used."""
        raise NotImplementedError

    def used(self, key: str, now: float) -> float:
        """What ``key`` has used and is not forgiven yet: more than ``burst`` after the limit was lowered, or in debt.
        All stripes are ours."""
        raise NotImplementedError

    def take(self, key: str, used: float, now: float, cost: float = 1.0) -> float:
        """Count one request of ``key``, which had ``used`` that much; what it has then. All stripes are ours."""
        raise NotImplementedError

    def adjust(self, key: str, by: float, now: float, debt: float = 1.0) -> float:
        """Correct what ``key`` has used, by less (down to nothing) or by more (up to a debt of so many bursts); what it
        has used then."""
        raise NotImplementedError

    def adjust_anew(self, key: str, by: float, now: float, debt: float) -> float:
        """The same with all stripes: the key may have no slot, or the limit another pace."""
        self.enter_all()
        try:
            used = self.used(key, now)
            return self.take(key, used, now, self.within_debt(by, used, debt))
        finally:
            self.leave_all()

    def within_debt(self, by: float, used: float, debt: float) -> float:
        """So much more, or as much of it as may be owed."""
        return min(by, max(0.0, (1.0 + debt) * self.burst - used))

    def standing(self, cost: float, used: float, since_s: float) -> float:
        """How much of what a request cost is not forgiven yet, with which its key had ``used`` so much, so long ago:
        what it cost last is forgiven last. No more may be given back, or others' would be. (Of a bucket that was empty
        in between a little of theirs is: up to one burst more may pass in a stretch, never more from the begin on.)"""
        return min(cost, max(0.0, used - self.rate * since_s))

    def wait_of(self, key: str, used: float, now: float, cost: float = 1.0) -> float:
        """Seconds until ``cost`` more fits for ``key``, which has ``used`` that much; 0.0: now."""
        return self.wait_s(used, cost)

    def reset_of(self, key: str, used: float, now: float, cost: float = 1.0) -> float:
        """Seconds until something changes for the better for ``key``: see Gcra.reset_s."""
        return self.reset_s(used, cost)

    def enter_all(self) -> None:
        """Have every stripe of all limits."""
        self._locks.enter(ALL_LIMITS)

    def leave_all(self) -> None:
        """The end of ``enter_all``."""
        self._locks.leave(LIMITS_DONE)
