"""Which web pages may use a route from a browser (CORS, Fetch Standard §3.2). Pure.

Stands before the policies that ask who a request comes from: a preflight carries no credentials, so it is answered
here, and a refusal of theirs still carries the fields without which a script may not read it. What the upstream says of
CORS is replaced, because two answers are none to a browser. This guards browsers' users, not the route: a request from
another origin, or from no browser, is served without these fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from multidict import istr
from pydantic import AfterValidator, Field

from proxy.chain import Policy
from proxy.config import Table
from proxy.config_policies import Name
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Head, Reply
from proxy.policy.env import PolicyEnv
from proxy.units import Duration

NAME = "cors"
ALWAYS = False

MAX_ORIGIN_CHARACTERS = 512
_HOST = r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?|\[[0-9a-f:.]+\]"
_ORIGIN = re.compile(rf"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<any>\*\.)?(?P<host>{_HOST})(?P<port>:[0-9]{{1,5}})?")
_METHOD = re.compile(r"\*|[!#$%&'+.^_`|~0-9A-Za-z-]+")
_TOKENS = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+){0,99}")
_LABELS = r"(?:[a-z0-9_-]{1,63}\.)+"
_ORIGIN_FIELD = istr("Origin")
_REQUEST_METHOD = istr("Access-Control-Request-Method")
_REQUEST_HEADERS = istr("Access-Control-Request-Headers")
_ALLOW_ORIGIN = b"Access-Control-Allow-Origin"
_PREFIX = b"access-control-"


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


def build(config: Terms, env: PolicyEnv) -> Cors:
    """The policy of one route."""
    return Cors(config)


class Cors(Policy):
    def __init__(self, config: Terms) -> None:
        self._everybody = "*" in config.origins
        self._exact = frozenset(config.origins)
        self._below = _below(config.origins)
        credentials = ((b"Access-Control-Allow-Credentials", b"true"),) if config.credentials else ()
        expose = ", ".join(config.expose).encode()
        self._of_answers = (*credentials, *(((b"Access-Control-Expose-Headers", expose),) if expose else ()))
        self._any_method = "*" in config.methods
        self._any_header = "*" in config.headers
        self._methods = ", ".join(config.methods).encode()
        self._headers = ", ".join(config.headers).encode()
        self._of_preflights = (*credentials, (b"Access-Control-Max-Age", b"%d" % config.max_age))
        self._vary = b"Access-Control-Request-Method, Access-Control-Request-Headers"
        if not self._everybody:
            self._vary = b"Origin, " + self._vary

    def admit(self, x: Exchange, now: float) -> Reply | None:
        if x.method != "OPTIONS":
            return None
        method = x.fields.get(_REQUEST_METHOD)
        if method is None or _ORIGIN_FIELD not in x.fields:
            return None
        if self._allowed(x) is None:
            message = "This route may not be used from this origin. Ask its operator to allow the origin."
            return refuse(x, Kind.FORBIDDEN, message, code="origin_not_allowed")
        methods, headers = self._methods, self._headers
        if self._any_method:  # told by name: with credentials * is a name like any other
            methods = method.encode() if _METHOD.fullmatch(method) else b""
        if self._any_header:
            wanted = x.fields.get(_REQUEST_HEADERS, "")
            headers = wanted.encode() if len(wanted) <= 4096 and _TOKENS.fullmatch(wanted) else b""
        fields = [*self._of_preflights, (b"Vary", self._vary)]
        if methods:
            fields.append((b"Access-Control-Allow-Methods", methods))
        if headers:
            fields.append((b"Access-Control-Allow-Headers", headers))
        x.scratch[NAME] = True  # it says all that respond would, but for the origin
        return Reply(204, tuple(fields))

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        origin = self._allowed(x)
        if x.scratch.get(NAME) is not None:
            if origin is not None:
                head.headers.append((_ALLOW_ORIGIN, origin))
            return
        headers = head.headers
        if any(name[:15].lower() == _PREFIX for name, _ in headers):
            headers[:] = [field for field in headers if field[0][:15].lower() != _PREFIX]
        if not self._everybody and not _varies_by_origin(headers):
            headers.append((b"Vary", b"Origin"))
        if origin is not None:
            headers.append((_ALLOW_ORIGIN, origin))
            headers += self._of_answers

    def _allowed(self, x: Exchange) -> bytes | None:
        """What the answer says of the request's origin; None: nothing."""
        origin = x.fields.get(_ORIGIN_FIELD)
        if origin is None:
            return None
        if self._everybody:
            return b"*"
        if origin in self._exact:
            return origin.encode()
        if self._below is not None and len(origin) <= MAX_ORIGIN_CHARACTERS and self._below.fullmatch(origin):
            return origin.encode()
        return None


def _below(origins: Iterable[str]) -> re.Pattern[str] | None:
    """One expression for all origins with a wildcard, or None if there are none."""
    patterns = [
        f"{re.escape(scheme)}://{_LABELS}{re.escape(rest)}"
        for scheme, _, rest in (origin.partition("://*.") for origin in origins)
        if rest
    ]
    return re.compile("|".join(patterns)) if patterns else None


def _varies_by_origin(headers: list[tuple[bytes, bytes]]) -> bool:
    for name, value in headers:
        if name.lower() == b"vary":
            tokens = {token.strip() for token in value.lower().split(b",")}
            if b"*" in tokens or b"origin" in tokens:
                return True
    return False
