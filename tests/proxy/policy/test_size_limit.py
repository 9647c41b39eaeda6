"""Declared bodies are judged at once, others are left to the pump with a bound."""

from __future__ import annotations

import json

import pytest

from tests.proxy.make import chain, exchange

LIMITED = {"size_limit": {"body": "1MiB"}}


@pytest.mark.parametrize(("length", "passes"), [(0, True), (1 << 20, True), ((1 << 20) + 1, False), (10**15, False)])
def test_a_declared_length(length: int, passes: bool) -> None:
    reply = chain(LIMITED).admit(exchange(content_length=length, has_body=True), 0.0)
    assert (reply is None) == passes
    if reply is not None:
        assert reply.status == 413
        assert reply.close
        assert "1MiB" in json.loads(reply.body)["detail"]


def test_a_body_of_unknown_length_carries_its_bound() -> None:
    x = exchange(has_body=True)
    assert chain(LIMITED).admit(x, 0.0) is None
    assert x.body_limit_bytes == 1 << 20
    y = exchange(has_body=True)
    assert chain({}).admit(y, 0.0) is None
    assert y.body_limit_bytes is None
