"""Wrong passwords by address: so many at once, forgiven one after the other, in bounded memory."""

from __future__ import annotations

import pytest

from proxy.guesses import MAX_CLIENTS, Guesses


def test_so_many_in_that_time_and_then_one_after_the_other() -> None:
    guesses = Guesses(10, 60.0)
    for _ in range(10):
        assert guesses.wait_s("a", 100.0) == 0.0
        guesses.wrong("a", 100.0)
    assert guesses.wait_s("a", 100.0) == pytest.approx(6.0)
    assert guesses.wait_s("b", 100.0) == 0.0
    assert guesses.wait_s("a", 106.0) == 0.0
    guesses.wrong("a", 106.0)
    assert guesses.wait_s("a", 106.0) == pytest.approx(6.0)
    assert guesses.wait_s("a", 1000.0) == 0.0
    guesses.wrong("a", 1000.0)
    assert guesses.wait_s("a", 1000.0) == 0.0


def test_the_memory_is_bounded_and_who_guessed_longest_ago_makes_room() -> None:
    guesses = Guesses(1, 60.0)
    for i in range(MAX_CLIENTS):
        guesses.wrong(str(i), 0.0)
    guesses.wrong("0", 0.0)
    guesses.wrong("new", 0.0)
    assert guesses.wait_s("1", 0.0) == 0.0
    assert guesses.wait_s("0", 0.0) > 0.0
    assert guesses.wait_s("new", 0.0) > 0.0
