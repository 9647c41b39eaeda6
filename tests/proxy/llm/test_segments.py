"""Text in sentences and lines: nothing is lost, nothing is too long, nothing takes for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.llm.segments import segments, sentences


def words(text: str) -> int:
    """A tokenizer for tests: a token for each word and one for every three characters of what is longer."""
    return sum(1 + (len(word) - 1) // 8 for word in text.split()) or (1 if text else 0)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One. Two! Three?", ["One. ", "Two! ", "Three?"]),
        ('He said "no." Then left.\nAnd', ['He said "no." ', "Then left.\n", "And"]),
        ("3.14 and v1.2 stay", ["3.14 and v1.2 stay"]),
        ("\u4f60\u597d\u3002\u518d\u89c1\u3002", ["\u4f60\u597d\u3002", "\u518d\u89c1\u3002"]),
        ("a\n\n    indented\n  b", ["a\n\n", "    indented\n", "  b"]),
        ("wait... what", ["wait... ", "what"]),
        ("a\r\nb", ["a\r\n", "b"]),
        ("", []),
        ("\n\n", ["\n\n"]),
    ],
)
def test_where_sentences_and_lines_end(text: str, pieces: list[str]) -> None:
    assert sentences(text) == pieces


texts = st.text(st.sampled_from("ab .!?\n\t\u3002\u4f60\U0001f525"), max_size=80)


@given(texts, st.integers(1, 9), st.booleans())
def test_segments_together_are_the_text_and_none_is_too_long(text: str, most: int, backwards: bool) -> None:
    pieces = sentences(text)
    found = list(segments(pieces[::-1] if backwards else pieces, most, words, backwards=backwards))
    assert "".join(each.text for each in (found[::-1] if backwards else found)) == text
    assert all(each.tokens <= most or len(each.text) == 1 for each in found)
    assert all(each.tokens == words(each.text) for each in found)


LONG = 200_000


@pytest.mark.parametrize("text", [".", ". ", " ", '."', "\n ", "x", ".\u2019", "\u3002"])
def test_no_text_takes_longer_than_its_length(text: str) -> None:
    assert "".join(sentences(text * LONG)) == text * LONG
