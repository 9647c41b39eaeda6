"""A text made shorter: it fits, and what stays was in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.llm.shorten import MARK, Part, shorten
from tests.proxy.llm.test_segments import texts, words

STORY = "First of all. Second came. Third went. Fourth stayed. Fifth slept. Last of all."


@pytest.mark.parametrize(
    ("part", "most", "left"),
    [
        ("start", 10, f"{MARK} Fifth slept. Last of all."),
        ("end", 10, f"First of all. Second came. {MARK}"),
        ("middle", 12, f"First of all. {MARK} Fifth slept. Last of all."),
        ("middle", 1, ""),
    ],
)
def test_whole_sentences_go(part: Part, most: int, left: str) -> None:
    assert shorten(STORY, most, part, words) == left


def test_lines_go_as_lines() -> None:
    lines = "".join(f"line {i}\n" for i in range(20))
    assert shorten(lines, 8, "start", words) == f"{MARK}\nline 18\nline 19\n"


@given(texts, st.integers(0, 30), st.sampled_from(["start", "middle", "end"]))
def test_what_is_left_fits_and_was_there(text: str, most: int, part: Part) -> None:
    left = shorten(text, most, part, words)
    assert words(left) <= most
    before, _, after = left.partition(MARK)
    assert text.startswith(before.rstrip("\n "))
    assert text.endswith(after.lstrip("\n "))
    if part == "start":
        assert not before
    if part == "end":
        assert not after
