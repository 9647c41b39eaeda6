"""The policies that pick one of several servers: least requests by the power of two choices, and round robin. Pure.

Least requests draws two servers by their weights and takes the one with fewer requests for its weight: almost as even
as asking all of them, without the herd that all workers' looking at the same least one makes. Round robin is smooth:
each turn a server gains its weight, the richest is taken and pays the weight of all: 5:1:1 becomes a a b a c a a.
Hashing is in ``proxy.upstream.balance_hash``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from proxy.upstream.state import ServerState

if TYPE_CHECKING:
    from proxy.exchange import Exchange


class Member:
    """A server among those of its upstream. index: its place in the configuration. weight: above 0. turn: what round
    robin owes it. seed: what stands for it in a hash."""

    __slots__ = ("index", "seed", "state", "turn", "weight")

    def __init__(self, index: int, state: ServerState, weight: int, seed: int = 0) -> None:
        self.index = index
        self.state = state
        self.weight = weight
        self.turn = 0
        self.seed = seed


#: Picks one of at least one member. x: the request; None where none is at hand. draw: in [0, 1).
Picks = Callable[[Sequence[Member], "Exchange | None", float], Member]


def pick_least(members: Sequence[Member], x: Exchange | None, draw: float) -> Member:
    """Of two members drawn by weight, the one with fewer requests for its weight; the first one of equals."""
    count = len(members)
    if count == 1:
        return members[0]
    total = 0
    alike = True
    for member in members:
        total += member.weight
        alike = alike and member.weight == members[0].weight
    if alike:
        at = draw * count
        i = int(at)
        j = int((at - i) * (count - 1))
        first, second = members[i], members[j if j < i else j + 1]
        return first if first.state.in_flight <= second.state.in_flight else second
    first, rest = _draw(members, None, draw * total)
    second, _ = _draw(members, first, rest / first.weight * (total - first.weight))
    # With the request to come, or else an idle light server would get as many as an idle heavy one.
    of_first = (first.state.in_flight + 1) * second.weight
    return first if of_first <= (second.state.in_flight + 1) * first.weight else second


def _draw(members: Sequence[Member], without: Member | None, at: float) -> tuple[Member, float]:
    """The member that a point on the line of all weights falls on, and how far into it."""
    last = members[0]
    for member in members:
        if member is without:
            continue
        if at < member.weight:
            return member, at
        at -= member.weight
        last = member
    return last, 0.0  # rounding took the point beyond the end


def pick_in_turn(members: Sequence[Member], x: Exchange | None, draw: float) -> Member:
    """The member whose turn it is, each as often as its weight says."""
    total = 0
    best = members[0]
    for member in members:
        total += member.weight
        member.turn += member.weight
        if member.turn > best.turn:
            best = member
    best.turn -= total
    return best
