"""What a request need not carry further: header fields, cookies and tracing internals that end at the edge. Pure.

Every byte of a head is sent, parsed and kept by each server behind; cookies of analytics and fields of somebody else's
tracing are most of them. Names are matched without case and with ``_`` as ``-``, as CGI-like servers fold them; cookies
by their exact name. What other policies take out as consumed here (API keys, passwords) counts as trimmed, too; what
the proxy itself adds is never trimmed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from proxy import config_trim
from proxy.cells import Counter
from proxy.chain import Policy
from proxy.config_trim import NOT_OURS, CookieWeight, Names, Weight, fold
from proxy.exchange import Exchange, Reply
from proxy.headers import joined
from proxy.policy.env import PolicyEnv

NAME: Final = "trim"
ALWAYS: Final = False

#: Fields of tracing systems; traceparent is always re-made (``request_id``).
TRACING: Final = {
    "b3": ("b3", "x-b3-*"),
    "datadog": ("x-datadog-*",),
    "aws": ("x-amzn-trace-id", "x-amz-cf-id"),
    "gcp": ("x-cloud-trace-context",),
    "jaeger": ("uber-trace-id", "uberctx-*", "jaeger-debug-id", "jaeger-baggage"),
    "newrelic": ("newrelic", "x-newrelic-*"),
    "opentracing": ("ot-tracer-*", "ot-baggage-*", "x-ot-span-context"),
    "sentry": ("sentry-trace",),
    "w3c": ("tracestate", "baggage"),
}
#: What an allow-list need not name: a body or the change to a WebSocket means nothing without it, or it is what trusted
#: proxies wrote, which ``headers`` continues.
_ALWAYS_ALLOWED: Final = ("content-type", "content-encoding", "sec-websocket-*", "x-forwarded-*")
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key"})
_MAX_NAMES: Final = 2048
_SEPARATORS_BYTES: Final = 4  # ": " and the line's end

_STAYS: Final = 0
_GOES: Final = 1
_CONSUMED: Final = 2


Config = config_trim.Config


def build(config: Weight, env: PolicyEnv) -> Trim:
    """The policy of one route."""
    trimmed = env.cells.counter(
        "headrace_request_header_bytes_trimmed_total",
        "Bytes of request header fields that a trim policy kept from upstreams.",
        {"route": env.route},
    )
    return Trim(config, trimmed)


class Trim(Policy):
    def __init__(self, config: Weight, trimmed: Counter) -> None:
        headers, cookies = config.headers, config.cookies
        self._drop = Names((*headers.drop, *(name for group in headers.tracing for name in TRACING[group])))
        self._allow = Names((*headers.allow, *_ALWAYS_ALLOWED)) if headers.allow is not None else None
        self._cookies = _pairs_that_go(cookies) if cookies.drop or cookies.allow is not None else None
        self._judged: dict[bytes, tuple[int, bytes]] = {}  # by exact spelling
        self._trimmed = trimmed

    def admit(self, x: Exchange, now: float) -> Reply | None:
        saved = 0
        drop, judged = x.drop, self._judged
        replaced = b"cookie" in drop  # by a Cookie that the operator sets
        for name, value in x.headers:
            found = judged.get(name)
            kind, folded = found if found is not None else self._judge(name)
            if kind == _GOES:
                drop.add(folded)
            elif kind == _STAYS or folded not in drop:
                continue
            saved += len(name) + len(value) + _SEPARATORS_BYTES
        if self._cookies is not None and not replaced and b"cookie" not in drop:
            saved += _rewrite_cookies(x, self._cookies)
        if saved:
            self._trimmed.add(saved)
        return None

    def _judge(self, name: bytes) -> tuple[int, bytes]:
        """(what becomes of a field, its folded name). Names are a client's: a bounded number is remembered."""
        folded = fold(name)
        kind = _CONSUMED if folded in _CREDENTIALS else _STAYS
        if folded not in NOT_OURS and (self._drop(folded) or (self._allow is not None and not self._allow(folded))):
            kind = _GOES
        if len(name) <= 64:
            if len(self._judged) >= _MAX_NAMES:
                self._judged.clear()
            self._judged[name] = kind, folded
        return kind, folded


def _pairs_that_go(cookies: CookieWeight) -> re.Pattern[bytes]:
    """Finds, in a Cookie field with a semicolon before it, every pair that goes no further, with its semicolon."""
    drop = _any_of(cookies.drop)
    allow = _any_of(cookies.allow) if cookies.allow is not None else b""
    return re.compile(rb";[ \t]*+(?:(?=%b)|(?!%b))[^;]*+" % (drop, allow))


def _any_of(patterns: Iterable[str]) -> bytes:
    """Matches one of the names at the beginning of a pair, up to its ``=``, or its end if it has none."""
    names = [
        re.escape(each[:-1].encode()) + rb"[^=;]*+" if each.endswith("*") else re.escape(each.encode())
        for each in patterns
    ]
    return rb"(?:%b)[ \t]*+(?:[=;]|\Z)" % b"|".join(names) if names else rb"(?!)"


def _rewrite_cookies(x: Exchange, pairs: re.Pattern[bytes]) -> int:
    """Take cookies out of the Cookie fields, the others byte by byte as they were; how many bytes it saved."""
    before = after = 0
    lines: list[tuple[bytes, bytes]] = []
    for name, value in x.headers:
        if len(name) == 6 and name.lower() == b"cookie":
            size = len(name) + _SEPARATORS_BYTES
            before += size + len(value)
            rest = pairs.sub(b"", b";" + value)[1:].strip(b" \t")
            if rest:
                lines.append((name, rest))
                after += size + len(rest)
    if after == before:
        return 0
    x.drop.add(b"cookie")
    # What the client's Connection names is removed from its message first, so its cookies do not come back here.
    if b"cookie" not in {token.strip().lower() for token in joined(x.headers, b"connection").split(b",")}:
        x.add += lines
    return before - after
