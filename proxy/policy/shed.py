"""What is refused for want of room before its body is sent: what the engine has no place for, the least urgent first.

Where the local engine is the only upstream of a route, its load is known (``proxy.engine_load``): a request for a model
that is full is refused at once with 503 and the time after which about half of the work is done, instead of being
uploaded in vain; where it is one of several, it is passed by. Where the route has ``priority``, the last places are for
the urgent: requests of low priority are let in up to a share of the places, normal ones up to a larger one. The same
shares hold for ``in_flight`` of the route. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from proxy import config_policies
from proxy.cells import Counter
from proxy.chain import Policy
from proxy.engine_load import EngineLoad
from proxy.errors import Kind, refuse, retry_after
from proxy.exchange import Exchange, Reply
from proxy.policy import priority
from proxy.policy.env import PolicyEnv

NAME: Final = "shed"
ALWAYS: Final = True

JITTER: Final = 0.2  # by how much the times that are told may be longer, so that not all come back at once


Config = config_policies.Shed


def shares_of(policies: Any) -> Mapping[str, float] | None:
    """The shares of the places by priority, of a route with these policies; None: it knows no priorities."""
    shed: Config = getattr(policies, NAME, None) or Config()
    if getattr(policies, priority.NAME, None) is None:
        return None
    return {"high": 1.0, "normal": shed.normal, "low": shed.low}


def build(config: Config, env: PolicyEnv) -> Policy:
    """The policy of one route; one without hooks where there is nothing to look at."""
    if env.engine_load is None:
        return Policy()
    shed = {
        level: env.cells.counter(
            "headrace_shed_total",
            "Requests refused before their body was read, because the engine had no place for them.",
            {"route": env.route, "priority": level},
        )
        for level in priority.LEVELS
    }

    def draw() -> float:
        return int(env.draw_hex(4), 16) / (1 << 32)

    return Shed(env.engine_load, env.engine_alone, shares_of(env.beside), shed, draw)


class Shed(Policy):
    def __init__(
        self,
        load: EngineLoad,
        alone: bool,
        shares: Mapping[str, float] | None,
        shed: Mapping[str, Counter],
        draw: Callable[[], float],
    ) -> None:
        """alone: there is no upstream but the engine; else whoever forwards passes it by, by the share noted here.
        draw: a random number in [0, 1)."""
        self._load = load
        self._alone = alone
        self._draw = draw
        self._shares = shares
        self._shed = shed

    def admit(self, x: Exchange, now: float) -> Reply | None:
        if not x.has_body:
            return None
        level: str = x.scratch.get(priority.NAME, "normal")
        share = 1.0 if self._shares is None else self._shares[level]
        if not self._alone:
            x.scratch[NAME] = share
            return None
        wait_s = self._load.full_for_s(x.path, share, now)
        if wait_s is None:
            return None
        self._shed[level].add()
        wait_s *= 1.0 + JITTER * self._draw()
        what = (
            "full" if share == 1.0 else f"full for requests of {level} priority ({share:.0%} of its places are taken)"
        )
        message = f"The inference engine is {what}. Try again in {retry_after(wait_s)} s."
        return refuse(x, Kind.CAPACITY, message, retry_after_s=wait_s, violated=(NAME,))
