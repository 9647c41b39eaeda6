"""Files of users: which hashes are read, what is refused and how it is told, and whose password it is."""

from __future__ import annotations

import shutil
import subprocess

import argon2
import bcrypt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.htpasswd import HtpasswdError, apr1, is_user, matches, parse_htpasswd

BCRYPT = bcrypt.hashpw(b"pass word", bcrypt.gensalt(4))
ARGON2 = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(b"pass word").encode()


@pytest.mark.parametrize(
    "kept", [BCRYPT, BCRYPT.replace(b"$2b$", b"$2y$"), ARGON2, b"$apr1$x$" + apr1(b"pass word", b"x")]
)
def test_the_password_and_no_other_matches(kept: bytes) -> None:
    assert parse_htpasswd(b"alice:" + kept) == {b"alice": kept}
    assert matches(kept, b"pass word")
    assert not matches(kept, b"pass wor")
    assert not matches(kept, b"")


def test_apr1_by_a_known_answer() -> None:
    assert apr1(b"pass word", b"12345678") == b"A3.HpL93VzCiJc8X48.fN0"


def test_bcrypt_reads_72_bytes_as_htpasswd_does() -> None:
    kept = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4))
    assert matches(kept, b"x" * 100)
    assert not matches(kept, b"x" * 71)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("salt", ["a", "12345678", "./Az09zZ"])
@pytest.mark.parametrize("password", ["a", "pass word", "x" * 15, "x" * 16, "x" * 17, "x" * 100, "pässwörd\u2026"])
def test_apr1_is_what_openssl_makes(password: str, salt: str) -> None:
    made = subprocess.run(
        ["openssl", "passwd", "-apr1", "-salt", salt, "-stdin"],
        input=password.encode(),
        capture_output=True,
        check=True,
    )
    assert made.stdout.strip() == f"$apr1${salt}$".encode() + apr1(password.encode(), salt.encode())


def test_comments_blank_lines_and_what_follows_a_second_colon_do_not_count() -> None:
    data = b"# users\r\n\r\nalice:" + BCRYPT + b":Alice of sales\r\n bob:" + ARGON2 + b"\n"
    assert list(parse_htpasswd(data)) == [b"alice", b"bob"]
    assert parse_htpasswd(b"") == {}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"alice", "expected USER:HASH"),
        (b":" + BCRYPT, "expected USER:HASH"),
        (b"al\tice:" + BCRYPT, "expected USER:HASH"),
        (b"al\xff:" + BCRYPT, "expected USER:HASH"),
        (b"alice:{SHA}qUqP5cyxm6YcTAhz05Hph5gvu9M=", "{SHA} is a bare SHA-1"),
        (b"alice:rqXexS6ZhobKA", "neither bcrypt"),
        (b"alice:secret", "neither bcrypt"),
        (b"alice:$1$x$JK4G4wQbK7bHwxpIeUOR0/", "neither bcrypt"),
        (b"alice:$2x$" + BCRYPT[4:], "neither bcrypt"),
        (b"alice:" + BCRYPT[:-1], "neither bcrypt"),
        (b"alice:" + BCRYPT.replace(b"$04$", b"$31$"), "a bcrypt cost of 31; expected 4 to 15"),
        (b"alice:" + ARGON2.replace(b"m=8,", b"m=99999999,"), "argon2 with m=99999999"),
        (b"alice:" + ARGON2.replace(b"p=1", b"p=2"), "8 or more for each lane"),
        (b"alice:" + ARGON2.replace(b"t=1", b"t=0"), "argon2 with m=8, t=0"),
    ],
)
def test_what_cannot_be_used_is_told_by_its_line_and_never_shown(line: bytes, says: str) -> None:
    with pytest.raises(HtpasswdError) as caught:
        parse_htpasswd(b"bob:" + ARGON2 + b"\n\n" + line)
    message = str(caught.value)
    assert message.startswith("line 3: ")
    assert says in message
    assert line.partition(b":")[2][:20].decode("latin-1") not in message or b":" not in line


def test_a_user_stands_once() -> None:
    with pytest.raises(HtpasswdError, match=r"^line 2: the user of line 1 again"):
        parse_htpasswd(b"a:" + BCRYPT + b"\na:" + ARGON2)


def test_a_file_that_is_too_large_is_not_read() -> None:
    with pytest.raises(HtpasswdError, match="larger than 8 MiB"):
        parse_htpasswd(b"#" * ((8 << 20) + 1))


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_whatever_the_file_holds_it_is_read_or_refused(data: bytes) -> None:
    try:
        users = parse_htpasswd(data)
    except HtpasswdError:
        return
    assert all(is_user(user) for user in users)
