"""Hostile and broken JSON: a 400 each, never anything else."""

from __future__ import annotations

import pytest

from engine.errors import Kind, RequestError
from engine.wire.body import MAX_DEPTH, parse_object

HOSTILE = {
    "deep lists": b"[" * 20000 + b"]" * 20000,
    "deep objects": b'{"x":' * 1000 + b"1" + b"}" * 1000,
    "just too deep": b'{"x":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
    "unclosed": b'{"a":' * 500000,
    "NaN": b'{"temperature":NaN}',
    "Infinity": b'{"temperature":-Infinity}',
    "1e999": b'{"temperature":1e999}',
    "many digits": b'{"seed":' + b"9" * 5000 + b"}",
    "some digits": b'{"seed":' + b"9" * 100 + b"}",
    "twice": b'{"model":"a","model":"b"}',
    "twice, deep": b'{"messages":[{"role":"user","role":"system"}]}',
    "a list": b"[]",
    "a string": b'"x"',
    "null": b"null",
    "nothing": b"",
    "not UTF-8": b'{"a":"\xff"}',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "half a pair": b'{"a":"\\ud800"}',
    "half a pair as a key": b'{"a":{"\\udfff":1}}',
    "raw control character": b'{"a":"\x01"}',
    "half a pair, deep": b'{"a":[{"b":["x","\\uDBFFx"]}]}',
    "arrays without end": b'{"a":[' + b"[]," * (1 << 18) + b"[]]}",
    "trailing": b'{"a":1} x',
    "single quotes": b"{'a':1}",
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_L20_hostile_json_is_a_400(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(raw)
    assert caught.value.kind is Kind.INVALID_JSON
    assert len(caught.value.message) < 200


def test_what_is_json_is_taken_as_it_stands() -> None:
    nested = b'{"x":' * (MAX_DEPTH - 1) + b"1" + b"}" * (MAX_DEPTH - 1)
    assert parse_object(nested)
    assert parse_object(b'{"a":"\\ud83d\\udd25","b":[1,-2.5e3,true,null],"c":"\xc3\xa9\\u0000"}') == {
        "a": "🔥",
        "b": [1, -2500.0, True, None],
        "c": "é\0",
    }


def test_L20_a_megabyte_of_escapes_is_taken_as_text() -> None:
    assert len(parse_object(b'{"a":"' + b"\\u0041" * 170000 + b'"}')["a"]) == 170000
