"""What is known of one server: what is in flight to it, and whether it is left out. Pure.

Owns passive health: a server with ``fails`` failures running is ejected for ``eject`` seconds, and one that asks to be
left alone for a while (429 or 503 with Retry-After) cools, which is no failure. These numbers are one record for the
whole box, changed under its lock, so that any number of workers ejects exactly as one would. ``up`` is
what this worker's own checks say (``proxy.upstream.health``); ``full``: a request to it would have to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.config import Health
from proxy.shared.record import LocalRecord, Record

#: What a server's record holds: failures running, ejected until (monotonic seconds), ejections so far, cools until.
RECORD_SIZE: Final = 4
MAX_COOL_S: Final = 60.0


class Changes:
    """How often this worker has seen a server of its go or come back: a pool looks again when the number is another."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class ServerState:
    """One server's live numbers. name: as configured. They outlive a reload by name."""

    __slots__ = (
        "_blamed",
        "_changes",
        "_record",
        "_seen",
        "alone",
        "full",
        "health",
        "in_flight",
        "name",
        "on_ejected",
        "up",
    )

    def __init__(
        self,
        name: str,
        health: Health,
        record: Record | None = None,
        changes: Changes | None = None,
        on_ejected: Callable[[], None] | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """record: of RECORD_SIZE numbers. on_ejected: called when a failure told here ejected the server. alone: it is
        the only one of its upstream, which is never left out."""
        self.name = name
        self.alone = alone
        self.health = health
        self.in_flight = 0
        self.up = True
        self.full = False
        self.on_ejected = on_ejected
        self._record: Record = LocalRecord(RECORD_SIZE) if record is None else record
        self._changes = Changes() if changes is None else changes
        self._seen = -1  # the record's version at which ``_blamed`` held: that it has failures or an ejection
        self._blamed = False

    @property
    def changes(self) -> int:
        """How often some server of this worker went or came back."""
        return self._changes.count

    @property
    def fails_running(self) -> int:
        return int(self._record.load()[0])

    @property
    def ejected_until(self) -> float:
        return self._record.load()[1]

    @property
    def left_out_until(self) -> float:
        """When its ejection has ended and it has cooled."""
        values = self._record.load()
        return max(values[1], values[3])

    @property
    def num_ejections(self) -> int:
        return int(self._record.load()[2])

    def started(self) -> None:
        """A request goes to this server; ``finished`` must follow."""
        self.in_flight += 1

    def finished(self, ok: bool | None, now: float) -> None:
        """A request to this server ended: True good, False it failed, None it says nothing (the client left).

        Failures keep counting through an ejection, so that one more after it ejects again.
        """
        self.in_flight -= 1
        if self.alone:
            return
        if ok:
            version = self._record.version()
            if version != self._seen:
                values = self._record.load()
                self._seen, self._blamed = version, values[0] > 0.0 or values[1] > 0.0
            if self._blamed:
                self._pardon()
        elif ok is not None:
            self._failed(now)

    def _failed(self, now: float) -> None:
        fails, until, ejections, cools = self._record.begin()
        ejects = fails + 1 >= self.health.fails and now >= until
        if ejects:
            until = now + self.health.eject
            ejections += 1
        self._record.commit((fails + 1, until, ejections, cools))
        if ejects:
            self._changes.count += 1
            if self.on_ejected is not None:
                self.on_ejected()

    def cool(self, for_s: float, now: float) -> None:
        """Leave the server out for as long as it has asked for, within a bound."""
        if self.alone:
            return
        fails, until, ejections, cools = self._record.begin()
        self._record.commit((fails, until, ejections, max(cools, now + min(for_s, MAX_COOL_S))))
        self._changes.count += 1

    def reset(self) -> None:
        """Forget failures, ejection and cooling; what is in flight stays counted."""
        ejections = self._record.begin()[2]
        self._record.commit((0.0, 0.0, ejections, 0.0))
        self._changes.count += 1

    def _pardon(self) -> None:
        """A success ends failures running and an ejection, but not the time that the server has asked for."""
        _, _, ejections, cools = self._record.begin()
        self._record.commit((0.0, 0.0, ejections, cools))
        self._changes.count += 1

    def set_up(self, up: bool) -> None:
        """Take the word of this worker's checks."""
        self.up = up
        self._changes.count += 1
