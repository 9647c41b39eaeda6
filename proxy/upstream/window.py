"""How the requests to an upstream ended of late, and who probes it: counted by each worker in a row of its own. Pure.

Owns the layout of a row: the generation that its numbers belong to, the probes that its worker holds, until when the
upstream asked to be spared, who came while it was half-open, and ``NUM_BUCKETS`` buckets of the sliding window, each
with the time it began. A row of another generation counts as empty, so a new generation empties all rows without a word
to their owners; and a bucket is told by its time alone, so a window of another width (after a reload) goes on with what
is still in it.
"""

from __future__ import annotations

from typing import Final

from proxy.config import Breaker as BreakerConfig
from proxy.shared.columns import Columns, Row
from proxy.upstream.breaker_table import Sums

NUM_BUCKETS: Final = 10  # the window's memory, whatever the traffic
_GENERATION: Final = 0
_HELD: Final = 1  # probes whose place is taken
_OWNER: Final = 2
_SPARE_UNTIL: Final = 3
_ARRIVALS: Final = 4  # while half-open
_BUCKETS_AT: Final = 5
_BUCKET: Final = 7  # began, good, bad, cooled, refused, answered, first_bytes_s
ROW_SIZE: Final = _BUCKETS_AT + _BUCKET * NUM_BUCKETS


class Window:
    """One worker's end of an upstream's rows. owner: of this worker's row, not 0; a new owner holds no probes."""

    __slots__ = ("_at", "_columns", "_mine", "_until", "_width_s", "generation")

    def __init__(self, columns: Columns, config: BreakerConfig, owner: float) -> None:
        self._columns = columns
        self._mine: Row = columns.mine
        self._at = _BUCKETS_AT
        self._until = 0.0  # when the bucket at ``_at`` ends; 0.0: look which one it is
        self._width_s = config.window / NUM_BUCKETS
        self.generation = 0.0
        if self._mine[_OWNER] != owner:
            self._mine[_HELD] = 0.0
            self._mine[_OWNER] = owner

    def resize(self, config: BreakerConfig) -> None:
        """Take another width from now on."""
        self._width_s = config.window / NUM_BUCKETS
        self._until = 0.0

    def begin(self, generation: float) -> None:
        """Count for this generation from now on."""
        self.generation = generation
        self._until = 0.0

    def good(self, now: float) -> bool:
        """Count a good end. True: a bucket began with it, as does one in every tenth of the window."""
        began = now >= self._until
        if began:
            self._turn(now)
        self._mine[self._at + 1] += 1.0
        return began

    def harm(self, failed: bool, refused: bool, now: float) -> None:
        """Count a failure, a refusal, or both in one."""
        if now >= self._until:
            self._turn(now)
        row, at = self._mine, self._at
        if failed:
            row[at + 2] += 1.0
        else:
            row[at + 3] += 1.0
        if refused:
            row[at + 4] += 1.0

    def answered(self, first_byte_s: float, now: float) -> None:
        """Count a first byte."""
        if now >= self._until:
            self._turn(now)
        self._mine[self._at + 5] += 1.0
        self._mine[self._at + 6] += first_byte_s

    def spare(self, until: float) -> None:
        """Remember that the upstream asked not to be asked before."""
        self._stamp()
        if until > self._mine[_SPARE_UNTIL]:
            self._mine[_SPARE_UNTIL] = until

    def spared_until(self) -> float:
        """The latest time that the upstream has named to any worker; 0.0: none."""
        return max([0.0, *(row[_SPARE_UNTIL] for row in self._columns.rows if row[_GENERATION] == self.generation)])

    def arrived(self) -> None:
        """Count a request that has found the breaker half-open."""
        self._stamp()
        self._mine[_ARRIVALS] += 1.0

    def arrivals(self) -> float:
        """How many there were, of all workers."""
        generation, arrivals = self.generation, 0.0
        for row in self._columns.rows:
            if row[_GENERATION] == generation:
                arrivals += row[_ARRIVALS]
        return arrivals

    def hold(self, change: float) -> None:
        """Take (1) or free (-1) the place of a probe. Under the breaker's lock."""
        self._stamp()
        self._mine[_HELD] += change

    def held(self) -> float:
        """The places that all workers have taken. Under the breaker's lock it is exact."""
        generation, held = self.generation, 0.0
        for row in self._columns.rows:
            if row[_GENERATION] == generation:
                held += row[_HELD]
        return held

    def sums(self, now: float) -> Sums:
        """What all workers have counted within the window."""
        generation, width_s = self.generation, self._width_s
        oldest = (int(now / width_s) - NUM_BUCKETS + 0.5) * width_s  # in the middle: buckets begin at whole widths
        good = bad = cooled = refused = answered = first_bytes_s = 0.0
        for row in self._columns.rows:
            if row[_GENERATION] != generation:
                continue
            for at in range(_BUCKETS_AT, ROW_SIZE, _BUCKET):
                if row[at] > oldest:
                    good += row[at + 1]
                    bad += row[at + 2]
                    cooled += row[at + 3]
                    refused += row[at + 4]
                    answered += row[at + 5]
                    first_bytes_s += row[at + 6]
        return Sums(good, bad, cooled, refused, answered, first_bytes_s)

    def _turn(self, now: float) -> None:
        self._stamp()
        tick = int(now / self._width_s)
        row, began = self._mine, tick * self._width_s
        self._at = at = _BUCKETS_AT + _BUCKET * (tick % NUM_BUCKETS)
        self._until = began + self._width_s
        if row[at] != began:
            for i in range(at + 1, at + _BUCKET):
                row[i] = 0.0
            row[at] = began

    def _stamp(self) -> None:
        row = self._mine
        if row[_GENERATION] != self.generation:
            row[_HELD] = row[_SPARE_UNTIL] = row[_ARRIVALS] = 0.0
            for i in range(_BUCKETS_AT, ROW_SIZE):
                row[i] = 0.0
            row[_GENERATION] = self.generation
