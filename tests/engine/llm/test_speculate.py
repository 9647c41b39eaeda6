"""Where a text has gone on before, and how long a draft of it pays."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.llm.cost import StepCost
from engine.llm.lookup import Lookup
from engine.llm.scheduler import Share
from engine.llm.speculate import MAX_TOKENS, draft_lengths, make_drafts
from tests.engine.llm.sequences import END, TOKEN_S, sequence, step_cost

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def followed(tokens: list[int], begin: int) -> Lookup:
    """A look-up that has seen the text grow from its first ``begin`` tokens on."""
    growing = tokens[:begin]
    lookup = Lookup(growing)
    for token in tokens[begin:]:
        growing.append(token)
        lookup.follow()
    return lookup


@given(TEXTS, st.data())
def test_a_draft_is_what_followed_the_texts_last_two_tokens_before(tokens: list[int], data: st.DataObject) -> None:
    lookup = followed(tokens, data.draw(st.integers(0, len(tokens))))
    places = [at for at in range(2, len(tokens)) if tokens[at - 2 : at] == tokens[-2:]]
    draft = lookup.draft(5)
    assert bool(draft) == bool(places)
    assert bool(lookup.chances(5)) == bool(places)
    if places:
        assert len(draft) == 5
        assert any(([*tokens, *draft])[at : at + 5] == draft for at in places)


@given(TEXTS, st.data())
def test_it_is_the_same_whether_the_tokens_come_singly_or_several_at_once(
    tokens: list[int], data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(tokens)))
    growing = tokens[:begin]
    lookup = Lookup(growing)
    growing += tokens[begin:]
    lookup.follow()
    single = followed(tokens, begin)
    assert (lookup.draft(8), lookup.chances(8)) == (single.draft(8), single.chances(8))


@given(TEXTS, TEXTS, st.floats(0, 1))
def test_chances_fall_and_are_probabilities(prompt: list[int], answer: list[int], least: float) -> None:
    lookup = followed(prompt + answer, len(prompt))
    chances = lookup.chances(20)
    assert all(0 < later < sooner < 1 for sooner, later in pairwise(chances))
    assert lookup.chances(20, least) == [chance for chance in chances if chance > least]


def test_a_text_that_repeats_itself_to_its_end_is_drafted_beyond_it() -> None:
    assert Lookup([7, 1, 2, 3, 1, 2]).draft(8) == [3, 1, 2, 3, 1, 2, 3, 1]


def test_a_text_that_quotes_is_trusted_more_with_every_token_and_one_that_does_not_less() -> None:
    quoted = list(range(40))
    chances = [followed([*quoted, 99, *quoted[:count]], 41).chances(1)[0] for count in (2, 5, 10, 30)]
    assert chances == sorted(chances)
    assert chances[-1] > 0.9
    pairs = [token for number in range(30) for token in (1, 2, 100 + number)]  # after 1, 2 always something new
    assert followed([*pairs, 1, 2], 3).chances(1)[0] < 0.1


@given(
    st.lists(st.lists(st.floats(0.01, 0.99), max_size=3), min_size=1, max_size=3),
    st.floats(0.1, 1.0),
    st.integers(0, 6),
)
def test_drafts_are_as_long_as_makes_the_most_tokens_per_second(
    factors: list[list[float]], token_s: float, most: int
) -> None:
    rows = []
    for row in factors:
        chances, chance = [], 1.0
        for factor in row:
            chance *= factor
            chances.append(chance)
        rows.append(chances)

    def speed(lengths: tuple[int, ...]) -> float:
        right = sum(sum(chances[:length]) for chances, length in zip(rows, lengths, strict=True))
        return (len(rows) + right) / (1.0 + token_s * sum(lengths))

    every = [each for each in product(*(range(len(row) + 1) for row in rows)) if sum(each) <= most]
    chosen = draft_lengths(rows, step_s=1.0, token_s=token_s, most=most)
    assert sum(chosen) <= most
    assert speed(tuple(chosen)) == pytest.approx(max(map(speed, every)))
    # Those that are not even worth more than the step without drafts need not be looked at.
    likely = [[chance for chance in row if chance > token_s * len(rows)] for row in rows]
    assert draft_lengths(likely, step_s=1.0, token_s=token_s, most=most) == chosen


def test_no_draft_is_longer_than_what_the_answer_may_still_have() -> None:
    cost = StepCost(1, one_row_s=1.0, all_rows_s=1.0, token_s=1e-6)
    for left in (1, 2, 9, 100):
        repeating = sequence(60, max_tokens=left + 1, slot=0, num_cached=60)
        repeating.tokens.append(0)
        drafts = make_drafts([Share(repeating, 1)], cost, allowance_s=1.0)
        assert len(drafts.get(repeating, [])) == min(left - 1, MAX_TOKENS)


def test_no_draft_goes_beyond_the_end_of_an_answer() -> None:
    cost = StepCost(1, one_row_s=1.0, all_rows_s=1.0, token_s=1e-6)
    quoting = sequence(3, max_tokens=90, slot=0, num_cached=9)
    quoting.tokens[:] = [7, 8, 9, 5, END, 6, 4, 7, 8, 9]
    assert make_drafts([Share(quoting, 1)], cost, allowance_s=1.0) == {quoting: [5]}


def test_drafts_keep_to_the_allowance_and_out_of_steps_that_read_prompts() -> None:
    cost = step_cost(2)
    repeating, reading = (sequence(60, max_tokens=90, slot=slot, num_cached=60 - 60 * slot) for slot in range(2))
    repeating.tokens.append(0)
    drafts = make_drafts([Share(repeating, 1)], cost, allowance_s=3.5 * TOKEN_S)
    assert len(drafts[repeating]) == 3
    assert make_drafts([Share(repeating, 1), Share(reading, 20)], cost, allowance_s=1.0) == {}


def test_a_draft_tokens_cost_is_learned_and_one_that_was_too_dear_is_forgotten() -> None:
    cost = step_cost(1)
    for _ in range(100):
        cost.observe([0], [], 0.01 + 8 * 0.005, num_drafted=8)
    assert cost.draft_s == pytest.approx(0.005, rel=0.01)
    for _ in range(500):
        cost.observe([0], [], 0.01)
    assert cost.draft_s == pytest.approx(TOKEN_S, rel=0.05)
