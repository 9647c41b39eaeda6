"""Who the client is: the socket's peer, or the first hop behind it that is not one of our trusted proxies. Pure.

Only a trusted peer's word counts, and only X-Forwarded-For is read: a second source would let a client choose which of
the two is believed. The list is walked from the right, where our own proxies wrote; the first address that is not
trusted is the client, whatever stands further left. An entry that is no address ends the walk: who wrote it is unknown,
so the peer itself is the client. Who connects to a unix socket has no address; the word ``unix`` trusts it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final, Literal

from proxy.config import Network
from proxy.exchange import RawHeaders

MAX_HOPS: Final = 32  # more is not a chain of proxies but an attack on this loop


def canonical(text: str) -> str | None:
    """The address in one spelling, or None: port, brackets and IPv6 zone removed, IPv4-mapped IPv6 as IPv4."""
    text = text.strip()
    if text.startswith("["):
        text, bracket, port = text[1:].partition("]")
        if not bracket or (port and not _is_port(port)):
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _is_port(":" + port):
            return None
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdigit() and int(text[1:6] or 0) < 65536


def counted_as(client: str) -> str:
    """What a client's address is counted under: an IPv6 client owns its whole /64, so it is counted as one."""
    return _network64(client.partition("%")[0]) if ":" in client else client


@lru_cache(maxsize=4096)
def _network64(client: str) -> str:
    return str(IPv6Network((client, 64), strict=False))


class ClientAddress:
    """A listener's view of who its clients are."""

    def __init__(self, trusted_proxies: Iterable[Network | Literal["unix"]]) -> None:
        proxies = tuple(trusted_proxies)
        self._networks = tuple(proxy for proxy in proxies if proxy != "unix")
        self._trusts_unix = len(self._networks) < len(proxies)
        self._is_trusted = lru_cache(maxsize=4096)(self._in_networks)

    def resolve(self, peer: str, headers: RawHeaders) -> tuple[str, bool]:
        """(client, whether the peer is trusted) for a socket's peer ("" on a unix socket) and the request's fields."""
        if not self._networks and not self._trusts_unix:
            return _peer(peer), False
        peer = _peer(peer)
        if not self._is_trusted(peer):
            return peer, False
        client = peer
        for hop in self._hops(headers):
            address = canonical(hop)
            if address is None:
                return peer, True
            client = address
            if not self._is_trusted(address):
                break
        return client, True

    def trusts(self, peer: str) -> bool:
        """Whether a socket's peer is one of our proxies."""
        return bool(self._networks) and self._is_trusted(_peer(peer))

    def _hops(self, headers: RawHeaders) -> list[str]:
        lines = [value for name, value in headers if len(name) == 15 and name.lower() == b"x-forwarded-for"]
        if not lines:
            return []
        hops = b",".join(lines).decode("latin-1").rsplit(",", MAX_HOPS)
        return hops[: -MAX_HOPS - 1 : -1]

    def _in_networks(self, address: str) -> bool:
        if not address:
            return self._trusts_unix
        parsed = ip_address(address)
        return any(parsed in network for network in self._networks)


@lru_cache(maxsize=4096)
def _peer(peer: str) -> str:
    return canonical(peer) or ""
