"""State that outlives a snapshot: taken over by name, untouched by a build that fails, dropped when nobody asks."""

from __future__ import annotations

from proxy.policy import States


def test_the_same_name_is_the_same_state() -> None:
    states = States()
    assert states.get(("limit", "a"), list) is states.get(("limit", "a"), list)
    assert states.get(("limit", "a"), list) is not states.get(("limit", "b"), list)


def test_a_build_takes_over_what_it_asks_for_and_leaves_the_previous_as_it_was() -> None:
    old = States()
    kept = old.get("a", list)
    new = States(old)
    assert new.get("a", list) is kept
    made = new.get("b", list)
    assert old.get("b", list) is not made


def test_what_a_committed_snapshot_did_not_ask_for_is_forgotten() -> None:
    old = States()
    old.get("a", list).append(1)
    new = States(old)
    new.seal()
    assert new.get("a", list) == []
