"""The tables of ``policies: {trim: ...}``: names, and beginnings of names, of what goes upstream and what does not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator

from proxy.config import Table
from proxy.headers import HOP_BY_HOP

#: Of this hop, or re-made in any case: nothing is saved by leaving them out once more.
NOT_OURS = HOP_BY_HOP | {b"host", b"expect", b"http2-settings", b"x-request-id", b"traceparent"}
_PATTERN = re.compile(r"[!#$%&'+.^_`|~0-9A-Za-z-]+\*?")
_COOKIE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Names:
    """A set of names, and beginnings of names, of header fields."""

    def __init__(self, patterns: Iterable[str]) -> None:
        known = [fold(each.encode()) for each in patterns]
        self.exact = frozenset(each for each in known if not each.endswith(b"*"))
        self.beginnings = tuple(each[:-1] for each in known if each.endswith(b"*"))

    def __call__(self, name: bytes) -> bool:
        """Whether a folded name is one of them."""
        return name in self.exact or name.startswith(self.beginnings)


def fold(name: bytes) -> bytes:
    return name.lower().replace(b"_", b"-")


def _pattern(value: str) -> str:
    if not _PATTERN.fullmatch(value):
        raise ValueError(f"{value!r} is not a header name, or the beginning of some, like X-Internal-*")
    if fold(value.encode()) in NOT_OURS:
        raise ValueError(f"{value} is never forwarded as the client sent it; leave it out here")
    return value


def _cookie(value: str) -> str:
    if not _COOKIE.fullmatch(value) or "*" in value[:-1]:
        raise ValueError(f"{value!r} is not the name of a cookie, or the beginning of some, like _ga*")
    return value


Pattern = Annotated[str, AfterValidator(_pattern)]
CookiePattern = Annotated[str, AfterValidator(_cookie)]


class HeaderWeight(Table):
    allow: tuple[Pattern, ...] | None = None  # only these go upstream, and what the proxy adds; None: all
    drop: tuple[Pattern, ...] = ()  # wins over allow
    tracing: tuple[
        Literal["b3", "datadog", "aws", "gcp", "jaeger", "newrelic", "opentracing", "sentry", "w3c"], ...
    ] = ()


class CookieWeight(Table):
    allow: tuple[CookiePattern, ...] | None = None  # only these go upstream; None: all
    drop: tuple[CookiePattern, ...] = ()  # wins over allow


class Weight(Table):
    headers: HeaderWeight = HeaderWeight()
    cookies: CookieWeight = CookieWeight()


def _cookies_may_pass(weight: Weight) -> Weight:
    headers = weight.headers.allow
    if weight.cookies.allow and headers is not None and not Names(headers)(b"cookie"):
        raise ValueError("cookies.allow names cookies, but headers.allow leaves out the field Cookie; add it")
    return weight


Config = Annotated[Weight, AfterValidator(_cookies_may_pass)]
