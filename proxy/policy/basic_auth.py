"""Users and passwords: who a request comes from, by ``Authorization: Basic`` (RFC 7617) and a file of htpasswd's. Pure.

A slow hash is judged off the event loop while facts are gathered, before any policy is asked; ``admit`` only reads the
verdict. What would be refused anyway is not hashed: a denied address, or an address that guessed wrong too often. Who
is unknown is judged like somebody who is known, against a hash of the same file, so that the time tells no names.
Beside ``auth`` either suffices: a key that is presented decides alone. The password is never logged and never
forwarded; the user's name is the request's identity, as a key's id is.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from collections.abc import Awaitable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from multidict import istr

from proxy import config_policies
from proxy.cells import Counter
from proxy.chain import Policy
from proxy.client_address import counted_as
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Reply
from proxy.guesses import Guesses
from proxy.htpasswd import MAX_PASSWORD_BYTES, HtpasswdError, is_user, matches, parse_htpasswd
from proxy.password_checks import PasswordChecks
from proxy.policy import access, auth
from proxy.policy.env import PolicyEnv

NAME: Final = "basic_auth"
ALWAYS: Final = False

BUSY_RETRY_S: Final = 2.0
_AUTHORIZATION: Final = istr("Authorization")
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9._@+-]+")

#: Verdicts.
_NO_USER: Final = 0
_RIGHT: Final = 1
_WRONG: Final = 2
_BUSY: Final = 3
_GUESSING: Final = 4


Config = config_policies.BasicAuth


class _Credentials(NamedTuple):
    user: bytes
    password: bytes


def build(config: Config, env: PolicyEnv) -> BasicAuth:
    """The policy of one route. Raises ValueError if the file of users cannot be used."""
    data = env.materials[config.users]
    try:
        # A reload that leaves the file as it was reads none of it again: there may be a hundred thousand users.
        users = env.states.get((NAME, "users", hashlib.sha256(data).digest()), lambda: parse_htpasswd(data))
    except HtpasswdError as error:
        raise HtpasswdError(f"{config.users}: {error}") from None
    checks = env.states.get((NAME, "checks"), lambda: PasswordChecks(matches))
    guesses = env.states.get((NAME, "guesses", config.wrong), lambda: Guesses(*config.wrong))
    beside_auth = getattr(env.beside, auth.NAME, None) is not None
    gate = getattr(env.beside, access.NAME, None)
    outcomes = tuple(
        env.cells.counter(
            "headrace_basic_auth_total",
            "Requests that a password was asked of, by what it was worth.",
            {"route": env.route, "outcome": outcome},
        )
        for outcome in ("missing", "right", "wrong", "busy", "throttled")
    )
    return BasicAuth(
        config, users, checks, guesses, outcomes, beside_auth, access.Access(gate) if gate is not None else None
    )


class BasicAuth(Policy):
    """guesses: wrong passwords by client. outcomes: counts, by verdict. keys_too: a key suffices, too. gate: whom the
    route lets come near at all."""

    def __init__(
        self,
        config: Config,
        users: Mapping[bytes, bytes],
        checks: PasswordChecks,
        guesses: Guesses,
        outcomes: tuple[Counter, ...],
        keys_too: bool,
        gate: access.Access | None,
    ) -> None:
        self._users = users
        self._hashes = tuple(users.values())
        self._remember_s = config.remember
        self._checks = checks
        self._guesses = guesses
        self._outcomes = outcomes
        self._keys_too = keys_too
        self._gate = gate
        self._salt = b"\0".join(self._hashes)[:64]  # only decides which hash stands in for an unknown user's
        self._challenge = _challenge(config.realm, keys_too)

    def gather(self, x: Exchange) -> Awaitable[None] | None:
        """Judge the credentials: at once when they are remembered or not worth a hash, else in a thread."""
        if (self._keys_too and auth.presented(x) is not None) or (self._gate is not None and not self._gate.passes(x)):
            return None
        credentials = _presented(x)
        if credentials is None:
            return None
        if not self._hashes:
            x.scratch[NAME] = _WRONG
            return None
        user, password = credentials
        kept = self._users.get(user)
        now = x.started_at
        digest = self._checks.digest(user, kept or b"", password)
        if kept is not None and self._checks.remembers(digest, now - self._remember_s):
            self._passes(x, user)
            return None
        client = counted_as(x.client)
        if client and self._guesses.wait_s(client, now):
            x.scratch[NAME] = _GUESSING
            return None
        right = self._checks.begin(digest, client, kept or self._stand_in(user), password)
        if right is None:
            x.scratch[NAME] = _BUSY
            return None
        return self._judge(x, right, user if kept is not None else None, digest)

    async def _judge(self, x: Exchange, right: Awaitable[bool], user: bytes | None, digest: bytes) -> None:
        if await right and user is not None:
            self._checks.remember(digest, x.started_at)
            self._passes(x, user)
        else:
            x.scratch[NAME] = _WRONG
            self._guesses.wrong(counted_as(x.client), x.started_at)

    def _passes(self, x: Exchange, user: bytes) -> None:
        x.scratch[NAME] = _RIGHT
        x.key_id = _identity(user)

    def _stand_in(self, user: bytes) -> bytes:
        """The hash that an unknown user is judged by: always the same one, as if it were in the file."""
        drawn = hmac.digest(self._salt, user, "sha256")
        return self._hashes[int.from_bytes(drawn[:8], "big") % len(self._hashes)]

    def admit(self, x: Exchange, now: float) -> Reply | None:
        x.drop.add(b"authorization")
        verdict: int = x.scratch.get(NAME, _NO_USER)
        if self._keys_too and verdict != _RIGHT and x.key_id is not None:
            return None
        self._outcomes[verdict].add()
        if verdict == _RIGHT:
            return None
        if verdict == _BUSY:
            message = "Too many passwords wait to be checked. Try again shortly."
            return refuse(x, Kind.CAPACITY, message, retry_after_s=BUSY_RETRY_S, violated=(NAME,))
        if verdict == _GUESSING:
            wait_s = self._guesses.wait_s(counted_as(x.client), now)
            message = "This address has sent too many wrong passwords. Check the password, and try again later."
            return refuse(x, Kind.RATE_LIMITED, message, retry_after_s=wait_s, violated=(NAME,))
        if verdict == _WRONG:
            message = "The user or the password is wrong. Check both, or ask the operator for access."
        elif self._keys_too:
            message = "An API key, or a user and a password, is needed. Send one as Authorization: Bearer or Basic."
        else:
            message = "A user and a password are needed. Send them as Authorization: Basic."
        return refuse(x, Kind.UNAUTHORIZED, message, headers=self._challenge, code="invalid_credentials")


def _challenge(realm: str, keys_too: bool) -> tuple[tuple[bytes, bytes], ...]:
    basic = (b"WWW-Authenticate", f'Basic realm="{realm}", charset="UTF-8"'.encode())
    return (basic, *auth.CHALLENGE) if keys_too else (basic,)


def _presented(x: Exchange) -> _Credentials | None:
    scheme, _, encoded = x.fields.get(_AUTHORIZATION, "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = binascii.a2b_base64(encoded.strip(), strict_mode=True).partition(b":")
    except ValueError:  # binascii.Error, or characters beyond ASCII
        return None
    if not colon or not is_user(user) or len(password) > MAX_PASSWORD_BYTES or b"\0" in password:
        return None
    return _Credentials(user, password)


@lru_cache(maxsize=4096)  # only of users who are known
def _identity(user: bytes) -> str:
    """The user's name as logs and limits show it: whatever is no plain character is percent-encoded."""
    name = user.decode()
    if _PLAIN_ID.fullmatch(name):
        return name
    return "".join(c if _PLAIN_ID.fullmatch(c) else "".join(f"%{byte:02X}" for byte in c.encode()) for c in name)
