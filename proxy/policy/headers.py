"""Header fields that are added, changed or removed, both ways; and what tells an upstream who the client is. Pure.

``proxy.headers`` has removed the hop-by-hop fields and an untrusted peer's forwarding fields by the time what is added
here is written, so only our own word about the client arrives (RFC 7239 for Forwarded).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from proxy import config_policies
from proxy.chain import Policy
from proxy.config_policies import Changes
from proxy.exchange import Exchange, Head, Reply
from proxy.headers import joined
from proxy.policy.env import PolicyEnv

NAME: Final = "headers"
ALWAYS: Final = True

#: Made by the proxy itself: a configured one would contradict the message it stands in.
_X_FORWARDED: Final = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})


Config = config_policies.Headers


def build(config: Config, env: PolicyEnv) -> Headers:
    """The policy of one route."""
    return Headers(config)


class Headers(Policy):
    def __init__(self, config: Config) -> None:
        self._x_forwarded = "x-forwarded" in config.forward
        self._forwarded = "forwarded" in config.forward
        self._add, self._drop = compile_changes(config.request)
        self._response_add, self._response_drop = compile_changes(config.response)

    def admit(self, x: Exchange, now: float) -> Reply | None:
        if self._x_forwarded:
            _add_x_forwarded(x)
        if self._forwarded:
            _add_forwarded(x)
        if self._drop:
            x.drop |= self._drop
            x.add += self._add
        return None

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        # What has a length is no stream: it is there as a whole, or soon is.
        if head.content_length is None and _is_event_stream(head):
            # Proxies further out must neither buffer nor recompress a stream of events.
            if head.get(b"x-accel-buffering") is None:
                head.headers.append((b"X-Accel-Buffering", b"no"))
            if b"no-transform" not in (head.get(b"cache-control") or b""):
                head.headers.append((b"Cache-Control", b"no-transform"))
        if self._response_drop:
            head.headers[:] = [f for f in head.headers if f[0].lower() not in self._response_drop]
            head.headers += self._response_add


def compile_changes(changes: Changes) -> tuple[list[tuple[bytes, bytes]], frozenset[bytes]]:
    """(fields that are added, names of those that are dropped)."""
    add = [(name.encode(), value.encode()) for name, value in changes.set.items()]
    return add, frozenset(name.lower().encode() for name in (*changes.set, *changes.remove))


def _is_event_stream(head: Head) -> bool:
    return (head.get(b"content-type") or b"").lstrip()[:17].lower() == b"text/event-stream"


def _add_x_forwarded(x: Exchange) -> None:
    """X-Forwarded-For, -Proto and -Host; a trusted proxy's own are continued, anybody else's were dropped."""
    own = _own_word(x.peer, x.scheme, x.authority)
    if x.trusted:
        (_, peer), (_, proto), (_, host) = own
        earlier = joined(x.headers, b"x-forwarded-for")
        own = (
            # A proxy on a unix socket has no address, and what is none would end the walk of whoever reads this.
            (b"X-Forwarded-For", earlier + b", " + peer if earlier and x.peer else earlier or peer),
            (b"X-Forwarded-Proto", joined(x.headers, b"x-forwarded-proto") or proto),
            (b"X-Forwarded-Host", joined(x.headers, b"x-forwarded-host") or host),
        )
        x.drop |= _X_FORWARDED
    x.add += own


@lru_cache(maxsize=4096)  # the gate has bounded the authority
def _own_word(peer: str, scheme: str, authority: str) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b"X-Forwarded-For", (peer or "unknown").encode()),
        (b"X-Forwarded-Proto", scheme.encode()),
        (b"X-Forwarded-Host", authority.encode("latin-1")),
    )


def _add_forwarded(x: Exchange) -> None:
    node = f'"[{x.peer}]"' if ":" in x.peer else x.peer or "unknown"
    element = f"for={node};proto={x.scheme}"
    if x.authority:
        element += f';host="{x.authority}"'
    value = element.encode("latin-1")
    earlier = joined(x.headers, b"forwarded") if x.trusted else b""
    x.drop.add(b"forwarded")
    x.add.append((b"Forwarded", earlier + b", " + value if earlier else value))
