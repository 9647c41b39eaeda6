"""The tables of those policies that are compiled: pydantic reads what compiled classes no longer have."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from proxy.config import Network, Table
from proxy.headers import HOP_BY_HOP
from proxy.units import Size

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_OURS = {name.decode() for name in HOP_BY_HOP} | {"host"}


def _name(value: str) -> str:
    if not _TOKEN.fullmatch(value):
        raise ValueError(f"{value!r} is not a header name")
    if value.lower() in _OURS:
        raise ValueError(f"{value} is made by the proxy and cannot be set or removed")
    return value


def _value(value: str) -> str:
    if not _VALUE.fullmatch(value):
        raise ValueError("a header value is printable ASCII on one line")
    return value


Name = Annotated[str, AfterValidator(_name)]
Value = Annotated[str, AfterValidator(_value)]


class Changes(Table):
    set: dict[Name, Value] = Field(default_factory=dict)  # replaces what is there
    remove: tuple[Name, ...] = ()


class Headers(Table):
    request: Changes = Changes()  # towards the upstream
    response: Changes = Changes()  # towards the client
    forward: tuple[Literal["x-forwarded", "forwarded"], ...] = ("x-forwarded",)  # how the client is named upstream


class RequestId(Table):
    accept: bool = True  # reuse the client's X-Request-Id and traceparent where they are well-formed


class Access(Table):
    allow: tuple[Network, ...] = ()  # empty: everybody who is not denied
    deny: tuple[Network, ...] = ()  # wins over allow


class AccessLog(Table):
    enabled: bool = True


class SizeLimit(Table):
    body: Size  # as sent, before any content coding is undone


class InFlight(Table):
    max: Annotated[int, Field(ge=1)]
    key: Literal["api_key", "client", "route"] = "route"  # whose requests are counted together
