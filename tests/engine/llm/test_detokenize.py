"""Pieces of text: joined they are the whole text, whatever the cuts, and no part of a stop string is among them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.llm.detokenize import TextStream


def pieces(tokens: Sequence[bytes], stops: Sequence[str] = ()) -> tuple[list[str], bool]:
    stream = TextStream(stops)
    shown = []
    for token in tokens:
        shown.append(stream.push(token))
        if stream.stopped:
            return shown, True
    return [*shown, stream.finish()], False


@pytest.mark.parametrize(
    ("tokens", "stops", "text"),
    [
        ([b"alpha be", b"ta ga", b"mma delta"], ["beta gamma"], "alpha "),
        ([b"alpha beta", b" gamma"], ["ta"], "alpha be"),
        ([b"xa", b"b", b"c"], ["ab", "abc"], "x"),
        ([b"xabc"], ["abc", "ab"], "x"),
        ([b"stop"], ["s"], ""),
        ([b"one two", b" three"], ["zzz", "yyy", " th", "q"], "one two"),
        (["né".encode()[:2], "né".encode()[2:], b"e"], ["ée"], "n"),
        ([b"aab", b"aabc"], ["aabc"], "aab"),
    ],
)
def test_L02_a_stop_string_ends_the_text_and_is_never_shown(tokens: list[bytes], stops: list[str], text: str) -> None:
    shown, stopped = pieces(tokens, stops)
    assert stopped
    assert "".join(shown) == text
    assert all(text.startswith("".join(shown[:count])) for count in range(len(shown) + 1))


def test_L02_what_only_looked_like_a_stop_string_is_shown_at_the_end() -> None:
    assert pieces([b"alpha be", b"ta"], ["beta gamma"]) == (["alpha ", "", "beta"], False)


@pytest.mark.parametrize("text", ["🔥", "👩‍👩‍👧", "สวัสดี", "नमस्ते", "a\ufffdb"])
def test_L04_characters_of_several_tokens_come_whole(text: str) -> None:
    shown, _ = pieces([bytes([byte]) for byte in text.encode()])
    assert "".join(shown) == text
    assert "\ufffd" not in [piece for piece in shown if piece != "\ufffd"] or "\ufffd" in text
    assert sum(1 for piece in shown if piece) == len(text)


def test_L04_a_character_that_was_never_completed_is_dropped() -> None:
    assert pieces([b"a", "🔥".encode()[:3]]) == (["a", "", ""], False)


def test_L04_bytes_that_no_character_has_become_one_replacement_each() -> None:
    assert "".join(pieces([b"a\xff", b"b"])[0]) == "a\ufffdb"


@given(data=st.data(), text=st.text(st.sampled_from("abcé🔥 "), max_size=30))
def test_however_the_text_is_cut_the_same_is_shown(data: st.DataObject, text: str) -> None:
    raw = text.encode()
    stops = data.draw(st.lists(st.text(st.sampled_from("abcé🔥 "), min_size=1, max_size=4), max_size=4))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    edges = [0, *cuts, len(raw)]
    coarse = "".join(pieces([raw[a:b] for a, b in pairwise(edges)], stops)[0])
    fine = "".join(pieces([bytes([byte]) for byte in raw], stops)[0])
    assert coarse == fine
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert fine == (text[: min(ends)[1]] if ends else text)
