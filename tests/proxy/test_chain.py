"""The laws of the chain, each as a conversation with policies that write down what they are asked."""

from __future__ import annotations

import pytest

from proxy.chain import Chain, Policy
from proxy.exchange import Exchange, Head, Outcome, Reply
from tests.proxy.make import COMPLETE, exchange


class Scribe(Policy):
    """Writes ``name.hook`` into the book; refuses or raises in the hooks it is told to."""

    def __init__(self, name: str, book: list[str], *, refuses: bool = False, raises: str = "") -> None:
        self._name, self._book, self._refuses, self._raises = name, book, refuses, raises

    def _write(self, hook: str) -> None:
        self._book.append(f"{self._name}.{hook}")
        if hook == self._raises:
            raise RuntimeError(f"{self._name} fails in {hook}")

    def admit(self, x: Exchange, now: float) -> Reply | None:
        self._write("admit")
        return Reply(429) if self._refuses else None

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        self._write("respond")

    def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
        self._write("settle")


def run(*policies: Policy) -> Reply | None:
    chain, x = Chain(policies), exchange()
    reply = chain.admit(x, 0.0)
    chain.respond(x, Head(200, []), 0.0)
    chain.settle(x, COMPLETE, 0.0)
    chain.settle(x, COMPLETE, 0.0)
    return reply


def test_in_by_order_out_by_reverse_settled_once() -> None:
    book: list[str] = []
    assert run(Scribe("a", book), Scribe("b", book)) is None
    assert book == ["a.admit", "b.admit", "b.respond", "a.respond", "b.settle", "a.settle"]


def test_the_first_reply_stops_and_who_refused_still_responds_and_settles() -> None:
    book: list[str] = []
    reply = run(Scribe("a", book), Scribe("b", book, refuses=True), Scribe("c", book))
    assert reply == Reply(429)
    assert book == ["a.admit", "b.admit", "b.respond", "a.respond", "b.settle", "a.settle"]


def test_a_policy_that_raises_in_admit_is_settled_and_those_after_it_are_not() -> None:
    book: list[str] = []
    chain, x = Chain([Scribe("a", book), Scribe("b", book, raises="admit"), Scribe("c", book)]), exchange()
    with pytest.raises(RuntimeError, match="b fails in admit"):
        chain.admit(x, 0.0)
    chain.settle(x, COMPLETE, 0.0)
    assert book == ["a.admit", "b.admit", "b.settle", "a.settle"]


def test_a_policy_that_raises_in_settle_does_not_keep_the_others_from_settling() -> None:
    book: list[str] = []
    chain, x = Chain([Scribe("a", book), Scribe("b", book, raises="settle")]), exchange()
    chain.admit(x, 0.0)
    with pytest.raises(RuntimeError, match="b fails in settle"):
        chain.settle(x, COMPLETE, 0.0)
    chain.settle(x, COMPLETE, 0.0)
    assert book == ["a.admit", "b.admit", "b.settle", "a.settle"]


def test_nobody_is_settled_who_was_never_asked() -> None:
    book: list[str] = []
    Chain([Scribe("a", book)]).settle(exchange(), COMPLETE, 0.0)
    assert book == []


def test_a_policy_with_one_hook_is_asked_for_that_hook_only_and_keeps_its_place() -> None:
    class OnlySettles(Policy):
        def settle(self, x: Exchange, outcome: Outcome, now: float) -> None:
            book.append("only.settle")

    book: list[str] = []
    run(OnlySettles(), Scribe("b", book), OnlySettles())
    assert book == ["b.admit", "b.respond", "only.settle", "b.settle", "only.settle"]


class Reader(Scribe):
    """Reads the body, as it says."""

    def reads_body(self) -> bool:
        return True

    def gather(self, x: Exchange) -> None:
        self._write("gather")


def test_who_reads_the_body_and_those_behind_are_asked_when_the_others_have_let_it_pass() -> None:
    book: list[str] = []
    chain, x = Chain([Scribe("a", book), Reader("b", book), Scribe("c", book)]), exchange()
    assert chain.reads_body
    assert not chain.gathers
    assert chain.admit(x, 0.0) is None
    assert book == ["a.admit"]
    assert chain.gather_rest(x) is None
    assert chain.admit_rest(x, 0.0) is None
    chain.settle(x, COMPLETE, 0.0)
    assert book == ["a.admit", "b.gather", "b.admit", "c.admit", "c.settle", "b.settle", "a.settle"]


def test_who_refuses_before_the_body_is_read_settles_alone() -> None:
    book: list[str] = []
    chain, x = Chain([Scribe("a", book, refuses=True), Reader("b", book)]), exchange()
    assert chain.admit(x, 0.0) == Reply(429)
    chain.respond(x, Head(429, []), 0.0)
    chain.settle(x, COMPLETE, 0.0)
    assert book == ["a.admit", "a.respond", "a.settle"]


def test_who_refuses_the_body_counts_with_those_before_it() -> None:
    book: list[str] = []
    chain, x = Chain([Scribe("a", book), Reader("b", book, refuses=True), Scribe("c", book)]), exchange()
    assert chain.admit(x, 0.0) is None
    assert chain.admit_rest(x, 0.0) == Reply(429)
    chain.settle(x, COMPLETE, 0.0)
    assert book == ["a.admit", "b.admit", "b.settle", "a.settle"]


class Late(Scribe):
    """Gathers late, and writes it down."""

    def gathers_late(self) -> bool:
        return True

    def gather(self, x: Exchange) -> None:
        self._write("gather")


def test_who_gathers_late_does_so_when_those_before_have_admitted() -> None:
    book: list[str] = []
    chain, x = Chain([Scribe("a", book), Late("b", book), Scribe("c", book), Late("d", book)]), exchange()
    assert (chain.reads_body, chain.num_rest) == (True, 2)
    assert chain.admit(x, 0.0) is None
    assert x.asked == 1
    for part, asked in ((0, 3), (1, 4)):
        assert chain.gather_rest(x, part) is None
        assert chain.admit_rest(x, 0.0, part) is None
        assert x.asked == asked
    chain.settle(x, COMPLETE, 0.0)
    assert book[:6] == ["a.admit", "b.gather", "b.admit", "c.admit", "d.gather", "d.admit"]
    assert book[6:] == ["d.settle", "c.settle", "b.settle", "a.settle"]


def test_a_refusal_keeps_those_behind_from_spending() -> None:
    book: list[str] = []
    chain, x = Chain([Late("a", book), Scribe("b", book, refuses=True), Late("c", book)]), exchange()
    assert chain.admit(x, 0.0) is None
    assert chain.gather_rest(x) is None
    assert chain.admit_rest(x, 0.0) == Reply(429)
    chain.settle(x, COMPLETE, 0.0)
    assert book == ["a.gather", "a.admit", "b.admit", "b.settle", "a.settle"]
