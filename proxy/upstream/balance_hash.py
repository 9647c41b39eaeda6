"""Consistent hashing: requests with the same header, cookie, client or path go to the same server. Pure.

Rendezvous hashing (Thaler and Ravishankar, 1998): every server has a score for the value, drawn from both, and the
highest wins. When one of n servers leaves, only its own values move, 1/n of all, and they spread evenly over the
others; when it is back, they return. Weights are exact (a score is an exponential variate of its weight), and all
workers and boxes agree. Scores cost a microsecond for each server, so values fall into a fixed number of slots, and who
wins a slot is worked out once for as long as the same servers are there.
A request without the value goes by least requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import log
from typing import TYPE_CHECKING, Final

from proxy.config import HashBalance, HashOf
from proxy.upstream.balance import Member, pick_least

if TYPE_CHECKING:
    from proxy.exchange import Exchange

#: A prime, so that it has nothing in common with how values are made. Shares are even to 1 % with two servers, and to
#: 6 % with fifty.
NUM_SLOTS: Final = 16381
_MASK: Final = (1 << 64) - 1
_SPAN: Final = float(1 << 64)


def hash_of(value: str) -> int:
    """64 bits that stand for a value or a server's name, the same everywhere."""
    return int.from_bytes(blake2b(value.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")


def mix(bits: int) -> int:
    """SplitMix64's finalizer (Steele, Lea and Flood, 2014): each bit of the input changes half of the output's."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def pick_by_hash(members: Sequence[Member], value: int) -> Member:
    """The member with the highest score for the value's slot."""
    slot = mix(value % NUM_SLOTS + 1)
    best = members[0]
    least = 0.0
    for member in members:
        drawn = (mix(slot ^ member.seed) + 1) / _SPAN
        waits = -log(drawn) / member.weight
        if member is best or waits < least:
            best, least = member, waits
    return best


def cookie_of(fields: str, name: str) -> str | None:
    """The value of the first cookie of that name in a Cookie field (RFC 6265 §4.2.1), or None."""
    for pair in fields.split(";"):
        key, equals, value = pair.strip(" \t").partition("=")
        if equals and key == name:
            return value
    return None


class Hash:
    """Picks by what the configuration says is hashed."""

    __slots__ = ("_kind", "_members", "_name", "_winners")

    def __init__(self, config: HashBalance) -> None:
        self._name = ""
        self._members: Sequence[Member] = ()
        self._winners: list[Member | None] = []
        if isinstance(config.hash, HashOf):
            self._kind = "header" if config.hash.header is not None else "cookie"
            self._name = config.hash.header or config.hash.cookie or ""
        else:
            self._kind = config.hash

    def __call__(self, members: Sequence[Member], x: Exchange | None, draw: float) -> Member:
        value = self.value_of(x) if x is not None else None
        if value is None:
            return pick_least(members, x, draw)
        hashed = hash_of(value)
        if members is not self._members:
            if not isinstance(members, tuple):  # made up for one request, without servers that it has tried
                return pick_by_hash(members, hashed)
            self._members = members
            self._winners = [None] * NUM_SLOTS
        slot = hashed % NUM_SLOTS
        winner = self._winners[slot]
        if winner is None:
            winner = self._winners[slot] = pick_by_hash(members, hashed)
        return winner

    def value_of(self, x: Exchange) -> str | None:
        """What is hashed of a request; None if it has none."""
        if self._kind == "client":
            return x.client or None
        if self._kind == "path":
            return x.path
        if self._kind == "header":
            return x.fields.get(self._name) or None
        return cookie_of(x.fields.get("Cookie", ""), self._name) or None
