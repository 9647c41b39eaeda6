"""Keys: who passes, as whom, and that the key stays here."""

from __future__ import annotations

import json

import pytest

from proxy.chain import Chain
from proxy.headers import upstream_request_headers
from proxy.keys import KeysError, hash_key
from tests.proxy.make import COMPLETE, Fields, answer, chain, exchange

KEY, REVOKED = "hr_" + "k" * 43, "hr_" + "r" * 43
KEYS = f"""
keys:
  - {{id: laptop, hash: "{hash_key(KEY)}", created: 2026-01-01T00:00:00Z}}
  - {{id: lost, hash: "{hash_key(REVOKED)}", created: 2026-01-01T00:00:00Z, revoked: 2026-02-01T00:00:00Z}}
""".encode()


def guarded(lines: list[bytes] | None = None) -> Chain:
    return chain({"auth": {"keys": "keys.yaml"}}, materials={"keys.yaml": KEYS}, lines=lines)


@pytest.mark.parametrize(
    "fields",
    [
        [("Authorization", f"Bearer {KEY}")],
        [("authorization", f"bearer   {KEY} ")],
        [("X-API-Key", KEY)],
        [("Authorization", "Basic dTpw"), ("X-API-Key", KEY)],
        [("Authorization", "Bearer "), ("X-API-Key", KEY)],
    ],
)
def test_a_valid_key_passes_as_its_id_and_is_not_forwarded(fields: Fields) -> None:
    x = exchange(headers=[*fields, ("Accept", "a")])
    lines: list[bytes] = []
    served = guarded(lines)
    assert answer(served, x).status == 200
    assert x.key_id == "laptop"
    forwarded = upstream_request_headers(x)
    assert (b"Accept", b"a") in forwarded
    assert not [name for name, _ in forwarded if name.lower() in (b"authorization", b"x-api-key")]
    served.settle(x, COMPLETE, 0.0)
    assert KEY not in lines[0].decode()
    assert json.loads(lines[0])["key"] == "laptop"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([], b""),
        ([("Authorization", "Basic dTpw")], b""),
        ([("Authorization", "Bearer")], b""),
        ([("X-API-Key", " ")], b""),
        ([("Authorization", f"Bearer {REVOKED}")], b"invalid_token"),
        ([("Authorization", f"Bearer {KEY}x")], b"invalid_token"),
        ([("Authorization", f"Bearer {hash_key(KEY)}")], b"invalid_token"),
        ([("Authorization", "Bearer " + "x" * 100_000)], b"invalid_token"),
        ([("Authorization", "Bearer \xff\xfe")], b"invalid_token"),
    ],
)
def test_anything_else_is_a_401_with_a_challenge_and_no_echo(fields: Fields, error: bytes) -> None:
    x = exchange(headers=fields)
    served = guarded()
    reply = served.admit(x, 0.0)
    assert reply is not None
    assert reply.status == 401
    assert dict(reply.headers)[b"WWW-Authenticate"].startswith(b"Bearer ")
    assert error in dict(reply.headers)[b"WWW-Authenticate"]
    assert x.key_id is None
    assert REVOKED.encode() not in reply.body


def test_a_keys_file_that_cannot_be_used_is_named() -> None:
    with pytest.raises(KeysError, match=r"^keys.yaml: `keys` is not a list$"):
        chain({"auth": {"keys": "keys.yaml"}}, materials={"keys.yaml": b"keys: 1"})
