"""Every policy as an operator would write it, on routes of its own: alone, all together, and all but one.

Owns the configuration that bench/policy.py measures and the fields of its requests. What a policy refuses is far above
what the load reaches, so that all of them let every request pass.
"""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import bcrypt

from bench.chats import chat
from proxy.keys import hash_key
from proxy.policy import POLICIES

PASSWORD = b"water under the bridge"
KEY = "hr_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
PATH = "/v1/chat/completions"
ORIGIN = "https://app.example.com"
_MANY = 1_000_000_000  # more than is ever reached

#: Tables of policies by name. What is asked without an answer of its own is in ``_BARE``.
TABLES: dict[str, Any] = {
    "access_log": {"enabled": True},
    "request_id": {"accept": True},
    "headers": {
        "request": {"set": {"X-Edge": "headrace"}, "remove": ["X-Internal-Debug"]},
        "response": {"set": {"Strict-Transport-Security": "max-age=31536000"}, "remove": ["Server"]},
        "forward": ["x-forwarded", "forwarded"],
    },
    "access": {"allow": ["127.0.0.0/8", "10.0.0.0/8", "2001:db8::/32"], "deny": ["10.66.0.0/16"]},
    "cors": {"origins": [ORIGIN, "https://*.example.org"], "expose": ["X-Request-Id"]},
    "auth": {"keys": "keys.yaml"},
    "basic_auth": {"users": "htpasswd"},
    "priority": {"longest": "5m"},
    "size_limit": {"body": "1MiB"},
    "in_flight": {"max": 4096},
    "rate_limit": ["per-client", "per-route"],
    "idempotency": {"ttl": "1m"},
    "variants": {
        "of": {
            "small": {"share": "20%", "model": "small"},
            "short": {"share": "20%", "headers": {"set": {"X-Trial": "1"}}},
        },
        "user": {"header": "X-User"},
    },
    "context_guard": {"context": 2048, "reserve": "15%"},
    "trim": {"headers": {"drop": ["X-Internal-*"]}, "cookies": {"drop": ["_ga*", "_fbp"]}},
    "tokens": {},
}
#: The relay without what can be left out: three policies are on by themselves.
BARE: dict[str, Any] = {"access_log": {"enabled": False}, "headers": {"forward": []}}
LIMITS: dict[str, Any] = {
    "per-client": {"key": "client", "requests": f"{_MANY}/s", "headers": ["ietf", "x-ratelimit", "openai"]},
    "per-route": {"key": ["client", "route"], "requests": f"{_MANY}/min", "algorithm": "sliding"},
    "all-of-it": {"key": "all", "requests": f"{_MANY}/s", "tokens": f"{_MANY}/s"},
}
BUDGETS: dict[str, Any] = {
    "monthly": {"key": "api_key", "tokens": 60 * _MANY, "requests": 60 * _MANY},
    "daily": {"key": "team", "tokens": 60 * _MANY, "per": "day", "window": "rolling"},
}
#: Not among those that are measured, and why.
LEFT_OUT = {"shed": "it looks at the local engine alone, which is not here"}


def measured() -> list[str]:
    """The policies that are measured, in the order of the chain: all but those named by ``missing``."""
    return [module.NAME for module in POLICIES if module.NAME in TABLES]


def missing() -> list[str]:
    """One sentence for each policy that is not measured."""
    names = [module.NAME for module in POLICIES if module.NAME not in TABLES]
    return [f"{name} is not measured: {LEFT_OUT.get(name, 'it has no table in bench/policies.py')}" for name in names]


def routes() -> dict[str, dict[str, Any]]:
    """The policies of each route by its prefix: ``bare``, ``only-NAME``, ``all`` and ``without-NAME``."""
    names = measured()
    everything = {name: TABLES[name] for name in names}
    found = {"bare": BARE}
    found.update({f"only-{name}": {**BARE, name: TABLES[name]} for name in names})
    found["all"] = _together(everything)
    found.update({f"without-{name}": _together(_without(everything, name)) for name in names})
    return found


def _without(everything: dict[str, Any], name: str) -> dict[str, Any]:
    left = {other: table for other, table in everything.items() if other != name}
    return {**left, name: BARE[name]} if name in BARE else left


def _together(policies: dict[str, Any]) -> dict[str, Any]:
    """With the limit that asks for two policies, where both are."""
    if "rate_limit" in policies and "tokens" in policies:
        return {**policies, "rate_limit": [*policies["rate_limit"], "all-of-it"]}
    return policies


def write(directory: Path, port: int, origin_port: int) -> Path:
    """Writes the configuration and the files that it names; the main file's path. It is JSON, which YAML contains."""
    keys = {"id": "bench", "hash": hash_key(KEY), "tenant": "mill", "team": "wheel", "allow": {"priority": True}}
    (directory / "keys.yaml").write_text(json.dumps({"keys": [keys]}))
    kept = bcrypt.hashpw(PASSWORD, bcrypt.gensalt(4)).decode()
    (directory / "htpasswd").write_text(f"miller:{kept}\n")
    document = {
        "runtime_dir": str(directory),
        "admin": {"address": None},
        "workers": 1,
        "log": {"access": str(directory / "access.log")},
        "listeners": [{"address": f"127.0.0.1:{port}"}],
        "upstreams": {"origin": {"servers": [f"http://127.0.0.1:{origin_port}"], "kind": "openai"}},
        "limits": LIMITS,
        "budgets": BUDGETS,
        "usage": {"path": str(directory / "usage.db")},
        "routes": [
            {"match": {"path": f"/{prefix}/*"}, "to": "origin", "policies": policies}
            for prefix, policies in routes().items()
        ],
    }
    file = directory / "headrace.yaml"
    file.write_text(json.dumps(document))
    return file


def request(prefix: str, number: int, *, stream: bool = False, num_bytes: int = 2048, max_tokens: int = 256) -> bytes:
    """A whole chat request to a route, as a program with the official client sends it from a browser's page."""
    body = chat(number, num_bytes, stream=stream, max_tokens=max_tokens)
    credentials = f"Bearer {KEY}"
    if prefix in ("only-basic_auth", "without-auth"):
        credentials = f"Basic {b64encode(b'miller:' + PASSWORD).decode()}"
    lines = (
        f"POST /{prefix}{PATH} HTTP/1.1",
        "Host: ai.example.com",
        f"Authorization: {credentials}",
        "Accept: application/json",
        "Content-Type: application/json",
        "User-Agent: OpenAI/Python 2.3.0",
        "X-Stainless-Lang: python",
        "X-Stainless-Read-Timeout: 600",
        "X-Priority: high",
        f"X-User: user-{number % 50}",
        f"Origin: {ORIGIN}",
        "Cookie: session=0123456789abcdef; _ga=GA1.2.1234567890.1234567890; theme=dark",
        f"Idempotency-Key: bench-{prefix}-{number}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
