"""How large a request body may be. Pure.

A declared length is judged here; a body of unknown length is counted by the pump against ``x.body_limit_bytes``.
"""

from __future__ import annotations

from proxy import config_policies
from proxy.chain import Policy
from proxy.errors import too_large
from proxy.exchange import Exchange, Reply
from proxy.policy.env import PolicyEnv

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
