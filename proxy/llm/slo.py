"""Whether a model's first tokens come in time: promised for 95 % of the requests, judged over a window. Pure.

The 95th percentile is above a limit exactly when more than 5 % of the times are, so no time is kept: each worker counts
its requests and those above the limit in a row of its own, by slices of the window, and the sums over all rows decide
for the box. **Kept** turns to **broken** when a window with at least ``min_requests`` has more than 5 % above the
limit. While it is broken most requests go elsewhere, and one in twenty still comes here to see. It turns back after a
whole window without more than 5 % above four fifths of the limit: that is what keeps it from fluttering.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from proxy.config_models import When
    from proxy.shared.columns import Columns
    from proxy.shared.record import Record

MAX_LATE: Final = 0.05  # share of the requests
PROBES: Final = 0.05  # share of the requests that see how it is while it is broken
RELIEF: Final = 0.8  # of the limit, to be called kept again
NUM_SLICES: Final = 12
_SLICE: Final = 4  # began, requests, late, late by the limit of relief
ROW_SIZE: Final = _SLICE * NUM_SLICES
#: The record: broken, since when, how often it has changed; and whether the model was told to be degraded.
RECORD_SIZE: Final = 4


class FirstTokens:
    """One worker's end of a model's promise. record, columns: shared with the other workers."""

    __slots__ = ("_columns", "_judged_at", "_record", "_when")

    def __init__(self, when: When, record: Record, columns: Columns) -> None:
        self._when = when
        self._record = record
        self._columns = columns
        self._judged_at = -1.0

    def told(self, first_token_s: float, now: float) -> None:
        """Count one request: how long its first token took."""
        width_s = self._when.window / NUM_SLICES
        tick = int(now / width_s)
        row, at, began = self._columns.mine, _SLICE * (tick % NUM_SLICES), tick * width_s
        if row[at] != began:
            row[at + 1] = row[at + 2] = row[at + 3] = 0.0
            row[at] = began
        row[at + 1] += 1.0
        limit_s = self._when.first_token_p95
        if first_token_s > limit_s:
            row[at + 2] += 1.0
        if first_token_s > RELIEF * limit_s:
            row[at + 3] += 1.0

    def waited(self, for_s: float, now: float) -> None:
        """A request ended without a token: it counts if that alone was too long."""
        if for_s > self._when.first_token_p95:
            self.told(for_s, now)

    def broken(self, now: float) -> bool:
        """Whether the promise is broken. Judged a few times in each slice, not for every request."""
        width_s = self._when.window / NUM_SLICES
        if not self._judged_at <= now < self._judged_at + width_s / NUM_SLICES:
            self._judged_at = now
            if self._deserves(self._record.load(), now):
                values = self._record.begin()
                if self._deserves(values, now):  # another worker may have been first
                    values = [1.0 - values[0], now, values[2] + 1.0, values[3]]
                self._record.commit(values)
        return self._record.load()[0] > 0.0

    def turned(self, degraded: bool) -> bool:
        """Whether the model is degraded now and was told not to be, or the other way round. True once for the box:
        whoever hears it tells."""
        if (self._record.load()[3] > 0.0) is degraded:
            return False
        values = self._record.begin()
        is_first = (values[3] > 0.0) is not degraded  # no other worker meanwhile
        self._record.commit([*values[:3], float(degraded)])
        return is_first

    def _deserves(self, values: list[float], now: float) -> bool:
        """Whether the state is to change."""
        when = self._when
        requests, late, late_by_relief = self._sums(now)
        if values[0]:
            return now - values[1] >= when.window and late_by_relief <= MAX_LATE * requests
        return requests >= when.min_requests and late > MAX_LATE * requests

    def _sums(self, now: float) -> tuple[float, float, float]:
        width_s = self._when.window / NUM_SLICES
        oldest = (int(now / width_s) - NUM_SLICES + 0.5) * width_s
        requests = late = late_by_relief = 0.0
        for row in self._columns.rows:
            for at in range(0, ROW_SIZE, _SLICE):
                if row[at] > oldest:
                    requests += row[at + 1]
                    late += row[at + 2]
                    late_by_relief += row[at + 3]
        return requests, late, late_by_relief
