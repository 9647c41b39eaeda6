"""One member replaced, the others as they were, to the byte."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.llm.splice import find_member, with_member

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=6) | st.sampled_from(["model", "messages", "a"]), VALUES, max_size=6)


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (b'{"model":"a","n":1.0}', b'{"model":"b","n":1.0}'),
        (b' { "n" : 1e2 , "model" : null } ', b' { "n" : 1e2 , "model" : "b" } '),
        (rb'{"x":{"model":"a"},"mod\u0065l":[1,{"]":"}"}],"y":"\"model\""}',
         rb'{"x":{"model":"a"},"mod\u0065l":"b","y":"\"model\""}'),
        (b"{}", b'{"model":"b"}'),
        (b"\n{ }", b'\n{"model":"b" }'),
        (b'{"n":12345678901234567890}', b'{"model":"b","n":12345678901234567890}'),
    ],
)  # fmt: skip
def test_only_the_member_changes(body: bytes, after: bytes) -> None:
    assert with_member(body, "model", b'"b"') == after


@given(OBJECTS, st.text(max_size=6) | st.just("model"), VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_whatever_else_the_object_says(
    document: dict[str, object], name: str, value: object, ascii_only: bool, indent: int | None
) -> None:
    body = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()
    after = with_member(body, name, orjson.dumps(value))
    assert json.loads(after) == {**document, name: value}
    found = find_member(after, name)
    assert found is not None
    assert json.loads(after[found[0] : found[1]]) == value
