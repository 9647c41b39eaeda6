"""Which server of an upstream takes the next request: who may be asked, and the policy that picks one of them. Pure.

Who may be asked: a server that is up, not ejected and not cooling. When more than half would be left out, all are used
(panic): what fails everywhere is more likely the check or the way there, and the last servers shall not be crushed by
the load of all. A request is not sent again to a server that failed it, nor to one whose bounds are reached, while
there is another; and a server that is left out is better than none.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Final

from proxy.upstream.balance import Member, Picks

if TYPE_CHECKING:
    from proxy.exchange import Exchange

VIEW_S: Final = 0.005  # how long ago another worker's ejection may have been


class Pool:
    """The servers of one upstream in one snapshot. members: those that take requests, at least one. panicked: told when
    panic begins (True) and ends."""

    __slots__ = ("_count", "_panicked", "_picks", "_until", "_usable", "members", "panic")

    def __init__(self, members: Sequence[Member], picks: Picks, panicked: Callable[[bool], None] | None = None) -> None:
        self.members = tuple(members)
        self.panic = False
        self._picks = picks
        self._panicked = panicked
        self._usable: tuple[Member, ...] = self.members
        self._until = 0.0
        self._count = -1

    def choose(self, x: Exchange | None, now: float, draw: float, tried: Container[str] = ()) -> Member:
        """The server for the next request. draw: a random number in [0, 1). tried: names of servers that failed it."""
        members = self.members
        if len(members) == 1:
            return members[0]
        if now >= self._until or members[0].state.changes != self._count:
            self._look(now)
        picked = self._picks(self._usable, x, draw)
        if picked.state.full or picked.state.name in tried:
            return self._picks(self._others(tried), x, draw)
        return picked

    def _look(self, now: float) -> None:
        """See who may be asked, for a moment: an ejection may end, or another worker may know of one."""
        usable: list[Member] = []
        until = now + VIEW_S
        for member in self.members:
            left_out_until = member.state.left_out_until
            if left_out_until > now:
                until = min(until, left_out_until)
            elif member.state.up:
                usable.append(member)
        self._until = until
        self._count = self.members[0].state.changes
        panic = 2 * len(usable) < len(self.members)
        fresh = self.members if panic else tuple(usable)
        if fresh != self._usable:
            self._usable = fresh  # as long as it is the same one, policies may keep what they found out about it
        if panic is not self.panic:
            self.panic = panic
            if self._panicked is not None:
                self._panicked(panic)

    def _others(self, tried: Container[str]) -> Sequence[Member]:
        untried = [member for member in self._usable if member.state.name not in tried]
        if not untried:
            # A server that is left out beats none at all: the others have failed this very request.
            untried = [member for member in self.members if member.state.name not in tried]
        candidates = untried or self.members
        return [member for member in candidates if not member.state.full] or candidates
