"""Structured fields, read back by an independent parser; Go durations one by one."""

from __future__ import annotations

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.fields import go_duration, sf_item, sf_string

PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126))
INTEGERS = st.integers(min_value=-999_999_999_999_999, max_value=999_999_999_999_999)


@given(PRINTABLE, INTEGERS, INTEGERS)
def test_an_item_reads_back_as_what_was_written(name: str, first: int, second: int) -> None:
    written = sf_item(name, {"q": first, "w": second})
    assert http_sf.parse(written, tltype="item") == (name, {"q": first, "w": second})


def test_the_examples_of_the_draft() -> None:
    assert sf_item("burst", {"q": 100, "w": 60}) == b'"burst";q=100;w=60'
    assert sf_item("burst", {"r": 50, "t": 30}) == b'"burst";r=50;t=30'


@pytest.mark.parametrize("text", ["é", "a\nb", "\x7f", "\x00"])
def test_what_is_not_printable_ascii_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        sf_string(text)


def test_an_integer_of_sixteen_digits_is_refused() -> None:
    with pytest.raises(ValueError, match="fifteen digits"):
        sf_item("a", {"q": 10**15})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (-1.0, "0s"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (1.0, "1s"),
        (1.5, "1.5s"),
        (1.0501, "1.051s"),
        (59.9999, "1m0s"),
        (90.0, "1m30s"),
        (360.0, "6m0s"),
        (3600.0, "1h0m0s"),
        (90061.25, "25h1m1.25s"),
    ],
)
def test_go_durations_round_up_to_a_millisecond(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text
