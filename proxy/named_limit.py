"""One limit as a snapshot has it, over the memory that all snapshots and workers share; and how a request stands to it.

A limit counts requests or tokens; one that bounds both is two of these. Pure: the drawn digits are handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf
from typing import TYPE_CHECKING, Final

from proxy.exchange import Exchange
from proxy.fields import sf_item, sf_string
from proxy.gcra import Terms
from proxy.limit_key import key_of
from proxy.shared.limit_memory import LimitMemory

if TYPE_CHECKING:
    from proxy.policy.env import PolicyEnv

#: Kinds of keys that many clients share: they are told to come back at different times.
_SHARED_KEYS: Final = frozenset({"tenant", "team", "route", "model", "all"})
_SHARED_JITTER: Final = 0.2
_DRAWN: Final = 65536


class NamedLimit:
    """name: as configured. unit: what it counts, "requests" or "tokens"."""

    __slots__ = ("_draw_hex", "_item", "_item_says", "_quoted", "dated", "dry_run", "ietf", "jitter", "key_of",
                 "memory", "name", "openai", "policy_item", "refused", "says", "shown", "terms", "unit",
                 "window_s")  # fmt: skip

    def __init__(self, name: str, env: PolicyEnv, unit: str = "requests") -> None:
        limit = env.limits[name]
        rate = limit.requests if unit == "requests" else limit.tokens
        assert rate is not None
        events, per_s = rate
        both = limit.requests is not None and limit.tokens is not None
        burst = limit.burst if limit.burst is not None and not (both and unit == "tokens") else events
        slides = limit.algorithm == "sliding"
        place = name if unit == "requests" else f"{name} tokens"
        self.name = name
        self.unit = unit
        self.terms = Terms(events, per_s, burst)
        styles = frozenset(limit.headers)
        self.dry_run: bool = limit.dry_run
        self.key_of: Callable[[Exchange], str] = key_of(limit.kinds, env.route, env.models)
        self.memory: LimitMemory = (
            env.shared.sliding(place, self.terms) if slides else env.shared.limit(place, self.terms)
        )
        shares = all(kind in _SHARED_KEYS for kind in limit.kinds)
        self.jitter: float = limit.jitter if limit.jitter is not None else _SHARED_JITTER if shares else 0.0
        self._draw_hex = env.draw_hex
        self.window_s: int = ceil(per_s if slides else burst * per_s / events)  # in which a whole burst comes back
        self.shown = name if unit == "requests" else f"{name}.tokens"
        #: Nothing of a unit is what requests are counted in, by the draft.
        self.says: dict[str, int | str] = {} if unit == "requests" else {"qu": unit}
        self.policy_item = sf_item(self.shown, {"q": burst, "w": self.window_s, **self.says})
        #: The styles in which it is told.
        self.ietf = "ietf" in styles
        self.dated = "x-ratelimit" in styles and unit == "requests"
        self.openai = "openai" in styles
        self._quoted = sf_string(self.shown).encode()
        self._item = b""
        self._item_says = (-1, -1)  # (remaining, reset): most answers say what the one before said
        labels = {"limit": name, "unit": unit}
        if self.dry_run:
            doc = "Requests that a rate limit on trial would have refused."
            self.refused = env.cells.counter("headrace_rate_limit_dry_run_total", doc, labels)
        else:
            doc = "Requests refused by a rate limit."
            self.refused = env.cells.counter("headrace_rate_limited_total", doc, labels)

    def ietf_item(self, left: int, reset_s: float) -> bytes:
        """The limit's item in RateLimit. Of a request that never fits, as if a whole window had to go by."""
        says = (left, whole(reset_s) if reset_s < inf else self.window_s)
        if says != self._item_says:
            self._item = b"%b;r=%d;t=%d" % (self._quoted, says[0], says[1])
            self._item_says = says
        return self._item

    def jittered(self, wait_s: float) -> float:
        """A wait that is told to a client: never shorter, and not the same for all that share the limit."""
        if not self.jitter or wait_s == inf:
            return wait_s
        return wait_s * (1.0 + self.jitter * int(self._draw_hex(2), 16) / _DRAWN)


class Standing:
    """What one request's key has used of a limit when it was asked. refuses: it did not fit. reset_s: until it fits,
    if it did not, or the next one would not; else until nothing is used; inf: never."""

    __slots__ = ("cost", "key", "left", "named", "refuses", "reset_s")

    def __init__(self, named: NamedLimit, key: str, used: float, refused: bool, now: float, cost: float = 1.0) -> None:
        """used: with this request, unless any limit ``refused`` it."""
        memory = named.memory
        self.named = named
        self.key = key
        self.cost = cost
        self.left = memory.remaining(used)
        self.refuses = refused and not memory.fits(used, cost)
        if cost > memory.burst:
            self.reset_s = inf if self.refuses else memory.reset_of(key, used, now)
        else:
            self.reset_s = memory.reset_of(key, used, now, cost if self.refuses else 1.0)
        if self.refuses:
            self.reset_s = named.jittered(self.reset_s)


def counted(number: int, unit: str) -> str:
    """So many of them, in words: 1 request, 2 requests."""
    return f"{number} {unit.removesuffix('s') if number == 1 else unit}"


def whole(seconds: float) -> int:
    """Whole seconds, rounded up as Retry-After is, so that the two agree."""
    return ceil(seconds - 1e-9)
