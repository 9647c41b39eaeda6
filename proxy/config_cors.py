"""The table of ``policies: {cors: ...}``: which web pages may use a route, and how."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from proxy.config import Table
from proxy.config_policies import Name
from proxy.units import Duration

_HOST = r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?|\[[0-9a-f:.]+\]"
_ORIGIN = re.compile(rf"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<any>\*\.)?(?P<host>{_HOST})(?P<port>:[0-9]{{1,5}})?")
_METHOD = re.compile(r"\*|[!#$%&'+.^_`|~0-9A-Za-z-]+")


def _origin(value: str) -> str:
    found = _ORIGIN.fullmatch(value)
    if value != "*" and (found is None or (found["any"] and "." not in found["host"])):
        raise ValueError(
            f"{value!r} is not an origin; write https://HOST or https://HOST:PORT in lower case and without a path, "
            "https://*.DOMAIN.TLD for every name below, or *"
        )
    return value


def _method(value: str) -> str:
    if not _METHOD.fullmatch(value):
        raise ValueError(f"{value!r} is not a method")
    return value


class Terms(Table):
    origins: Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], Field(min_length=1)]
    methods: tuple[Annotated[str, AfterValidator(_method)], ...] = ("GET", "HEAD", "POST")  # "*": any
    headers: tuple[Name, ...] = ()  # of requests, beyond those that every page may send; "*": any
    expose: tuple[Name, ...] = ()  # of answers, beyond those that every page may read
    credentials: bool = False  # cookies and the browser's own Authorization
    max_age: Duration = 600.0  # how long a browser remembers a preflight's answer


def _no_credentials_for_everybody(terms: Terms) -> Terms:
    if terms.credentials and "*" in terms.origins:
        raise ValueError("credentials for the origin * would let every web page act as its visitor; list origins")
    if terms.credentials and "*" in terms.expose:
        raise ValueError("with credentials browsers take * in expose as a name; list the fields")
    return terms


Config = Annotated[Terms, AfterValidator(_no_credentials_for_everybody)]
