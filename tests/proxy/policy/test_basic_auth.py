"""Users and passwords: who passes, as whom, what is hashed and how often, and that the password stays here."""

from __future__ import annotations

import asyncio
import base64
import json

import bcrypt
import pytest
from pydantic import ValidationError

from proxy.cells import Cells
from proxy.chain import Chain
from proxy.exchange import Exchange, Head
from proxy.headers import upstream_request_headers
from proxy.htpasswd import HtpasswdError, matches
from proxy.keys import hash_key
from proxy.password_checks import MAX_OPEN_PER_CLIENT, PasswordChecks
from proxy.policy import States
from tests.proxy.make import COMPLETE, Fields, answer, chain, exchange

SALT = bcrypt.gensalt(4)
USERS = b"alice:" + bcrypt.hashpw(b"secret", SALT) + b"\nj\xc3\xb6rg %:" + bcrypt.hashpw("pässword".encode(), SALT)
KEY = "hr_" + "k" * 43
KEYS = f"keys: [{{id: laptop, hash: '{hash_key(KEY)}'}}]".encode()


class Counting:
    """The judge, and the hashes and passwords that it was asked about."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bytes]] = []

    def __call__(self, kept: bytes, password: bytes) -> bool:
        self.asked.append((kept, password))
        return matches(kept, password)


@pytest.fixture
def judge() -> Counting:
    return Counting()


def states_with(judge: Counting) -> States:
    states = States()
    states.get(("basic_auth", "checks"), lambda: PasswordChecks(judge))
    return states


def guarded(judge: Counting, users: bytes = USERS, **policies: object) -> Chain:
    config = {"users": "users"}
    return chain({"basic_auth": config, **policies}, materials={"users": users, "k": KEYS}, states=states_with(judge))


def basic(user: str, password: str) -> tuple[str, str]:
    return "Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def ask(
    served: Chain, *fields: tuple[str, str], peer: str = "203.0.113.7", now: float = 0.0
) -> tuple[Head, Exchange]:
    x = exchange(headers=list(fields), peer=peer, now=now)
    work = served.gather(x)
    if work is not None:
        await work
    return answer(served, x, now), x


@pytest.mark.parametrize(
    ("user", "password", "identity"),
    [("alice", "secret", "alice"), ("j\u00f6rg %", "pässword", "j%C3%B6rg%20%25")],
)
async def test_the_password_passes_as_its_user_and_is_not_forwarded(
    judge: Counting, user: str, password: str, identity: str
) -> None:
    lines: list[bytes] = []
    served = chain({"basic_auth": {"users": "u"}}, materials={"u": USERS}, lines=lines)
    head, x = await ask(served, basic(user, password), ("Accept", "a"))
    assert head.status == 200
    assert x.key_id == identity
    forwarded = upstream_request_headers(x)
    assert (b"Accept", b"a") in forwarded
    assert not [name for name, _ in forwarded if name.lower() == b"authorization"]
    served.settle(x, COMPLETE, 0.0)
    assert json.loads(lines[0])["key"] == identity
    for trace in (password, base64.b64encode(f"{user}:{password}".encode()).decode()):
        assert trace.encode() not in lines[0]


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [("Authorization", "Basic")],
        [("Authorization", "Basic !!!")],
        [("Authorization", "Basic c2VjcmV0")],  # no colon
        [("Authorization", "Basic \xe9")],
        [("Authorization", f"Bearer {KEY}")],
        [("X-API-Key", KEY)],
        [basic("", "secret")],
        [basic("al\x00ice", "secret")],
        [basic("alice", "sec\x00ret")],
        [basic("alice", "x" * 1025)],
    ],
)
async def test_what_is_no_user_and_password_is_a_401_that_costs_no_hash(judge: Counting, fields: Fields) -> None:
    head, x = await ask(guarded(judge), *fields)
    assert (head.status, x.key_id) == (401, None)
    assert head.get(b"www-authenticate") == b'Basic realm="headrace", charset="UTF-8"'
    assert judge.asked == []


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "Secret"), ("alice", ""), ("Alice", "secret"), ("mallory", "secret")]
)
async def test_a_wrong_one_is_a_401_after_one_hash_whoever_it_is_about(
    judge: Counting, user: str, password: str
) -> None:
    served = guarded(judge)
    for _ in range(2):
        head, x = await ask(served, basic(user, password))
        assert (head.status, x.key_id) == (401, None)
    assert len(judge.asked) == 2
    assert len(set(judge.asked)) == 1, "an unknown user is always judged by the same hash"


async def test_nobody_passes_where_there_are_no_users(judge: Counting) -> None:
    head, _ = await ask(guarded(judge, b"# none yet\n"), basic("alice", "secret"))
    assert (head.status, judge.asked) == (401, [])


async def test_a_password_that_was_right_is_not_hashed_again_for_a_while(judge: Counting) -> None:
    served = guarded(judge)
    for now, hashed in ((0.0, 1), (1.0, 1), (60.0, 1), (60.1, 2), (61.0, 2)):
        head, x = await ask(served, basic("alice", "secret"), now=now)
        assert (head.status, x.key_id, len(judge.asked)) == (200, "alice", hashed)
    work = served.gather(exchange(headers=[basic("alice", "secret")], now=61.0))
    assert work is None, "there is nothing to await"


async def test_K02_a_changed_file_forgets_and_what_is_remembered_is_no_password(judge: Counting) -> None:
    states = states_with(judge)
    old = chain({"basic_auth": {"users": "u"}}, materials={"u": USERS}, states=states)
    assert (await ask(old, basic("alice", "secret")))[0].status == 200
    changed = b"alice:" + bcrypt.hashpw(b"other", SALT)
    new = chain({"basic_auth": {"users": "u"}}, materials={"u": changed}, states=States(states))
    assert (await ask(new, basic("alice", "secret")))[0].status == 401
    gone = chain({"basic_auth": {"users": "u"}}, materials={"u": USERS.partition(b"\n")[2]}, states=States(states))
    assert (await ask(gone, basic("alice", "secret")))[0].status == 401
    checks: PasswordChecks = states.get(("basic_auth", "checks"), lambda: pytest.fail("it was kept"))
    assert b"secret" not in repr(vars(checks)).encode()


async def test_many_requests_of_one_page_are_one_hash(judge: Counting) -> None:
    served = guarded(judge)
    heads = await asyncio.gather(*(ask(served, basic("alice", "secret")) for _ in range(30)))
    assert {head.status for head, _ in heads} == {200}
    assert len(judge.asked) == 1


async def test_who_guesses_is_stopped_and_nobody_else(judge: Counting) -> None:
    served = guarded(judge)
    for i in range(10):
        assert (await ask(served, basic("alice", str(i))))[0].status == 401
    head, _ = await ask(served, basic("alice", "secret"))
    assert (head.status, head.get(b"retry-after")) == (429, b"6")
    assert len(judge.asked) == 10
    assert (await ask(served, basic("alice", "secret"), peer="203.0.113.8"))[0].status == 200
    # What was right a moment ago is known without a hash, so the one next door is not locked out.
    assert (await ask(served, basic("alice", "secret")))[0].status == 200
    assert (await ask(served, basic("alice", "wrong"), now=6.0))[0].status == 401


async def test_what_finds_no_place_in_the_queue_is_told_to_come_back(judge: Counting) -> None:
    served = guarded(judge)
    works = []
    for i in range(MAX_OPEN_PER_CLIENT):
        x = exchange(headers=[basic("alice", str(i))])
        works.append(served.gather(x))
    head, _ = await ask(served, basic("alice", "secret"))
    assert (head.status, head.get(b"retry-after")) == (503, b"2")
    await asyncio.gather(*(work for work in works if work is not None))


async def test_a_denied_address_costs_no_hash(judge: Counting) -> None:
    served = guarded(judge, access={"allow": ["192.0.2.0/24"]})
    assert (await ask(served, basic("alice", "secret")))[0].status == 403
    assert judge.asked == []
    assert (await ask(served, basic("alice", "secret"), peer="192.0.2.1"))[0].status == 200


BOTH = {"auth": {"keys": "k"}}


@pytest.mark.parametrize(
    ("fields", "status", "identity", "hashes"),
    [
        ([basic("alice", "secret")], 200, "alice", 1),
        ([("Authorization", f"Bearer {KEY}")], 200, "laptop", 0),
        ([basic("alice", "wrong"), ("X-API-Key", KEY)], 200, "laptop", 0),
        ([basic("alice", "secret"), ("X-API-Key", "wrong")], 401, None, 0),
        ([("Authorization", "Bearer wrong")], 401, None, 0),
        ([basic("alice", "wrong")], 401, None, 1),
        ([], 401, None, 0),
    ],
)
async def test_beside_keys_either_suffices_and_a_key_decides_alone(
    judge: Counting, fields: Fields, status: int, identity: str | None, hashes: int
) -> None:
    head, x = await ask(guarded(judge, **BOTH), *fields)
    assert (head.status, x.key_id, len(judge.asked)) == (status, identity, hashes)
    assert {b"authorization", b"x-api-key"} <= x.drop


async def test_beside_keys_a_401_offers_both(judge: Counting) -> None:
    head, _ = await ask(guarded(judge, **BOTH))
    offered = [value.split()[0] for name, value in head.headers if name == b"WWW-Authenticate"]
    assert offered == [b"Basic", b"Bearer"]


async def test_what_passwords_were_worth_is_counted(judge: Counting) -> None:
    cells = Cells()
    table = {"basic_auth": {"users": "u", "wrong": "1/min"}, **BOTH}
    served = chain(table, materials={"u": USERS, "k": KEYS}, states=states_with(judge), cells=cells)
    key = ("X-API-Key", KEY)
    for fields in ([basic("alice", "secret")], [basic("alice", "x")], [basic("alice", "x")], [], [], [key]):
        await ask(served, *fields)
    counted = {
        outcome: cells.counter("headrace_basic_auth_total", "", {"route": "r", "outcome": outcome}).value
        for outcome in ("missing", "right", "wrong", "busy", "throttled")
    }
    assert counted == {"missing": 2, "right": 1, "wrong": 1, "busy": 0, "throttled": 1}


def test_a_reload_reads_an_unchanged_file_of_users_once(monkeypatch: pytest.MonkeyPatch) -> None:
    states = States()
    first = chain({"basic_auth": {"users": "u"}}, materials={"u": USERS}, states=states)
    monkeypatch.setattr("proxy.policy.basic_auth.parse_htpasswd", lambda _data: pytest.fail("read again"))
    second = chain({"basic_auth": {"users": "v"}}, materials={"v": bytes(bytearray(USERS))}, states=States(states))
    assert [len(each.policies) for each in (first, second)] == [4, 4]


def test_a_file_that_cannot_be_used_is_named() -> None:
    with pytest.raises(HtpasswdError, match=r"^users: line 1: \{SHA\} is a bare SHA-1"):
        chain({"basic_auth": {"users": "users"}}, materials={"users": b"a:{SHA}x"})


@pytest.mark.parametrize("realm", ["", 'a"b', "a\\b", "a\nb", "\u00e9", "x" * 101])
def test_a_realm_fits_into_quotes(realm: str) -> None:
    with pytest.raises(ValidationError):
        chain({"basic_auth": {"users": "users", "realm": realm}}, materials={"users": b""})
