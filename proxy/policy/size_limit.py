"""How large a request body may be. Pure.

A declared length is judged here; a body of unknown length is counted by the pump against ``x.body_limit_bytes``.
"""

from __future__ import annotations

from proxy import config_policies
from proxy.chain import Policy
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Reply
from proxy.policy.env import PolicyEnv
from proxy.units import spell_size

NAME = "size_limit"
ALWAYS = False


Config = config_policies.SizeLimit


def build(config: Config, env: PolicyEnv) -> SizeLimit:
    """The policy of one route."""
    return SizeLimit(config.body)


class SizeLimit(Policy):
    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes

    def admit(self, x: Exchange, now: float) -> Reply | None:
        x.body_limit_bytes = self._limit_bytes
        if x.content_length is not None and x.content_length > self._limit_bytes:
            return too_large(x, self._limit_bytes)
        return None


def too_large(x: Exchange, limit_bytes: int) -> Reply:
    """The 413, also for the pump that met the limit in mid-body. Closes: the rest of the body is not wanted."""
    message = f"The request body is larger than the {spell_size(limit_bytes)} that this route takes. Send less at once."
    return refuse(x, Kind.TOO_LARGE, message, close=True)
