"""Users and the hashes of their passwords, as `htpasswd` writes them: how the file is read, how a password is judged.

Pure, and slow on purpose: ``matches`` takes what the hash was made to take, up to seconds, so it is never called on the
event loop (``proxy.password_checks``). bcrypt and argon2 are their libraries'; apr1 is Apache's variant of md5-crypt,
old and weak but what ``htpasswd`` wrote by default for twenty years. Anything weaker is refused when the file is read:
{SHA} is one unsalted SHA-1, DES crypt looks at eight characters. The file::

    # a comment
    alice:$2y$12$...
    bob:$argon2id$v=19$m=65536,t=3,p=4$...
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

import argon2
import bcrypt

MAX_FILE_BYTES = 8 << 20
#: Longer ones are wrong without being looked at.
MAX_PASSWORD_BYTES = 1024
MAX_BCRYPT_COST = 15  # 2 to the power of it rounds: three seconds
MAX_ARGON2_KIB = 256 << 10
MAX_ARGON2_PASSES = 64
MAX_ARGON2_LANES = 16

_USER = re.compile(rb"[^\x00-\x1f:\x7f]{1,255}")
_BCRYPT = re.compile(
    rb"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}"
)  # 16 bytes of salt: two bits are left
_ARGON2 = re.compile(
    rb"\$argon2(?:id|i|d)\$v=19\$m=(\d{1,9}),t=(\d{1,9}),p=(\d{1,9})\$[A-Za-z0-9+/]{11,86}\$[A-Za-z0-9+/]{16,86}"
)
_APR1 = re.compile(rb"\$apr1\$([./A-Za-z0-9]{1,8})\$([./A-Za-z0-9]{22})")
#: bcrypt's own bound: what lies beyond was not part of any hash, htpasswd cut it off without a word.
_BCRYPT_BYTES = 72
_ALPHABET = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_APR1_GROUPS = ((0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5))
_HASHER = argon2.PasswordHasher()


class HtpasswdError(ValueError):
    """The file cannot be used; the message says in which line and why, and never shows a hash."""


def parse_htpasswd(data: bytes) -> Mapping[bytes, bytes]:
    """user -> hash, in the file's order; what stands behind a second colon is a comment. Raises HtpasswdError."""
    if len(data) > MAX_FILE_BYTES:
        raise HtpasswdError(f"the file of users is larger than {MAX_FILE_BYTES >> 20} MiB")
    users: dict[bytes, bytes] = {}
    lines: dict[bytes, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        line = line.strip()
        if not line or line.startswith(b"#"):
            continue
        user, colon, rest = line.partition(b":")
        if not colon or not is_user(user):
            raise HtpasswdError(f"line {number}: expected USER:HASH, as `htpasswd -B FILE USER` writes it")
        if user in users:
            raise HtpasswdError(f"line {number}: the user of line {lines[user]} again; which password is meant?")
        kept = rest.partition(b":")[0]
        why = _why_not(kept)
        if why is not None:
            raise HtpasswdError(f"line {number}: {why}")
        users[user] = kept
        lines[user] = number
    return users


def is_user(name: bytes) -> bool:
    """Whether it can be a user's name (RFC 7617 §2): no colon, no control characters, UTF-8."""
    if not _USER.fullmatch(name):
        return False
    if name.isascii():
        return True
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def matches(kept: bytes, password: bytes) -> bool:
    """Whether the password is the one of a hash that ``parse_htpasswd`` let pass. Takes its time."""
    if kept.startswith(b"$2"):
        return bcrypt.checkpw(password[:_BCRYPT_BYTES], kept)
    if kept.startswith(b"$argon2"):
        try:
            return _HASHER.verify(kept, password)
        except argon2.exceptions.VerificationError:
            return False
    salt, digest = kept[6:].split(b"$")
    return hmac.compare_digest(apr1(password, salt), digest)


def apr1(password: bytes, salt: bytes) -> bytes:
    """The 22 characters of Apache's md5-crypt, without its prefix and salt (apr_md5_encode in APR)."""
    # MD5 is what the format is made of; what makes it bearable are its thousand rounds.
    inner = hashlib.md5(password + salt + password, usedforsecurity=False).digest()
    length = len(password)
    first = password + b"$apr1$" + salt + (inner * (length // 16 + 1))[:length]
    while length:
        first += b"\0" if length & 1 else password[:1]
        length >>= 1
    digest = hashlib.md5(first, usedforsecurity=False).digest()
    for turn in range(1000):
        odd = turn & 1
        message = password if odd else digest
        if turn % 3:
            message += salt
        if turn % 7:
            message += password
        message += digest if odd else password
        digest = hashlib.md5(message, usedforsecurity=False).digest()
    text = bytearray()
    for high, middle, low in _APR1_GROUPS:
        text += _characters(digest[high] << 16 | digest[middle] << 8 | digest[low], 4)
    return bytes(text + _characters(digest[11], 2))


def _characters(value: int, count: int) -> bytes:
    """The lowest six bits first, as crypt writes numbers."""
    return bytes(_ALPHABET[value >> 6 * i & 63] for i in range(count))


def _why_not(kept: bytes) -> str | None:
    """What is wrong with a hash; None: nothing."""
    if found := _BCRYPT.fullmatch(kept):
        cost = int(found[1])
        if 4 <= cost <= MAX_BCRYPT_COST:
            return None
        return f"a bcrypt cost of {cost}; expected 4 to {MAX_BCRYPT_COST}, which takes seconds already"
    if found := _ARGON2.fullmatch(kept):
        memory_kib, passes, lanes = (int(text) for text in found.groups())
        if memory_kib > MAX_ARGON2_KIB or not 0 < passes <= MAX_ARGON2_PASSES or not 0 < lanes <= MAX_ARGON2_LANES:
            return (
                f"argon2 with m={memory_kib}, t={passes}, p={lanes}; expected m up to {MAX_ARGON2_KIB}, t up to "
                f"{MAX_ARGON2_PASSES} and p up to {MAX_ARGON2_LANES}, so that checks stay bounded"
            )
        return None if memory_kib >= 8 * lanes else f"argon2 with m={memory_kib}; expected 8 or more for each lane"
    if _APR1.fullmatch(kept):
        return None
    advice = "make it again with `htpasswd -B FILE USER` (bcrypt)"
    if kept.startswith(b"{SHA}"):
        return f"{{SHA}} is a bare SHA-1, which a stolen file gives away in seconds; {advice}"
    return f"a hash that is neither bcrypt ($2y$), argon2 ($argon2id$) nor apr1 ($apr1$); {advice}"
