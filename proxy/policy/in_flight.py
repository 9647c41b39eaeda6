"""How many requests of one key, client or route may be open at once. Pure.

A permit is taken in ``admit`` and given back in ``settle``, which the chain runs exactly once. The counts are carried
over a reload: a request that began under the old snapshot gives its permit back to the same table.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from proxy.chain import Policy
from proxy.client_address import counted_as
from proxy.config import Table
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Outcome, Reply
from proxy.policy.env import PolicyEnv

NAME = "in_flight"
ALWAYS = False
SHARED = True

RETRY_AFTER_S = 1.0  # when one of them ends is not known; a second is soon


class Config(Table):
    max: Annotated[int, Field(ge=1)]
    key: Literal["api_key", "client", "route"] = "route"  # whose requests are counted together


def build(config: Config, env: PolicyEnv) -> InFlight:
    """The policy of one route; its counts are kept under the route's name and the kind of key."""
    counts: dict[str, int] = env.states.get((NAME, env.route, config.key), dict)
    return InFlight(config, counts)


class InFlight(Policy):
    """counts: open requests per key; a key without any is not in it, so it is as large as what is open."""

    def __init__(self, config: Config, counts: dict[str, int]) -> None:
        self._max = config.max
        self._key = config.key
        self._counts = counts

    def admit(self, x: Exchange, now: float) -> Reply | None:
        key = ""
        if self._key == "api_key":
            key = x.key_id or ""
        elif self._key == "client":
            key = counted_as(x.client)
        open_now = self._counts.get(key, 0)
        if open_now < self._max:
            self._counts[key] = open_now + 1
            x.scratch[NAME] = key
            return None
        if self._key == "route":  # not this client's doing: the box is full
            message = f"This route serves {self._max} requests at once and is full. Try again shortly."
            return refuse(x, Kind.CAPACITY, message, retry_after_s=RETRY_AFTER_S, violated=(NAME,))
        whose = "API key" if self._key == "api_key" else "address"
        message = f"This {whose} may have {self._max} requests open at once. Wait for one of them to end."
        return refuse(x, Kind.IN_FLIGHT, message, retry_after_s=RETRY_AFTER_S, violated=(NAME,))

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        key = x.scratch.pop(NAME, None)
        if key is None:
            return
        left = self._counts[key] - 1
        if left:
            self._counts[key] = left
        else:
            del self._counts[key]
