"""Kept answers in the shared mapping: what was put is what is got, bounded, and never half."""

from __future__ import annotations

import os
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from proxy.shared.layout import PAGE_BYTES, WINDOW, Geometry
from proxy.shared.owner import SharedTableOwner
from proxy.shared.table import SharedTable

SMALL = Geometry(limits=1, keys=1, permits=1, records=1, tallies=1, columns=4, answers=64, answer_bytes=4 * PAGE_BYTES)
LATER = 1e9


def digest(name: object) -> bytes:
    return sha256(str(name).encode()).digest()


def test_what_one_worker_keeps_all_others_find_whoever_dies() -> None:
    owner = SharedTableOwner(SMALL)
    one, other = (SharedTable.attached(owner.fd, owner.enter()).answers() for _ in range(2))
    assert one.put(digest("a"), b"an answer", LATER, 0.0) == 0
    owner.left(0)
    assert other.get(digest("a"), 1.0) == b"an answer"
    assert other.get(digest("b"), 1.0) is None
    owner.close()


def test_a_journal_takes_no_room_from_the_answers_and_has_a_lock_of_its_own() -> None:
    table = SharedTable.alone(SMALL._replace(journal=64, journal_bytes=4 * PAGE_BYTES))
    answers, journal = table.answers(), table.journal()
    answers.put(digest("a"), b"kept", LATER, 0.0)
    for i in range(100):
        journal.put(digest(i), bytes(1000), LATER, 0.0)
    answers.put(digest(99), b"other", LATER, 0.0)
    assert (answers.get(digest("a"), 0.0), answers.get(digest(99), 0.0)) == (b"kept", b"other")
    assert (journal.get(digest("a"), 0.0), journal.get(digest(99), 0.0)) == (None, bytes(1000))
    assert answers._lock != journal._lock


def test_what_nobody_asks_for_takes_no_memory() -> None:
    owner = SharedTableOwner(SMALL)
    table = SharedTable.attached(owner.fd, owner.enter())
    before = os.fstat(owner.fd).st_blocks
    answers, journal = table.answers(), table.journal()
    journal.get(digest("a"), 0.0)
    answers.put(digest("a"), b"an answer", LATER, 0.0)
    assert (os.fstat(owner.fd).st_blocks - before) * 512 <= 5 * PAGE_BYTES
    owner.close()


def test_an_answer_expires_and_is_replaced() -> None:
    answers = SharedTable.alone(SMALL).answers()
    answers.put(digest("a"), b"first", 10.0, 0.0)
    assert (answers.get(digest("a"), 9.9), answers.get(digest("a"), 10.0)) == (b"first", None)
    answers.put(digest("a"), b"second", 20.0, 10.0)
    assert answers.get(digest("a"), 10.0) == b"second"


def test_one_larger_than_an_eighth_of_the_ring_is_not_kept() -> None:
    answers = SharedTable.alone(SMALL).answers()
    assert answers.put(digest("a"), bytes(PAGE_BYTES // 2), LATER, 0.0) == 1
    assert answers.get(digest("a"), 0.0) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.binary(max_size=1500), st.integers(1, 50)), max_size=120))
def test_the_newest_stay_whole_and_the_oldest_make_room(puts: list[tuple[int, bytes, int]]) -> None:
    answers = SharedTable.alone(SMALL).answers()
    latest: dict[int, tuple[bytes, float, int]] = {}
    for now, (name, answer, lasts_s) in enumerate(puts):
        answers.put(digest(name), answer, now + lasts_s, now)
        latest[name] = (answer, now + lasts_s, now)
    now = len(puts)
    for name, (answer, expires_at, put_at) in latest.items():
        found = answers.get(digest(name), now)
        behind = sum(len(each) + 64 for _, each, _ in puts[put_at:])
        assert found in (answer, None)
        if expires_at <= now:
            assert found is None
        elif behind <= SMALL.answer_bytes:
            assert found == answer


def test_a_full_window_loses_its_oldest() -> None:
    answers = SharedTable.alone(SMALL._replace(answers=1)).answers()
    dropped = [answers.put(digest(i), b"x", LATER, 0.0) for i in range(WINDOW + 3)]
    assert sum(dropped) == 3
    found = [answers.get(digest(i), 0.0) for i in range(WINDOW + 3)]
    assert found == [None] * 3 + [b"x"] * WINDOW


def test_a_worker_killed_within_a_put_leaves_what_was_there() -> None:
    """Every store of a put is the last one once; then another worker goes on."""

    class Killed(Exception):
        pass

    class Words:
        def __init__(self, words: memoryview[int], left: int) -> None:
            self.words, self.left = words, left

        def __getitem__(self, at: int) -> int:
            return self.words[at]

        def __setitem__(self, at: int, value: int) -> None:
            if not self.left:
                raise Killed
            self.left -= 1
            self.words[at] = value

    for num_stores in range(7):
        table = SharedTable.alone(SMALL)
        one, other = table.answers(), table.answers()
        for i in range(15):  # nearly full: the next put must make room
            one.put(digest(i), b"%d" % i * 500, LATER, 0.0)
        one._words = Words(one._words, num_stores)  # type: ignore[assignment]
        try:
            one.put(digest("new"), b"n" * 1500, LATER, 0.0)
            whole = True
        except Killed:
            whole = False
        assert other.get(digest("new"), 0.0) == (b"n" * 1500 if whole else None)
        assert other.get(digest(14), 0.0) == b"14" * 500
        other.put(digest("next"), b"y" * 1200, LATER, 0.0)
        assert other.get(digest("next"), 0.0) == b"y" * 1200
        assert other.get(digest("new"), 0.0) in ((b"n" * 1500,) if whole else (None,))
        assert all(other.get(digest(i), 0.0) in (b"%d" % i * 500, None) for i in range(15))
