"""Which addresses may use a route, by network. Pure."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address

from proxy import config_policies
from proxy.chain import Policy
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Reply
from proxy.policy.env import PolicyEnv

NAME = "access"
ALWAYS = False


Config = config_policies.Access


def build(config: Config, env: PolicyEnv) -> Access:
    """The policy of one route."""
    return Access(config)


class Access(Policy):
    """Judges ``x.client``, so behind trusted proxies the client's own address. A client without one (a unix socket) is
    in no network."""

    def __init__(self, config: Config) -> None:
        self._allow = config.allow
        self._deny = config.deny
        self._may_pass = lru_cache(maxsize=4096)(self._judge)

    def admit(self, x: Exchange, now: float) -> Reply | None:
        if self._may_pass(x.client):
            return None
        return refuse(x, Kind.FORBIDDEN, "This address may not use this route. Ask its operator for access.")

    def passes(self, x: Exchange) -> bool:
        """Whether the client's address may use the route."""
        return self._may_pass(x.client)

    def _judge(self, client: str) -> bool:
        if not client:
            return not self._allow
        address = ip_address(client)
        if any(address in network for network in self._deny):
            return False
        return not self._allow or any(address in network for network in self._allow)
