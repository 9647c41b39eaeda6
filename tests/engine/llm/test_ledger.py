"""The ledger: rest earns no credit, debts are remembered, answers are paid for as long as they get."""

from __future__ import annotations

from engine.llm.ledger import Ledger
from tests.engine.llm.sequences import sequence


def run(ledger: Ledger, key: str, num_prompt: int, num_output: int, *, expected: int = 10) -> None:
    """A sequence comes, is paid for, answers and ends."""
    one = sequence(num_prompt, 1000, key=key)
    ledger.enter(key)
    ledger.prepay(one, expected)
    one.tokens += [5] * num_output
    ledger.settle(one, ended=False)
    ledger.settle(one, ended=True)
    ledger.leave(key)


def test_an_answer_costs_what_it_has_whatever_was_expected() -> None:
    ledger = Ledger()
    ledger.enter("a")
    for num_output in (0, 3, 10, 50):
        before = ledger.used("a")
        run(ledger, "a", 20, num_output)
        assert ledger.used("a") - before == 20 + 2 * num_output


def test_a_sequence_that_comes_back_is_not_paid_for_twice() -> None:
    ledger = Ledger()
    one = sequence(20, 50, key="a")
    ledger.enter("a")
    ledger.prepay(one, 10)
    ledger.prepay(one, 10)
    assert ledger.used("a") == 40
    one.tokens += [5] * 12
    ledger.settle(one, ended=False)
    ledger.prepay(one, 10)
    assert ledger.used("a") == 44


def test_a_key_that_rested_gets_no_credit_and_one_that_has_used_more_stays_behind() -> None:
    ledger = Ledger()
    for key in ("a", "b"):
        ledger.enter(key)
    run(ledger, "a", 500, 0)
    run(ledger, "b", 100, 0)
    ledger.enter("new")
    assert ledger.used("new") == 100
    ledger.leave("a")
    ledger.enter("a")
    assert ledger.used("a") == 500


def test_nothing_is_remembered_once_nobody_is_left() -> None:
    ledger = Ledger()
    run(ledger, "a", 500, 0)
    ledger.enter("a")
    assert ledger.used("a") == 0


def test_keys_that_are_gone_are_remembered_in_bounds_the_deepest_in_debt_for_longest() -> None:
    ledger = Ledger()
    ledger.enter("stays")
    for number in range(5000):
        run(ledger, str(number), number + 1, 0)
    assert len(ledger._used) <= 1100
    ledger.enter("4999")
    ledger.enter("1")
    assert (ledger.used("4999"), ledger.used("1")) == (5000, 0)
