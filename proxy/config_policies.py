"""The tables of those policies that are compiled: pydantic reads what compiled classes no longer have."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from proxy.config import MaterialPath, Network, Table
from proxy.headers import HOP_BY_HOP
from proxy.limit_kinds import header_of
from proxy.units import Duration, Percent, Rate, RateText, Size

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_REALM = re.compile(r"[ !#-\[\]-~]{1,100}")
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


def _realm(value: str) -> str:
    if not _REALM.fullmatch(value):
        raise ValueError('a realm is up to 100 printable ASCII characters without " and \\')
    return value


def _field(name: str) -> str:
    if not header_of(f"header:{name}"):
        raise ValueError(f"{name!r} is not a header name")
    return name


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


class Auth(Table):
    keys: MaterialPath  # written by `headrace keys`; see proxy.keys for the format


class BasicAuth(Table):
    users: MaterialPath  # written by `htpasswd -B`; see proxy.htpasswd for the hashes it may hold
    realm: Annotated[str, Field(min_length=1), AfterValidator(_realm)] = "headrace"  # what a browser shows
    remember: Duration = 60.0  # a password that was right is not hashed again
    wrong: RateText = Rate(10, 60.0)  # guesses of one address, in each worker; then 429


class Priority(Table):
    default: Literal["high", "normal", "low"] = "normal"  # of those who may not say X-Priority, or do not
    longest: Duration | None = None  # a deadline for those who name none, or a later one
    #: Fields with a client's own timeout, in seconds.
    timeouts: tuple[Annotated[str, AfterValidator(_field)], ...] = ("x-stainless-timeout", "x-stainless-read-timeout")


class Shed(Table):
    low: Annotated[Percent, Field(gt=0)] = 0.8  # of the places, up to which requests of low priority are let in
    normal: Annotated[Percent, Field(gt=0)] = 0.9

    @model_validator(mode="after")
    def _in_order(self) -> Shed:
        if self.low > self.normal:
            raise ValueError("low must not be above normal: the least urgent are refused first")
        return self


class AccessLog(Table):
    enabled: bool = True


class SizeLimit(Table):
    body: Size  # as sent, before any content coding is undone


class InFlight(Table):
    max: Annotated[int, Field(ge=1)]
    key: Literal["api_key", "client", "route"] = "route"  # whose requests are counted together
