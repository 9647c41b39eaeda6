"""API keys: who a request comes from, by ``Authorization: Bearer`` or ``X-API-Key``. Pure.

Beside ``basic_auth`` either suffices: a request without a key is left to it; a key that is presented decides alone.

Keys are compared by their SHA-256 in constant time (``proxy.keys`` says why a fast hash is right). The key itself is
never logged and never forwarded: an upstream that wants one gets its own.
"""

from __future__ import annotations

import hmac
from typing import Final

from proxy import config_policies
from proxy.chain import Policy
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Reply
from proxy.keys import KeyEntry, KeysError, hash_key, parse_keys
from proxy.policy.env import PolicyEnv

NAME: Final = "auth"
ALWAYS: Final = False

MAX_KEY_CHARACTERS: Final = 512
_DROP: Final = frozenset({b"authorization", b"x-api-key"})
CHALLENGE: Final = ((b"WWW-Authenticate", b'Bearer realm="headrace"'),)
_CHALLENGE_INVALID: Final = ((b"WWW-Authenticate", b'Bearer realm="headrace", error="invalid_token"'),)


Config = config_policies.Auth


def build(config: Config, env: PolicyEnv) -> Auth:
    """The policy of one route. Raises ValueError if the keys file cannot be used."""
    try:
        entries = parse_keys(env.materials[config.keys])
    except KeysError as error:
        raise KeysError(f"{config.keys}: {error}") from None
    return Auth(entries, users_too=getattr(env.beside, "basic_auth", None) is not None)


class Auth(Policy):
    """users_too: a user and a password suffice, too."""

    def __init__(self, entries: tuple[KeyEntry, ...], users_too: bool = False) -> None:
        self._entries = {entry.hash: entry for entry in entries}
        self._users_too = users_too

    def admit(self, x: Exchange, now: float) -> Reply | None:
        x.drop |= _DROP
        key = presented(x)
        if key is None:
            if self._users_too:
                return None
            message = "An API key is needed. Send it as Authorization: Bearer KEY or as X-API-Key: KEY."
            return refuse(x, Kind.UNAUTHORIZED, message, headers=CHALLENGE)
        if len(key) <= MAX_KEY_CHARACTERS:
            digest = hash_key(key)
            entry = self._entries.get(digest)
            if entry is not None and hmac.compare_digest(entry.hash, digest) and entry.revoked is None:
                x.key_id = entry.id
                x.key = entry
                return None
        message = "The API key is not valid here. Check it, or ask the operator for a new one."
        return refuse(x, Kind.UNAUTHORIZED, message, headers=_CHALLENGE_INVALID)


def presented(x: Exchange) -> str | None:
    """The key that a request shows, whatever it is worth."""
    scheme, _, credentials = x.fields.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return x.fields.get("X-API-Key", "").strip() or None
