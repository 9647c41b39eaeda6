"""The keys file: what is read, and what is refused with its place."""

from __future__ import annotations

import pytest

from proxy.keys import NOTHING_MORE, Allowed, KeyEntry, KeysError, hash_key, parse_keys

HASH = hash_key("hr_one")
OTHER = hash_key("hr_two")


def test_a_key_is_kept_as_its_sha256() -> None:
    assert hash_key("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_entries_in_order_with_instants_quoted_or_not() -> None:
    text = f"""
keys:
  - {{id: laptop, hash: "{HASH}", created: 2026-01-31T12:00:00Z}}
  - {{id: ci@build, hash: "{OTHER}", created: "2026-01-31", revoked: 2026-02-01T00:00:00Z}}
"""
    assert parse_keys(text.encode()) == (
        KeyEntry("laptop", HASH, "2026-01-31T12:00:00+00:00"),
        KeyEntry("ci@build", OTHER, "2026-01-31", "2026-02-01T00:00:00+00:00"),
    )


def test_whose_a_key_is_and_what_it_may() -> None:
    text = f"""
keys:
  - {{id: a, hash: "{HASH}", tenant: acme, team: search, allow: {{priority: true, models: [small, "qwen*"]}}}}
  - {{id: b, hash: "{OTHER}", allow: {{upstreams: [cloud], context: true, models: []}}}}
"""
    one, two = parse_keys(text.encode())
    assert (one.tenant, one.team, one.allow) == ("acme", "search", Allowed(priority=True, models=("small", "qwen*")))
    assert [one.allow.model(name) for name in ("small", "smaller", "qwen2", "")] == [True, False, True, False]
    assert (two.tenant, two.allow) == ("", Allowed(context=True, upstreams=("cloud",), models=()))
    assert not two.allow.model("small")
    assert NOTHING_MORE.model("any")


@pytest.mark.parametrize("text", ["", "# none yet\n", "keys:\n", "keys: []\n"])
def test_a_file_without_keys_holds_none(text: str) -> None:
    assert parse_keys(text.encode()) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys: [a", r"line \d: not YAML"),
        ("keys: []\nkeys: []\n", r"line 2: not YAML: keys is there twice"),
        ("- a\n", r"expected one table with the key `keys`"),
        ("keys: []\nother: 1\n", r"expected one table with the key `keys`"),
        ("keys: laptop\n", r"`keys` is not a list"),
        ("keys: [laptop]\n", r"keys\[0\]: expected a table"),
        (f"keys: [{{id: a, hash: '{HASH}', key: hr_secret}}]\n", r"keys\[0\]: expected a table"),
        (f"keys: [{{id: 'a b', hash: '{HASH}'}}]\n", r"keys\[0\].id: expected"),
        (f"keys: [{{id: 7, hash: '{HASH}'}}]\n", r"keys\[0\].id: expected"),
        ("keys: [{id: a, hash: hr_secret}]\n", r"keys\[0\].hash: expected sha256:"),
        (f"keys: [{{id: a, hash: '{HASH}', budgets: [5]}}]\n", r"keys\[0\].budgets: expected a table"),
        (f"keys: [{{id: a, hash: '{HASH}', budgets: {{d: 5}}}}]\n", r"keys\[0\].budgets: expected NAME: {tokens: N}"),
        (f"keys: [{{id: a, hash: '{HASH}', budgets: {{d: {{tokens: 1.5}}}}}}]\n", r"budgets.d: expected tokens"),
        (f"keys: [{{id: a, hash: '{HASH}', budgets: {{d: {{seconds: 5}}}}}}]\n", r"budgets.d: expected tokens"),
        (f"keys: [{{id: a, hash: '{HASH}'}}, {{id: a, hash: '{OTHER}'}}]\n", r"keys\[1\].id: a is also keys\[0\]"),
        (f"keys: [{{id: a, hash: '{HASH}'}}, {{id: b, hash: '{HASH}'}}]\n", r"keys\[1\].hash: the same key"),
        (f"keys: [{{id: a, hash: '{HASH}', team: t}}]\n", r"keys\[0\].team: a team is one of a tenant's"),
        (f"keys: [{{id: a, hash: '{HASH}', tenant: 'a b'}}]\n", r"keys\[0\].tenant: expected"),
        (f"keys: [{{id: a, hash: '{HASH}', allow: [priority]}}]\n", r"keys\[0\].allow: expected a table"),
        (f"keys: [{{id: a, hash: '{HASH}', allow: {{root: true}}}}]\n", r"keys\[0\].allow: expected a table"),
        (f"keys: [{{id: a, hash: '{HASH}', allow: {{priority: 1}}}}]\n", r"allow.priority: expected true or false"),
        (f"keys: [{{id: a, hash: '{HASH}', allow: {{models: m}}}}]\n", r"allow.models: expected a list of names"),
        (f"keys: [{{id: a, hash: '{HASH}', allow: {{models: ['*a']}}}}]\n", r"allow.models: expected a list of names"),
        ("keys: !!python/object/apply:os.getcwd []\n", r"not YAML"),
    ],
)
def test_what_cannot_be_used_is_named_and_shows_no_secret(text: str, message: str) -> None:
    with pytest.raises(KeysError, match=message) as caught:
        parse_keys(text.encode())
    assert "secret" not in str(caught.value)


def test_a_huge_file_is_refused_unread() -> None:
    with pytest.raises(KeysError, match="larger than 8 MiB"):
        parse_keys(b"#" * (9 << 20))
