"""JSON that everybody reads alike: what is taken, what is not, and no key that stands twice gets by."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.strict_json import MAX_BRACKETS, MAX_DEPTH, parse_strict

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8) | st.sampled_from(['":', '"', "\\"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.just('a":'), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN, st.booleans(), st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", " :\t")]))
@example({"a": '":'}, True, (",", " :"))
def test_what_is_json_is_read_as_python_reads_it(value: Any, escapes: bool, separators: tuple[str, str]) -> None:
    text = json.dumps(value, ensure_ascii=escapes, separators=separators)
    assert parse_strict(text.encode("utf-8", "surrogatepass")) == (value if isinstance(value, dict | list) else None)


@given(
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1, max_size=4),
    st.lists(st.text('":\\ a', max_size=6), max_size=3),
    st.sampled_from([":", " :", "\n: "]),
    st.data(),
)
def test_a_key_that_stands_twice_is_never_taken(
    table: dict[str, str], texts: list[str], colon: str, data: st.DataObject
) -> None:
    pairs = [(json.dumps(key), json.dumps(value)) for key, value in table.items()]
    again = data.draw(st.sampled_from(sorted(table)))
    spelled = "".join(f"\\u{ord(c):04x}" for c in again if ord(c) < 0x10000)
    same = f'"{spelled}"' if all(ord(c) < 0x10000 for c in again) else json.dumps(again)
    pairs.insert(data.draw(st.integers(0, len(pairs))), (same, '"other"'))
    inner = "{" + ",".join(f"{key}{colon}{value}" for key, value in pairs) + "}"
    assert parse_strict(f'{{"x":{inner},"texts":{json.dumps(texts)}}}'.encode()) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"7",
        b'"a"',
        b"[NaN]",
        b"[1e999]",
        b'["\\ud800"]',
        b'["\xff"]',
        b"\xef\xbb\xbf{}",
        b"{} {}",
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b"[" * 100_000,
        b'["' + b"[" * MAX_BRACKETS + b'"]',
        b"{'a':1}",
    ],
)
def test_what_is_not_taken(raw: bytes) -> None:
    assert parse_strict(raw) is None


def test_nesting_up_to_the_bound_is_taken() -> None:
    assert parse_strict(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) is not None
