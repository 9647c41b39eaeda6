"""What a request is counted under, where its client has made that up."""

from __future__ import annotations

import orjson

from proxy.held_body import HeldBody
from proxy.limit_key import key_of
from tests.proxy.make import exchange


def test_what_a_client_has_made_up_is_remembered_by_a_few_characters_and_told_apart() -> None:
    long = [b"m" * 100_000 + end for end in (b"", b"a", b"b")]
    keys = []
    for value in long:
        x = exchange("/v1/chat/completions", [("X-User", value.decode())])
        document = {"model": value.decode(), "messages": []}
        x.body = HeldBody.made(x, orjson.dumps(document), document)
        keys += [key_of(("model",), "r")(x), key_of(("header:X-User",), "r")(x)]
    assert max(map(len, keys)) < 100
    assert len(set(keys)) == len(long)


def test_short_names_are_counted_as_they_are() -> None:
    x = exchange("/", [("X-User", "u" * 256)])
    assert key_of(("header:X-User",), "r")(x) == "u" * 256
