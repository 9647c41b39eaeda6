"""Filters one behind the other: who was asked last filters first, and what is held comes out at the end."""

from __future__ import annotations

from proxy.answer_filter import AnswerFilter, add_filter, finish, pass_through
from tests.proxy.make import exchange


class Holding(AnswerFilter):
    """Holds all until the end, and puts its name behind it."""

    def __init__(self, name: bytes) -> None:
        self._name, self._held = name, b""

    def data(self, data: bytes) -> bytes:
        self._held += data
        return b""

    def end(self) -> bytes:
        return self._held + self._name


class Naming(AnswerFilter):
    def data(self, data: bytes) -> bytes:
        return data + b"!"


def test_the_order_and_what_is_held() -> None:
    x = exchange()
    for each in (Holding(b"1"), Naming(), Holding(b"2")):
        add_filter(x, each)
    assert x.filters is not None
    assert pass_through(x.filters, b"a") == b""
    assert pass_through(x.filters, b"b") == b""
    assert finish(x.filters) == b"ab2!1"


def test_a_filter_that_does_nothing() -> None:
    assert pass_through([AnswerFilter()], b"a") == b"a"
    assert finish([AnswerFilter()]) == b""
