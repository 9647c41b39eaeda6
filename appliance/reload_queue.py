"""Who waits for which reload. One goes on at a time, and all who ask meanwhile share the next one. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ReloadQueue:
    """Tickets of those who wait, and the tally of verdicts. The start counts as a load that goes on."""

    busy: bool = True
    asked_again: bool = False
    num_ok: int = 0
    num_failed: int = 0
    last_problems: tuple[str, ...] = ()  # of the last reload; empty: it was taken, or there was none
    _served: list[int] = field(default_factory=list)
    _waiting: list[int] = field(default_factory=list)

    def ask(self, ticket: int | None) -> bool:
        """Queue a reload. True: begin it now; else it begins after the one that goes on."""
        (self._waiting if self.busy else self._served).extend([] if ticket is None else [ticket])
        self.asked_again |= self.busy
        begins, self.busy = not self.busy, True
        return begins

    def end(self, problems: tuple[str, ...], *, counts: bool = True) -> list[int]:
        """Count the verdict on the load that went on (not on the start), and return the tickets that it answers."""
        if counts:
            self.num_failed += bool(problems)
            self.num_ok += not problems
            self.last_problems = problems
        answered, self._served, self.busy = self._served, [], False
        return answered

    def next(self) -> bool:
        """True: begin the next reload, somebody has asked for it meanwhile."""
        if self.busy or not self.asked_again:
            return False
        self._served, self._waiting = self._waiting, []
        self.busy, self.asked_again = True, False
        return True

    def abandon(self) -> list[int]:
        """All tickets, of the load that goes on and of the next: nothing will be reloaded any more."""
        answered, self._served, self._waiting, self.asked_again = self._served + self._waiting, [], [], False
        return answered
