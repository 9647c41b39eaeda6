"""The policy chain: the only place that knows in which order policies are asked.

The laws: ``admit`` in list order; the first Reply stops; ``respond`` and ``settle`` run in reverse over every policy
that was asked (so a 429 still carries RateLimit fields), the one that refused or raised included; ``settle`` runs
exactly once for each of them, whatever happened. A hook that a policy leaves as it is costs nothing.

A policy that reads the request body, and those behind it, are asked once the others have let the request pass: nobody's
body is read who would be refused without it. The same holds before each policy that gathers late: the chain is asked in
parts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

from mypy_extensions import mypyc_attr

from proxy.exchange import Exchange, Head, Outcome, Reply


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy:
    """One behaviour of a route: hooks, each optional, synchronous but for what ``gather`` returns. ``now`` is monotonic
    seconds.

    An instance belongs to one snapshot and is shared by its requests: what a request needs between the hooks goes to
    ``x.scratch``, what outlives a snapshot to ``States``.
    """

    def reads_body(self) -> bool:
        """Whether ``gather`` may read ``x.body``; asked once, when the chain is made."""
        return False

    def gathers_late(self) -> bool:
        """Whether ``gather`` must come when those before have let the request pass, as it spends something."""
        return False

    def behind(self) -> Policy | None:
        """A part of it that is asked right behind it."""
        return None

    def last(self) -> Policy | None:
        """A part of it that is asked behind all others of the chain."""
        return None

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        """What must be awaited before anybody is asked, for facts that ``admit`` will need; None: nothing.

        Called for every policy of the chain in list order, before any ``admit``; from the first one on that reads the
        body, or gathers late, after those before it have admitted. Cancelled when the client leaves. Takes nothing that
        ``settle`` would have to give back.
        """

    def admit(self, x: Exchange, now: float) -> Reply | None:
        """Let the request pass (None) or answer it. Nothing is awaited here."""

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        """Change the head of the answer, the upstream's or a Reply's, before it is sent."""

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        """Give back what ``admit`` took, and record how it ended. Must also work if ``admit`` refused or raised."""


class Chain:
    """The policies of one route, asked in order."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.policies = tuple(policies)
        reads = next((i for i, p in enumerate(policies) if p.reads_body()), len(policies))
        begins = sorted({reads, *(i for i, p in enumerate(policies) if p.gathers_late()), len(policies)})
        #: How many are asked before anybody reads the body.
        self._num_first = begins[0]
        self._first = _Part(policies, 0, begins[0])
        self._rest = tuple(_Part(policies, begin, end) for begin, end in pairwise(begins))
        self.num_rest = len(self._rest)
        self.reads_body = self.num_rest > 0
        self.gathers = bool(self._first.gather)
        upwards = list(enumerate(policies))[::-1]
        self._respond = tuple((i, p.respond) for i, p in upwards if type(p).respond is not Policy.respond)
        self._settle = tuple((i, p.settle) for i, p in upwards if type(p).settle is not Policy.settle)
        #: The same for a request that all of them let pass.
        self._respond_all = tuple(hook for _, hook in self._respond)
        self._settle_all = tuple(hook for _, hook in self._settle)

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        """What must be awaited before ``admit``, one policy after the other, or None."""
        return _in_turn(self._first.gather, x)

    def gather_rest(self, x: Exchange, part: int = 0) -> Awaitable[None] | None:
        """What must be awaited before ``admit_rest`` of the same part, of ``num_rest``: in the first the body."""
        return _in_turn(self._rest[part].gather, x)

    def admit(self, x: Exchange, now: float) -> Reply | None:
        """The first policy's Reply, or None if all let the request pass: all those before the first that reads the
        body. An exception counts its policy as asked."""
        return _ask(self._first, x, now)

    def admit_rest(self, x: Exchange, now: float, part: int = 0) -> Reply | None:
        """The same for the policies that ``admit`` left, part by part."""
        return _ask(self._rest[part], x, now)

    def abandon(self, x: Exchange) -> None:
        """Count every policy as asked: the client left while facts were gathered, and it is settled all the same."""
        x.asked = len(self.policies)

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        """Hand the head to every policy that was asked, the last one first."""
        asked = x.asked
        if asked == len(self.policies):
            for hook in self._respond_all:
                hook(x, head, now)
            return
        for index, hook in self._respond:
            if index < asked:
                hook(x, head, now)

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        """Settle every policy that was asked, the last one first; a second call does nothing.

        One policy's fault does not keep the others from settling: the first exception is raised when all are done.
        """
        if x.settled:
            return
        x.settled = True
        asked = x.asked
        hooks = self._settle_all
        if asked < len(self.policies):
            hooks = tuple(hook for index, hook in self._settle if index < asked)
        fault: Exception | None = None
        for hook in hooks:
            try:
                hook(x, outcome, now)
            except Exception as error:
                fault = fault or error
        if fault is not None:
            raise fault


class _Part:
    """Policies that gather together and are then asked. admit: hooks, each with how many are asked with it."""

    def __init__(self, policies: Sequence[Policy], begin: int, end: int) -> None:
        own = [(i, p) for i, p in enumerate(policies) if begin <= i < end]
        self.begin = begin
        self.end = end
        self.gather = tuple(p.gather for _, p in own if type(p).gather is not Policy.gather)
        self.admit = tuple((i + 1, p.admit) for i, p in own if type(p).admit is not Policy.admit)


def _ask(part: _Part, x: Exchange, now: float) -> Reply | None:
    asked = part.begin
    try:
        for index, hook in part.admit:
            asked = index
            reply = hook(x, now)
            if reply is not None:
                return reply
        asked = part.end
    finally:
        x.asked = asked
    return None


def _in_turn(hooks: Sequence[Callable[[Exchange], Awaitable[None] | None]], x: Exchange) -> Awaitable[None] | None:
    for index, hook in enumerate(hooks):
        work = hook(x)
        if work is not None:
            return _one_by_one(work, hooks[index + 1 :], x)
    return None


async def _one_by_one(
    work: Awaitable[None], others: Sequence[Callable[[Exchange], Awaitable[None] | None]], x: Exchange
) -> None:
    await work
    for hook in others:
        further = hook(x)
        if further is not None:
            await further
