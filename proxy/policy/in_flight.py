"""How many requests of one key, client or route may be open at once. Pure.

A permit is taken in ``admit`` and given back in ``settle``, which the chain runs exactly once. The counts are those of
all workers, and stand where no reload touches them: a request that began under the old snapshot counts and gives its
permit back as any other. A worker that dies gives back what it held.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from proxy import config_policies
from proxy.chain import Policy
from proxy.client_address import counted_as
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Outcome, Reply
from proxy.policy.env import PolicyEnv
from proxy.policy.shed import shares_of
from proxy.shared.permits import Permits

NAME = "in_flight"
ALWAYS = False

RETRY_AFTER_S = 1.0  # when one of them ends is not known; a second is soon


Config = config_policies.InFlight


def build(config: Config, env: PolicyEnv) -> InFlight:
    """The policy of one route; its counts are kept under the route's name and the kind of key. The places of a route
    are everybody's, and the last ones are for the urgent (``shed``); those of a key or client are its own."""
    shares = shares_of(env.beside) if config.key == "route" else None
    return InFlight(config, env.shared.permits(f"{config.key} {env.route}"), shares)


class InFlight(Policy):
    def __init__(self, config: Config, permits: Permits, shares: Mapping[str, float] | None = None) -> None:
        """shares: of the places, up to which requests are let in, by priority; None: there are no priorities."""
        self._max = config.max
        self._max_of = {level: math.ceil(share * config.max) for level, share in (shares or {}).items()}
        self._key = config.key
        self._permits = permits

    def admit(self, x: Exchange, now: float) -> Reply | None:
        key = ""
        if self._key == "api_key":
            key = x.key_id or ""
        elif self._key == "client":
            key = counted_as(x.client)
        most = self._max
        if self._max_of:
            most = self._max_of.get(x.scratch.get("priority", "normal"), most)
        permit = self._permits.take(key, most)
        if permit >= 0:
            x.scratch[NAME] = permit
            return None
        if self._key == "route":  # not this client's doing: the box is full
            whose = "" if most == self._max else " of this priority"
            message = f"This route serves {most} requests{whose} at once and is full. Try again shortly."
            return refuse(x, Kind.CAPACITY, message, retry_after_s=RETRY_AFTER_S, violated=(NAME,))
        whose = "API key" if self._key == "api_key" else "address"
        message = f"This {whose} may have {self._max} requests open at once. Wait for one of them to end."
        return refuse(x, Kind.IN_FLIGHT, message, retry_after_s=RETRY_AFTER_S, violated=(NAME,))

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        permit = x.scratch.pop(NAME, None)
        if permit is not None:
            self._permits.give_back(permit)
