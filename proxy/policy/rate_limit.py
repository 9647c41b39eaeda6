"""Named rate limits of a route: all of them must pass, and only what passes is counted. Pure.

A refusal says which limit and when to come back; every answer says how much is left, in the fields that the limit's
``headers`` names: RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-11), X-RateLimit-* with a date,
or OpenAI's with durations. ``t`` is the wait for the next request when none is left, else the time until nothing is
used; Retry-After is the longest wait of the limits that refuse, rounded up.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Annotated, Final

from pydantic import Field

from proxy.chain import Policy
from proxy.client_address import counted_as
from proxy.errors import Kind, refuse, retry_after
from proxy.exchange import Exchange, Head, Reply
from proxy.fields import go_duration, sf_item
from proxy.gcra import Terms
from proxy.policy.env import PolicyEnv
from proxy.shared.limit import SharedLimit, decide_together

NAME: Final = "rate_limit"
ALWAYS: Final = False

Config = Annotated[tuple[str, ...], Field(min_length=1)]  # names of limits


def build(config: tuple[str, ...], env: PolicyEnv) -> RateLimit:
    """The policy of one route; a limit's memory is one for all routes that name it and all workers, and outlives both
    the snapshot and the worker."""
    return RateLimit([_Named(name, env) for name in dict.fromkeys(config)])


class _Named:
    """One limit as this snapshot has it, over the memory that all snapshots and workers share."""

    __slots__ = ("_item", "_item_says", "ietf", "key_of", "memory", "name", "policy_item", "refused", "styles", "terms")

    def __init__(self, name: str, env: PolicyEnv) -> None:
        limit = env.limits[name]
        events, per_s = limit.requests
        self.name = name
        self.terms = Terms(events, per_s, limit.burst or events)
        self.styles = frozenset(limit.headers)
        self.key_of = _key_of(limit.key, env.route)
        self.memory: SharedLimit = env.shared.limit(name, self.terms)
        window_s = ceil(self.terms.burst * per_s / events)
        self.policy_item = sf_item(name, {"q": self.terms.burst, "w": window_s})
        self.ietf = "ietf" in self.styles
        self._item = b""
        self._item_says = (-1, -1)  # (remaining, reset): most answers say what the one before said
        self.refused = env.cells.counter(
            "headrace_rate_limited_total", "Requests refused by a rate limit.", {"limit": name}
        )

    def ietf_item(self, used: float) -> bytes:
        """The limit's item in RateLimit for a client that has used so much."""
        says = (self.memory.remaining(used), _whole(self.memory.reset_s(used)))
        if says != self._item_says:
            self._item = sf_item(self.name, {"r": says[0], "t": says[1]})
            self._item_says = says
        return self._item


def _key_of(kind: str, route: str) -> Callable[[Exchange], str]:
    if kind == "client":
        return lambda x: counted_as(x.client)
    if kind == "api_key":
        return lambda x: x.key_id or ""
    constant = route if kind == "route" else ""
    return lambda x: constant


class RateLimit(Policy):
    def __init__(self, limits: list[_Named]) -> None:
        self._limits = limits
        self._policies = b", ".join([named.policy_item for named in limits if named.ietf])
        self._dated = any("x-ratelimit" in named.styles for named in limits)
        self._openai = any("openai" in named.styles for named in limits)

    def admit(self, x: Exchange, now: float) -> Reply | None:
        limits = self._limits
        if len(limits) == 1:
            named = limits[0]
            used = named.memory.decide(named.key_of(x), now)
            refused = used < 0.0
            standing = [(named, -1.0 - used if refused else used)]
        else:
            counts = decide_together([(each.memory, each.key_of(x)) for each in limits], now)
            refused = counts[0] < 0.0
            standing = [(each, -1.0 - used if refused else used) for each, used in zip(limits, counts, strict=True)]
        x.scratch[NAME] = standing
        return _refusal(x, standing) if refused else None

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        standing = x.scratch.get(NAME)
        if standing is None:
            return
        if self._policies:
            items = [named.ietf_item(used) for named, used in standing if named.ietf]
            head.headers += ((b"RateLimit-Policy", self._policies), (b"RateLimit", b", ".join(items)))
        if self._dated:
            named, left, reset_s = _tightest(standing, "x-ratelimit")
            head.headers += (
                (b"X-RateLimit-Limit", b"%d" % named.terms.burst),
                (b"X-RateLimit-Remaining", b"%d" % left),
                (b"X-RateLimit-Reset", b"%d" % ceil(x.wall_at + _whole(reset_s))),
            )
        if self._openai:
            named, left, reset_s = _tightest(standing, "openai")
            head.headers += (
                (b"x-ratelimit-limit-requests", b"%d" % named.terms.burst),
                (b"x-ratelimit-remaining-requests", b"%d" % left),
                (b"x-ratelimit-reset-requests", go_duration(reset_s).encode()),
            )


def _refusal(x: Exchange, standing: list[tuple[_Named, float]]) -> Reply:
    refusing = [(named.memory.wait_s(used), named) for named, used in standing if not named.memory.fits(used)]
    for _, named in refusing:
        named.refused.add()
    wait_s, named = max(refusing, key=lambda pair: pair[0])
    message = (
        f"The limit {named.name} of {named.terms.events} requests in {named.terms.per_s:g} s is used up. "
        f"Try again in {retry_after(wait_s)} s."
    )
    violated = tuple(named.name for _, named in refusing)
    return refuse(x, Kind.RATE_LIMITED, message, retry_after_s=wait_s, violated=violated)


def _whole(seconds: float) -> int:
    """Whole seconds, rounded up as Retry-After is, so that the two agree."""
    return ceil(seconds - 1e-9)


def _tightest(standing: list[tuple[_Named, float]], style: str) -> tuple[_Named, int, float]:
    """(limit, remaining, seconds to reset) of the limit with the least left: these fields have room for one."""
    return min(
        (
            (named, named.memory.remaining(used), named.memory.reset_s(used))
            for named, used in standing
            if style in named.styles
        ),
        key=lambda row: (row[1], -row[2]),
    )
