"""Which web pages may use a route from a browser (CORS, Fetch Standard §3.2). Pure.

Stands before the policies that ask who a request comes from: a preflight carries no credentials, so it is answered
here, and a refusal of theirs still carries the fields without which a script may not read it. What the upstream says of
CORS is replaced, because two answers are none to a browser. This guards browsers' users, not the route: a request from
another origin, or from no browser, is served without these fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from multidict import istr

from proxy import config_cors
from proxy.chain import Policy
from proxy.config_cors import Terms
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Head, Reply
from proxy.policy.env import PolicyEnv

NAME: Final = "cors"
ALWAYS: Final = False

MAX_ORIGIN_CHARACTERS: Final = 512
_METHOD: Final = re.compile(r"\*|[!#$%&'+.^_`|~0-9A-Za-z-]+")
_TOKENS: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+){0,99}")
_LABELS: Final = r"(?:[a-z0-9_-]{1,63}\.)+"
_ORIGIN_FIELD: Final = istr("Origin")
_REQUEST_METHOD: Final = istr("Access-Control-Request-Method")
_REQUEST_HEADERS: Final = istr("Access-Control-Request-Headers")
_ALLOW_ORIGIN: Final = b"Access-Control-Allow-Origin"
_PREFIX: Final = b"access-control-"


Config = config_cors.Config


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
        if [name for name, _ in headers if len(name) >= len(_PREFIX) and name.lower().startswith(_PREFIX)]:
            headers[:] = [field for field in headers if not field[0].lower().startswith(_PREFIX)]
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
        if len(name) == 4 and name.lower() == b"vary":
            tokens = {token.strip() for token in value.lower().split(b",")}
            if b"*" in tokens or b"origin" in tokens:
                return True
    return False
