"""The file of API keys: only hashes are kept, and no change loses another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from appliance.keys import add_key, read_keys, revoke_key
from proxy.keys import Allowed, KeysError, hash_key

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
LATER = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_key_is_returned_once_and_kept_as_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    key_id, key = add_key(file, "laptop", NOW)
    assert key_id == "laptop"
    assert len(key) == 46
    assert key.encode() not in file.read_bytes()
    [entry] = read_keys(file)
    assert (entry.id, entry.hash, entry.created, entry.revoked) == (
        "laptop",
        hash_key(key),
        "2026-01-31T12:00:00Z",
        None,
    )
    assert file.stat().st_mode & 0o777 == 0o600


def test_whose_a_key_is_and_what_it_may_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    allow = Allowed(priority=True, upstreams=("cloud",), models=("qwen*",))
    add_key(file, "a", NOW, tenant="acme", team="search", allow=allow)
    add_key(file, "b", NOW, allow=Allowed(models=()))
    revoke_key(file, "a", LATER)
    one, two = read_keys(file)
    assert (one.tenant, one.team, one.allow) == ("acme", "search", allow)
    assert (two.tenant, two.allow) == ("", Allowed(models=()))
    with pytest.raises(KeysError):
        add_key(file, "c", NOW, tenant='x"')
    with pytest.raises(KeysError, match="a team is one of a tenant's"):
        add_key(file, "c", NOW, team="search")
    with pytest.raises(KeysError):
        add_key(file, "c", NOW, allow=Allowed(models=("*a",)))
    assert len(read_keys(file)) == 2


def test_amounts_of_a_keys_own_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    add_key(file, "a", NOW, budgets=(("daily", "tokens", 5), ("daily", "requests", 6), ("monthly", "tokens", 7)))
    [entry] = read_keys(file)
    assert entry.budgets == (("daily", "tokens", 5), ("daily", "requests", 6), ("monthly", "tokens", 7))
    assert entry.budget("daily", "requests") == 6
    assert entry.budget("monthly", "requests") is None
    with pytest.raises(KeysError, match="whole numbers from 1 to"):
        add_key(file, "b", NOW, budgets=(("daily", "tokens", 0),))


def test_ids_are_given_where_none_is_chosen(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    add_key(file, "key-2", NOW)
    assert [add_key(file, None, NOW)[0] for _ in range(3)] == ["key-1", "key-3", "key-4"]


def test_a_revoked_key_stays_listed_with_its_first_date(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    add_key(file, "a", NOW)
    add_key(file, "b", NOW)
    assert revoke_key(file, "a", LATER).revoked == "2026-03-01T00:00:00Z"
    assert revoke_key(file, "a", NOW).revoked == "2026-03-01T00:00:00Z"
    assert [(entry.id, entry.revoked) for entry in read_keys(file)] == [("a", "2026-03-01T00:00:00Z"), ("b", None)]


_TWO_IN_ONE = f'a"\n    hash: sha256:{"0" * 64}\n  - id: "b'


@pytest.mark.parametrize("key_id", [" ", "a b", "a" * 65, 'x"\n    hash: y', _TWO_IN_ONE])
def test_what_is_no_id_is_refused_and_nothing_is_written(tmp_path: Path, key_id: str) -> None:
    with pytest.raises(KeysError):
        add_key(tmp_path / "keys.yaml", key_id, NOW)
    assert not (tmp_path / "keys.yaml").exists()


def test_a_taken_or_an_unknown_id_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    add_key(file, "a", NOW)
    before = file.read_bytes()
    with pytest.raises(KeysError, match="there is a key with the id a already"):
        add_key(file, "a", NOW)
    with pytest.raises(KeysError, match="there is no key with the id b"):
        revoke_key(file, "b", NOW)
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", ["keys: [", "keys: 3", "- a", "\0"])
def test_a_damaged_file_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(content)
    with pytest.raises(KeysError):
        add_key(file, "a", NOW)
    assert file.read_text() == content


def test_two_at_once_lose_no_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: add_key(file, None, NOW), range(16)))
    assert {entry.hash for entry in read_keys(file)} == {hash_key(key) for _, key in made}
