"""What every limit's memory in the shared table can be asked, whichever way it counts.

``cost`` is what a request uses of the limit: 1 of a limit on requests, its tokens of a limit on tokens. What has been
counted is corrected when it is known better (``adjust``): a request that used less gives back, one that used more goes
into debt, up to a bound.

A limit that a reload counts another way goes on with what was counted before, which is forgiven as it would have been:
``before`` is that memory, read as long as anything stands in it, and then let go.
"""

from __future__ import annotations

from math import inf
from typing import Final

from proxy.gcra import EPSILON, Gcra, Terms
from proxy.shared.locks import ALL_LIMITS, LIMITS_DONE, Locks

_HANDOVER_S: Final = 60.0  # all workers have the new configuration by then
_HALVINGS: Final = 24


class LimitMemory(Gcra):
    """One limit under a snapshot's terms, over numbers that outlive the snapshot and the worker."""

    __slots__ = ("_before", "_locks", "_look_at")

    def __init__(self, terms: Terms, locks: Locks, before: LimitMemory | None = None) -> None:
        super().__init__(terms)
        self._locks = locks
        self._before = before
        self._look_at = 0.0

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

    def idle(self, now: float) -> bool:
        """Whether nobody has used anything that is not forgiven yet. All stripes are ours."""
        raise NotImplementedError

    def used_in(self, key: str, wait_s: float, now: float) -> float:
        """What of that which ``key`` has used here is not forgiven so many seconds from ``now`` on."""
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
        return self.wait_s(used, cost) if self._before is None else self.wait_of_both(key, now, self.burst - cost)

    def reset_of(self, key: str, used: float, now: float, cost: float = 1.0) -> float:
        """Seconds until something changes for the better for ``key``: see Gcra.reset_s."""
        return self.reset_s(used, cost) if self._before is None else self.reset_of_both(key, used, now, cost)

    def wait_of_both(self, key: str, now: float, most: float) -> float:
        """Seconds until no more than so much counts of what ``key`` has used, here and before; inf: never."""
        before = self._before
        assert before is not None
        if most < 0.0:
            return inf
        most += EPSILON
        self.enter_all()
        try:
            used = self.used_in(key, 0.0, now) + before.used_in(key, 0.0, now)
            if used <= most:
                return 0.0
            soon, late = 0.0, used / self.rate + 2.0 * self.terms.per_s  # all is forgiven by then, by either count
            for _ in range(_HALVINGS):
                middle = (soon + late) / 2.0
                if self.used_in(key, middle, now) + before.used_in(key, middle, now) <= most:
                    late = middle
                else:
                    soon = middle
            return late
        finally:
            self.leave_all()

    def reset_of_both(self, key: str, used: float, now: float, cost: float) -> float:
        """``reset_of`` as long as something was counted before."""
        return self.wait_of_both(key, now, 0.0 if self.fits(used, cost) else self.burst - cost)

    def let_before_go(self, now: float) -> None:
        """Forget what was counted the other way when nothing stands there any more, and no worker counts there."""
        if self._before is None:
            return
        if not self._look_at:
            self._look_at = now + max(_HANDOVER_S, self.terms.per_s)
        if now >= self._look_at:
            self._look_at = 0.0
            self.enter_all()
            try:
                if self._before.idle(now):
                    self._before = None
            finally:
                self.leave_all()

    def enter_all(self) -> None:
        """Have every stripe of all limits."""
        self._locks.enter(ALL_LIMITS)

    def leave_all(self) -> None:
        """The end of ``enter_all``."""
        self._locks.leave(LIMITS_DONE)
