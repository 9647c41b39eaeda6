"""Routes that answer themselves: a redirect, or a fixed response. Pure.

A redirect cannot be made to lead elsewhere by who asks: its scheme and host are the operator's own text, or the host
that the route itself matched; a path that begins the target begins with one slash; and what the request adds is visible
ASCII (``//evil.example``, ``/\\evil.example`` and line breaks come to nothing).
"""

from __future__ import annotations

import re

from proxy.config_match import Match, Redirect, Respond
from proxy.exchange import Exchange, Reply
from proxy.patterns import RESERVED, parse_pattern
from proxy.rewrite import one_slash
from proxy.templates import Template, visible

_ABSOLUTE = re.compile(r"(https?://)((?:[^/?#{}]|\{host\})*)(.*)", re.DOTALL)
_AUTHORITY = re.compile(r"(?:(?:[A-Za-z0-9._-]|\{host\})+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_TARGET = re.compile(r"[!-\[\]-~]+")


class Redirector:
    """A route's redirect, compiled. Raises ValueError if it does not fit the route's match or could lead anywhere."""

    __slots__ = ("_base", "_path", "_pattern", "_query", "_status")

    def __init__(self, config: Redirect, match: Match) -> None:
        text = config.to
        if not _TARGET.fullmatch(text):
            raise ValueError(
                f"to: {text!r} is not a target; write visible ASCII without a backslash, escapes as %C3%A9"
            )
        self._status = config.status
        self._pattern = parse_pattern(match.path)
        known = RESERVED | self._pattern.names
        base, rest = _split(text, match)
        at = next((i for i, character in enumerate(rest) if character in "?#"), len(rest))
        self._base = Template(base, known)
        self._path = Template(rest[:at], known)
        self._query = Template(rest[at:], known)
        if "query" in self._path.names:
            raise ValueError(f"to: {text!r}: {{query}} stands behind a question mark: {{path}}?{{query}}")

    def answer(self, x: Exchange) -> Reply:
        """The redirect of one request."""
        values = self._pattern.values(x.send_path) if self._pattern.names else {}
        values["host"], values["path"], values["query"] = x.host, x.send_path, x.query
        path = self._path.render(values)
        if not self._base.text:
            path = one_slash(path)
        target = visible(self._base.render(values) + path + self._query.render_query(values))
        return Reply(self._status, ((b"Location", target.encode()),))


class Responder:
    """A route's fixed response."""

    __slots__ = ("_reply",)

    def __init__(self, config: Respond) -> None:
        fields = [(name.encode(), value.encode()) for name, value in config.headers.items()]
        if config.body:
            fields.insert(0, (b"Content-Type", config.content_type.encode()))
        self._reply = Reply(config.status, tuple(fields), config.body.encode())

    def answer(self, x: Exchange) -> Reply:
        """The same for every request."""
        return self._reply


def _split(text: str, match: Match) -> tuple[str, str]:
    """(scheme and host, "" for none; the rest)."""
    found = _ABSOLUTE.fullmatch(text)
    if found is None:
        if text.startswith("//") or not text.startswith(("/", "{path}")):
            raise ValueError(f"to: {text!r} is not a target; write https://HOST/PATH or /PATH")
        return "", text
    scheme, authority, rest = found.groups()
    if not _AUTHORITY.fullmatch(authority) or not (not rest or rest.startswith(("/", "?", "#", "{path}"))):
        raise ValueError(f"to: {text!r} must name its host; of the request only {{host}} may be part of it")
    if "{host}" in authority and match.host is None:
        raise ValueError(f"to: {text!r} leads wherever a request's Host says; set match.host, or write the host")
    return scheme + authority, rest
