"""One JSON line per request: who, what, how it ended, and where the time went. Pure.

Never bodies, never keys: the query's secrets are masked, the key shows by its id. What the client wrote is escaped and
cut, so a line is a line whatever it sent; the target is logged raw, as received, because a decoded one can forge lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import orjson
from multidict import istr

from proxy import config_policies
from proxy.chain import Policy
from proxy.exchange import Exchange, Outcome
from proxy.llm.usage import Usage
from proxy.policy.env import PolicyEnv

NAME: Final = "access_log"
ALWAYS: Final = True

MAX_METHOD: Final = 32
MAX_TARGET: Final = 1024
MAX_TEXT: Final = 256
MASK: Final = "***"
#: A parameter whose name has one of these words, or ends in one of those, is a secret: api_key, accessToken, X-Amz-Sig.
_SECRET_WORDS: Final = frozenset(
    {"auth", "authorization", "code", "credential", "jwt", "key", "pass", "passwd", "pwd", "session", "sid", "sig"}
)
_SECRET_ENDINGS: Final = ("key", "token", "secret", "password", "signature", "credentials")
_SECRET_VALUES: Final = ("sk-", "hr_", "bearer ")
_WORDS: Final = re.compile(r"[a-z0-9]+")
#: A path without parameters that stands in JSON as it is: printable ASCII but for ``"``, ``#``, ``;``, ``?``, ``\``.
_PLAIN_TARGET: Final = re.compile(rf"/[!$->@-\[\]-~]{{0,{MAX_TARGET - 1}}}").fullmatch
_PARAMETERS: Final = re.compile(r"[?#]")
_SEPARATOR: Final = re.compile(r"([&;#?])")
_USERINFO: Final = re.compile(r"://[^/?#]*@")
_USER_AGENT: Final = istr("User-Agent")
_THOUSANDTHS = tuple([f".{n:03d}" for n in range(1000)])
_NUM_SHORT: Final = 4096  # most stages are shorter than so many microseconds
_SHORT_MS = tuple([f"{n // 1000}.{n % 1000:03d}" for n in range(_NUM_SHORT)])


Config = config_policies.AccessLog


def build(config: Config, env: PolicyEnv) -> Policy:
    """The policy of one route."""
    return AccessLog(env.emit) if config.enabled and env.emit is not None else Policy()


class AccessLog(Policy):
    def __init__(self, emit: Callable[[bytes], None]) -> None:
        self._emit = emit

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        self._emit(line(x, outcome, now))


def line(x: Exchange, outcome: Outcome, now: float) -> bytes:
    """The request as one JSON object without a newline. Times are milliseconds, null for a stage not reached.

    Put together from quoted pieces: what comes again with every request of a client, a server or a kind of answer is
    quoted once and remembered. Id and trace are quoted as they are: ``request_id`` lets only plain ones exist.
    """
    started_at, routed_at, admitted_at, connected_at = x.started_at, x.routed_at, x.admitted_at, x.connected_at
    at_ms = int((x.wall_at + now - started_at) * 1000)
    user_agent = x.fields.get(_USER_AGENT)
    trace = f'"{x.traceparent}"' if x.traceparent else "null"
    usage: Usage | None = x.scratch.get("usage")
    variant: str | None = x.scratch.get("variant")
    return (
        f'{{"time":{at_ms // 1000}{_THOUSANDTHS[at_ms % 1000]},"id":"{x.request_id}",'
        f"{_who(x.client, x.key_id, x.method, x.host)},"
        f'"target":{_target(x.target)},'
        f"{_where(x.version, x.route.name if x.route is not None else None, x.upstream, x.server)},"
        f"{_how(x.attempts, outcome.ending, outcome.status, outcome.reason)},"
        f'"bytes_in":{x.bytes_in},"bytes_out":{x.bytes_out},'
        f'"route_ms":{_ms(started_at, routed_at)},"wait_ms":{_ms(routed_at, admitted_at)},'
        f'"connect_ms":{_ms(admitted_at, connected_at)},"first_byte_ms":{_ms(connected_at, x.first_byte_at)},'
        f'"total_ms":{_ms(started_at, now)},'
        f'"user_agent":{_quoted(user_agent[: MAX_TEXT + 1]) if user_agent else "null"},'
        f'"trace":{trace}{_variant(variant) if variant is not None else ""}'
        f"{_tokens(x, usage) if usage is not None else ''}}}"
    ).encode()


def _variant(name: str) -> str:
    return f',"variant":{_quoted(name)}'


def _tokens(x: Exchange, usage: Usage) -> str:
    """What a language model's work was, where the policy ``tokens`` has settled it; the model as it was asked for, or
    as the route names that which answered."""
    llm = x.body.llm if x.body is not None else None
    model = (x.served_by.route if x.served_by is not None else "") or (llm.model if llm is not None else "")
    return (
        f',"model":{_quoted(model[: MAX_TEXT + 1]) if model else "null"},"prompt_tokens":{usage.prompt_tokens},'
        f'"completion_tokens":{usage.completion_tokens},"cached_tokens":{usage.cached_tokens},'
        f'"tokens_estimated":{"true" if usage.estimated else "false"}'
    )


def _ms(begin: float, end: float) -> str:
    """Milliseconds to three places (a float's own digits cost five times as much)."""
    if not begin or end < begin:
        return "null"
    micros = int((end - begin) * 1e6)
    if micros < _NUM_SHORT:
        return _SHORT_MS[micros]
    return f"{micros // 1000}{_THOUSANDTHS[micros % 1000]}"


@lru_cache(maxsize=4096)  # what is remembered is small: the parser bounds the method, the gate the host
def _who(client: str, key_id: str | None, method: str, host: str) -> str:
    return (
        f'"client":{_json(client)},"key":{_json(key_id)},'
        f'"method":{_json(_text(method, MAX_METHOD))},"host":{_json(_text(host, MAX_TEXT))}'
    )


@lru_cache(maxsize=1024)
def _where(version: tuple[int, int], route: str | None, upstream: str, server: str) -> str:
    return (
        f'"version":"{version[0]}.{version[1]}","route":{_json(route)},'
        f'"upstream":{_json(upstream or None)},"server":{_json(server or None)}'
    )


@lru_cache(maxsize=1024)
def _how(attempts: int, ending: str, status: int, reason: str) -> str:
    return f'"attempts":{attempts},"status":{status},"ending":"{ending}","reason":{_json(reason or None)}'


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    return _json(_text(text, MAX_TEXT))


def _json(text: str | None) -> str:
    return orjson.dumps(text).decode()


def _text(text: str, limit: int) -> str:
    """At most ``limit`` characters of printable ASCII; anything else as a backslash escape."""
    if len(text) > limit:
        text = text[:limit] + "..."
    if text.isascii() and text.isprintable():
        return text
    raw = text.encode("utf-8", "surrogateescape")
    return "".join(chr(b) if 32 <= b < 127 else f"\\x{b:02x}" for b in raw)


def _target(target: str) -> str:
    """The target as received, cut, its secrets masked: parameters, and a password before the host. Quoted."""
    if _PLAIN_TARGET(target):
        return f'"{target}"'
    target = target[: MAX_TARGET + 1]
    if not target.startswith("/"):
        target = _USERINFO.sub(f"://{MASK}@", target, count=1)
    begin = _PARAMETERS.search(target)
    if begin is not None:
        target = target[: begin.end()] + mask_query(target[begin.end() :])
    return _json(_text(target, MAX_TARGET))


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
