"""Tokens: what was signed is read by whom it was given to, and nothing else is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.variants.token import NUM_CHARACTERS, Token, arm_id, read, sign

SECRET = b"s" * 32
TOKEN = Token(arm_id("b", 0.0), 1234, 15, b"12345678")


def test_a_token_comes_back_to_the_key_that_it_was_given_to() -> None:
    text = sign(TOKEN, "laptop", SECRET)
    assert len(text) == NUM_CHARACTERS
    assert read(text, "laptop", SECRET) == TOKEN
    assert read(text, "other", SECRET) is None
    assert read(text, "laptop", b"t" * 32) is None


@given(st.integers(0, NUM_CHARACTERS - 1), st.characters())
def test_a_changed_token_is_none(at: int, other: str) -> None:
    text = sign(TOKEN, "laptop", SECRET)
    changed = text[:at] + other + text[at + 1 :]
    assert (read(changed, "laptop", SECRET) == TOKEN) is (changed == text)


def test_a_token_is_written_in_one_way() -> None:
    texts = [sign(TOKEN._replace(at=at), "laptop", SECRET) for at in range(100)]
    others = {other for text in texts for other in (text.replace("-", "+"), text.replace("_", "/"))} - {*texts}
    assert others
    assert {read(other, "laptop", SECRET) for other in others} == {None}


@given(st.text(max_size=60))
def test_anything_else_is_none(text: str) -> None:
    assert read(text, "laptop", SECRET) is None


def test_another_beginning_is_another_arm() -> None:
    assert len({arm_id("b", 0.0), arm_id("b", 1.0), arm_id("c", 0.0)}) == 3
