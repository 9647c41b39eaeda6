"""Digits for ids."""

from __future__ import annotations

from proxy.ids import HexDigits


def test_digits_are_as_many_as_asked_for_and_never_the_same_twice() -> None:
    digits = HexDigits()
    drawn = [digits.draw(24) for _ in range(1000)]  # from several supplies
    assert {len(each) for each in drawn} == {48}
    assert set("".join(drawn)) == set("0123456789abcdef")
    assert len(set(drawn)) == 1000
