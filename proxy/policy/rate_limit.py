"""Named rate limits of a route: all of them must pass, and only what passes is counted. Pure.

A refusal says which limit and when to come back; every answer says how much is left, in the fields that the limit's
``headers`` names: RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-11), X-RateLimit-* with a date,
or OpenAI's with durations. ``t`` is the wait for the next request when none is left, else the time until nothing is
used; Retry-After is the first of these over all limits that refuse, rounded up.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from proxy.chain import Policy
from proxy.errors import Kind, refuse, retry_after
from proxy.exchange import Exchange, Head, Reply
from proxy.fields import go_duration, sf_item
from proxy.gcra import Gcra
from proxy.policy.env import PolicyEnv

NAME = "rate_limit"
ALWAYS = False
SHARED = True

Config = Annotated[tuple[str, ...], Field(min_length=1)]  # names of limits


def build(config: tuple[str, ...], env: PolicyEnv) -> RateLimit:
    """The policy of one route; a limit's memory is one for all routes that name it, and outlives the snapshot."""
    return RateLimit([_Named(name, env) for name in dict.fromkeys(config)])


class _Named:
    """One limit as this snapshot has it, over the memory that all snapshots share."""

    def __init__(self, name: str, env: PolicyEnv) -> None:
        limit = env.limits[name]
        self.name = name
        self.limit = limit
        self.count, self.per_s = limit.requests
        self.burst = limit.burst or self.count
        self.styles = frozenset(limit.headers)
        self.key = limit.key
        self.route = env.route
        self.memory = env.states.get((NAME, name), lambda: Gcra(self.count, self.per_s, self.burst))
        self.policy_item = sf_item(name, {"q": self.burst, "w": math.ceil(self.burst * self.per_s / self.count)})
        self.refused = env.cells.counter(
            "headrace_rate_limited_total", "Requests refused by a rate limit.", {"limit": name}
        )

    def key_of(self, x: Exchange) -> str:
        if self.key == "api_key":
            return x.key_id or ""
        if self.key == "client":
            return x.client
        return self.route if self.key == "route" else ""

    def used(self, key: str, now: float) -> float:
        memory = self.memory
        if memory.burst != self.burst or memory.rate != self.count / self.per_s:
            # The first request under this snapshot: not at build, which may still be discarded.
            memory.configure(self.count, self.per_s, self.burst, now)
        return memory.used(key, now)


class RateLimit(Policy):
    def __init__(self, limits: list[_Named]) -> None:
        self._limits = limits
        styles = {style for named in limits for style in named.styles}
        self._ietf = [named for named in limits if "ietf" in named.styles]
        self._policies = ", ".join(named.policy_item for named in self._ietf).encode()
        self._dated, self._openai = "x-ratelimit" in styles, "openai" in styles

    def admit(self, x: Exchange, now: float) -> Reply | None:
        asked = [(named, key := named.key_of(x), named.used(key, now)) for named in self._limits]
        refusing = [(named, used) for named, _, used in asked if not named.memory.fits(used)]
        if refusing:
            x.scratch[NAME] = [(named, used) for named, _, used in asked]
            return _refusal(x, refusing)
        for named, key, used in asked:
            named.memory.take(key, used, now)
        x.scratch[NAME] = [(named, used + 1.0) for named, _, used in asked]
        return None

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        standing = x.scratch.get(NAME)
        if standing is not None:
            head.headers += self._fields(x, standing)

    def _fields(self, x: Exchange, standing: list[tuple[_Named, float]]) -> list[tuple[bytes, bytes]]:
        fields: list[tuple[bytes, bytes]] = []
        if self._ietf:
            items = [
                sf_item(named.name, {"r": _left(named, used), "t": _reset_s(named, used)})
                for named, used in standing
                if "ietf" in named.styles
            ]
            fields.append((b"RateLimit-Policy", self._policies))
            fields.append((b"RateLimit", ", ".join(items).encode()))
        if self._dated:
            named, used = _tightest(standing, "x-ratelimit")
            reset_at = math.ceil(x.wall_at + _reset_s(named, used))
            fields.append((b"X-RateLimit-Limit", b"%d" % named.burst))
            fields.append((b"X-RateLimit-Remaining", b"%d" % _left(named, used)))
            fields.append((b"X-RateLimit-Reset", b"%d" % reset_at))
        if self._openai:
            named, used = _tightest(standing, "openai")
            left = _left(named, used)
            wait_s = named.memory.wait_s(used, 1.0 if left == 0 else named.burst)
            fields.append((b"x-ratelimit-limit-requests", b"%d" % named.burst))
            fields.append((b"x-ratelimit-remaining-requests", b"%d" % left))
            fields.append((b"x-ratelimit-reset-requests", go_duration(wait_s).encode()))
        return fields


def _refusal(x: Exchange, refusing: list[tuple[_Named, float]]) -> Reply:
    for named, _ in refusing:
        named.refused.add()
    named, used = max(refusing, key=lambda pair: pair[0].memory.wait_s(pair[1]))
    wait_s = named.memory.wait_s(used)
    message = (
        f"The limit {named.name} of {named.count} requests in {named.per_s:g} s is used up. "
        f"Try again in {retry_after(wait_s)} s."
    )
    violated = tuple(named.name for named, _ in refusing)
    return refuse(x, Kind.RATE_LIMITED, message, retry_after_s=wait_s, violated=violated)


def _left(named: _Named, used: float) -> int:
    return max(0, math.floor(named.burst - used + 1e-6))


def _reset_s(named: _Named, used: float) -> int:
    wait_s = named.memory.wait_s(used, 1.0 if _left(named, used) == 0 else named.burst)
    return math.ceil(wait_s - 1e-6)


def _tightest(standing: list[tuple[_Named, float]], style: str) -> tuple[_Named, float]:
    return min((pair for pair in standing if style in pair[0].styles), key=lambda pair: _left(*pair))
