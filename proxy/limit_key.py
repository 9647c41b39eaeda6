"""Whose requests a limit counts together: what its ``key`` says, or a combination of several. Pure.

What a request does not have (no API key, no such field, no model) counts as one more value, the empty one, so that
nobody passes a limit by leaving something out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final

from proxy.client_address import counted_as
from proxy.exchange import Exchange
from proxy.limit_kinds import header_of, prefix_of

if TYPE_CHECKING:
    from proxy.model_routes import ModelRoutes

_BETWEEN: Final = "\n"  # in no field's value, no name and no address
_MAX_CHARACTERS: Final = 256  # of what a client made up: keys are remembered, and a body may name a model of megabytes

KeyOf = Callable[[Exchange], str]


def key_of(kinds: tuple[str, ...], route: str, models: ModelRoutes | None = None) -> KeyOf:
    """What a request is counted under. models: of a route by models, whose aliases count as what they stand for."""
    if len(kinds) == 1:
        return _key_of(kinds[0], route, models)
    parts = [_key_of(kind, route, models) for kind in kinds]
    return lambda x: _BETWEEN.join([part(x) for part in parts])


def _key_of(kind: str, route: str, models: ModelRoutes | None) -> KeyOf:
    if kind == "client":
        return lambda x: counted_as(x.client)
    if kind == "api_key":
        return lambda x: x.key_id or ""
    if kind == "tenant":
        return lambda x: x.key.tenant if x.key is not None else ""
    if kind == "team":
        # A team's name is its tenant's own.
        return lambda x: f"{x.key.tenant}/{x.key.team}" if x.key is not None else ""
    if kind == "model":
        return _model if models is None else lambda x: _named(_model(x), models)
    bits, header = prefix_of(kind), header_of(kind)
    if bits is not None:
        bits4, bits6 = bits
        return lambda x: network_of(x.client, bits4, bits6)
    if header:
        return lambda x: _short(x.fields.get(header, ""))
    constant = route if kind == "route" else ""
    return lambda x: constant


def _named(model: str, models: ModelRoutes) -> str:
    found = models.asked(model)
    return found.name if found is not None else model


def _model(x: Exchange) -> str:
    asked = x.body.llm if x.body is not None else None
    return _short(asked.model) if asked is not None else ""


def _short(text: str) -> str:
    """The text, or what stands for a long one and for no other."""
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"\0{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


@lru_cache(maxsize=4096)
def network_of(client: str, bits4: int, bits6: int) -> str:
    """The network of so many bits that an address is in; "" of a unix socket."""
    try:
        address = ip_address(client.partition("%")[0])
    except ValueError:
        return client
    return str(ip_network((address, bits4 if address.version == 4 else bits6), strict=False))
