"""One JSON line per request: who, what, how it ended, and where the time went. Pure.

Never bodies, never keys: the query's secrets are masked, the key shows by its id. What the client wrote is escaped and
cut, so a line is a line whatever it sent; the target is logged raw, as received, because a decoded one can forge lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import unquote

import orjson

from proxy.chain import Policy
from proxy.config import Table
from proxy.exchange import Exchange, Outcome
from proxy.policy.env import PolicyEnv

NAME = "access_log"
ALWAYS = True
SHARED = False

MAX_METHOD = 32
MAX_TARGET = 1024
MAX_TEXT = 256
MASK = "***"
#: A parameter whose name has one of these words, or ends in one of those, is a secret: api_key, accessToken, X-Amz-Sig.
_SECRET_WORDS = frozenset(
    {"auth", "authorization", "code", "credential", "jwt", "key", "pass", "passwd", "pwd", "session", "sid", "sig"}
)
_SECRET_ENDINGS = ("key", "token", "secret", "password", "signature", "credentials")
_SECRET_VALUES = ("sk-", "hr_", "bearer ")
_WORDS = re.compile(r"[a-z0-9]+")
_PARAMETERS = re.compile(r"[?#]")
_SEPARATOR = re.compile(r"([&;#?])")
_USERINFO = re.compile(r"://[^/?#]*@")


class Config(Table):
    enabled: bool = True


def build(config: Config, env: PolicyEnv) -> Policy:
    """The policy of one route."""
    return AccessLog(env.emit) if config.enabled else Policy()


class AccessLog(Policy):
    def __init__(self, emit: Callable[[bytes], None]) -> None:
        self._emit = emit

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        self._emit(line(x, outcome, now))


def line(x: Exchange, outcome: Outcome, now: float) -> bytes:
    """The request as one JSON object without a newline. Times are milliseconds, null for a stage not reached."""
    started_at, admitted_at, connected_at = x.started_at, x.admitted_at, x.connected_at
    return orjson.dumps(
        {
            "time": int((x.wall_at + now - started_at) * 1000) / 1000,
            "id": x.request_id,
            "client": x.client,
            "key": x.key_id,
            "method": _text(x.method, MAX_METHOD),
            "host": _text(x.host, MAX_TEXT),
            "target": _target(x.target),
            "version": f"{x.version[0]}.{x.version[1]}",
            "route": x.route.name if x.route is not None else None,
            "upstream": x.upstream or None,
            "server": x.server or None,
            "attempts": x.attempts,
            "status": outcome.status,
            "ending": outcome.ending.value,
            "reason": outcome.reason or None,
            "bytes_in": x.bytes_in,
            "bytes_out": x.bytes_out,
            "route_ms": _ms(started_at, x.routed_at),
            "wait_ms": _ms(x.routed_at, admitted_at),
            "connect_ms": _ms(admitted_at, connected_at),
            "first_byte_ms": _ms(connected_at, x.first_byte_at),
            "total_ms": _ms(started_at, now),
            "user_agent": _text(x.fields.get("User-Agent", ""), MAX_TEXT) or None,
            "trace": x.traceparent or None,
        }
    )


def _ms(begin: float, end: float) -> float | None:
    """Milliseconds to three places (``round`` costs five times as much)."""
    return int((end - begin) * 1e6) / 1000 if begin and end else None


def _text(text: str, limit: int) -> str:
    """At most ``limit`` characters of printable ASCII; anything else as a backslash escape."""
    if len(text) > limit:
        text = text[:limit] + "..."
    if text.isascii() and text.isprintable():
        return text
    raw = text.encode("utf-8", "surrogateescape")
    return "".join(chr(b) if 32 <= b < 127 else f"\\x{b:02x}" for b in raw)


def _target(target: str) -> str:
    """The target as received, cut, its secrets masked: parameters, and a password before the host."""
    target = target[: MAX_TARGET + 1]
    if not target.startswith("/"):
        target = _USERINFO.sub(f"://{MASK}@", target, count=1)
    begin = _PARAMETERS.search(target)
    if begin is not None:
        target = target[: begin.end()] + mask_query(target[begin.end() :])
    return _text(target, MAX_TARGET)


def mask_query(query: str) -> str:
    """The query with the values of secret-looking parameters replaced, whether by name or by value; else unchanged.

    A fragment is no part of a request, and clients put tokens there: what is sent of it is treated alike.
    """
    return "".join([_masked(part) for part in _SEPARATOR.split(query)])


def _masked(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals:
        return pair
    if "%" in pair or "+" in pair:
        plain_name, plain_value = unquote(name).lower(), unquote(value.replace("+", " ")).lower()
    else:
        plain_name, plain_value = name.lower(), value.lower()
    return f"{name}={MASK}" if _names_secret(plain_name) or plain_value.startswith(_SECRET_VALUES) else pair


@lru_cache(maxsize=1024)
def _names_secret(name: str) -> bool:
    return name.endswith(_SECRET_ENDINGS) or not _SECRET_WORDS.isdisjoint(_WORDS.findall(name))
