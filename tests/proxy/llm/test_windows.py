"""Windows over a text: nothing is missed, none is too long, and those that are behind do not change."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proxy.llm.segments import Segment
from proxy.llm.windows import text_of, windows

MAX_LEN = 10
lengths = st.lists(st.integers(0, MAX_LEN), max_size=30)


def of(tokens: list[int]) -> list[Segment]:
    return [Segment(f"{i}.", each) for i, each in enumerate(tokens)]


def test_windows_begin_a_stride_apart() -> None:
    tokens = [2] * 10
    assert windows(of(tokens), 10, 6) == [(0, 5), (3, 8), (6, 10)]
    assert windows(of(tokens), 10, 10) == [(0, 5), (5, 10)]
    assert windows(of(tokens), 100, 10) == [(0, 10)]
    assert windows([], 10, 5) == []
    assert text_of(of(tokens), (3, 5)) == "3.4."


@given(lengths, st.integers(1, MAX_LEN))
def test_every_segment_is_seen_and_no_window_is_too_long(tokens: list[int], stride: int) -> None:
    found = windows(of(tokens), MAX_LEN, stride)
    seen = {at for begin, end in found for at in range(begin, end)}
    assert seen == set(range(len(tokens)))
    assert all(sum(tokens[begin:end]) <= MAX_LEN for begin, end in found)
    assert all(one[0] < other[0] for one, other in pairwise(found))


@given(lengths, lengths, st.integers(1, MAX_LEN))
def test_while_a_text_grows_windows_begin_where_they_began(tokens: list[int], more: list[int], stride: int) -> None:
    before, after = windows(of(tokens), MAX_LEN, stride), windows(of([*tokens, *more]), MAX_LEN, stride)
    assert [begin for begin, _ in after][: len(before)] == [begin for begin, _ in before]
    assert after[: max(0, len(before) - 1)] == before[:-1]
