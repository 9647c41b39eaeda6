"""Which slot a text gets, what of it is read again, and who makes way for whom when the memory is short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.llm.prefixes import LEFT_TO_READ, MIN_TOKENS, common_length
from engine.llm.slot_memory import Trim
from engine.llm.slots import EVICT_ABOVE
from tests.engine.llm.slot_box import KEEP_S, PAGE, PROMPT, Box, sequence


def test_a_text_that_goes_on_is_read_from_where_it_ended_in_its_own_slot() -> None:
    box = Box()
    box.serve(PROMPT)
    again = sequence([*PROMPT, 7, 8, 9])
    box.place(again)
    assert (again.slot, again.num_cached) == (0, 100)
    assert box.slots.num_copies == 0
    assert (box.slots.num_reuses, box.slots.num_reused_tokens) == (1, 100)


def test_the_same_text_is_read_again_but_for_two_tokens() -> None:
    box = Box()
    box.serve(PROMPT)
    assert box.serve(PROMPT) == 100 - LEFT_TO_READ


def test_of_less_than_the_least_nothing_is_reused() -> None:
    box = Box()
    box.serve(PROMPT[: MIN_TOKENS - 1])
    assert box.serve(PROMPT) == 0
    assert box.serve([*PROMPT[: MIN_TOKENS - 1], *PROMPT]) == 0
    assert box.serve([*PROMPT[:MIN_TOKENS], *PROMPT]) == MIN_TOKENS


def test_a_beginning_in_a_busy_slot_is_copied() -> None:
    box = Box()
    first, second = sequence(PROMPT), sequence([*PROMPT[:50], 7, 7])
    box.place(first)
    box.read(first, 40)
    box.place(second)
    assert (second.slot, second.num_cached) == (1, 40)
    assert box.slots.num_copies == 1


def test_a_copy_spares_a_long_text_that_another_one_only_begins_like() -> None:
    box = Box()
    box.serve(PROMPT)
    assert box.serve([*PROMPT[:60], 7, 7]) == 60
    assert box.serve([*PROMPT, 1, 1]) == 100


def test_without_an_empty_slot_a_text_is_cut_by_one_that_uses_half_of_it_rather_than_another_given_up() -> None:
    box = Box()
    texts = [list(range(start, start + 60)) for start in (1000, 2000, 3000)]
    running = [sequence(text) for text in texts]
    for each in running:
        box.place(each)
        box.read(each)
    for each in running:
        box.end(each)
    assert box.serve([*texts[2][:32], 7, 7]) == 32
    assert [box.serve(text) for text in texts] == [58, 58, 32]
    assert box.slots.free.num_evictions == 0


def test_what_one_key_has_sent_speeds_up_no_other_unless_configured() -> None:
    box = Box()
    box.serve(PROMPT, key="a")
    assert box.serve(PROMPT, key="b") == 0
    assert box.serve(PROMPT, key="a") == 98
    shared = Box(by_key=False)
    shared.serve(PROMPT, key="a")
    assert shared.serve(PROMPT, key="b") == 98


def test_an_idle_slot_is_emptied_when_its_time_is_over() -> None:
    box = Box()
    box.serve(PROMPT, now=1.0)
    assert box.slots.tidy_at() == 1.0 + KEEP_S
    box.slots.tidy(1.0 + KEEP_S)
    assert box.obey() == [Trim(0, 0)]
    assert box.slots.tidy_at() is None
    assert box.serve(PROMPT, now=12.0) == 0


def test_a_busy_engine_reuses_nothing_whose_time_is_over() -> None:
    box = Box()
    box.serve(PROMPT, now=1.0)
    assert box.serve(PROMPT, now=1.0 + KEEP_S) == 0


def test_being_copied_renews_the_time() -> None:
    box = Box()
    box.serve(PROMPT, now=0.0)
    box.place(sequence([*PROMPT[:40], 7, 7]), now=9.0)
    assert box.slots.tidy_at() == 9.0 + KEEP_S


def test_without_a_time_nothing_is_kept_and_neither_is_what_failed() -> None:
    off = Box(keep_s=0.0)
    off.serve(PROMPT)
    assert off.serve(PROMPT) == 0
    box = Box()
    failed = sequence(PROMPT)
    box.place(failed)
    box.read(failed)
    box.end(failed, keep=False)
    assert box.slots.memory.committed_bytes == 0
    assert box.serve(PROMPT) == 0


def test_without_an_empty_slot_the_idle_one_not_used_for_longest_is_taken() -> None:
    box = Box()
    texts = [list(range(start, start + 40)) for start in (1000, 2000, 3000)]
    running = [sequence(text) for text in texts]
    for each in running:
        box.place(each)
        box.read(each)
    for each in reversed(running):
        box.end(each)
    box.serve(PROMPT)
    assert [box.serve(text) for text in texts] == [38, 38, 0]


def test_nothing_is_kept_while_the_memory_is_nearly_full() -> None:
    box = Box(pages=16)
    large, small = sequence(list(range(100)), max_tokens=60), sequence(list(range(1000, 1040)), max_tokens=1)
    box.place(large)
    box.place(small)
    box.read(small)
    box.read(large)
    large.tokens.extend(range(50))
    box.read(large)
    assert box.slots.memory.committed_bytes == 13 * PAGE
    box.end(small)
    assert len(box.slots.free.kept) == 1
    tight = Box(pages=11)
    tight.serve(list(range(150)))
    assert not tight.slots.free.kept


def test_idle_slots_give_up_their_memory_for_one_that_runs() -> None:
    box = Box(pages=12)
    box.serve(list(range(1000, 1080)))
    box.serve(list(range(2000, 2064)))
    assert box.slots.memory.committed_bytes == 9 * PAGE
    box.place(sequence(list(range(88)), max_tokens=8))
    assert list(box.slots.free.kept) == [1]
    assert box.slots.free.num_evictions == 1


def test_without_room_for_a_copy_beside_it_a_long_text_is_used_in_place() -> None:
    box = Box(pages=12)
    box.serve(list(range(150)))
    assert box.slots.memory.committed_bytes == 10 * PAGE
    other = sequence([*range(40), *[7] * 40])
    box.place(other)
    assert (other.slot, other.num_cached, box.slots.num_copies) == (0, 40, 0)
    assert box.slots.memory.committed_bytes == 3 * PAGE


def test_a_sequence_waits_for_a_slot_and_for_memory_in_which_all_can_go_on() -> None:
    box = Box(pages=12)
    sequences = [sequence(list(range(30)), max_tokens=40) for _ in range(5)]
    assert [box.place(each) for each in sequences] == [True, True, True, False, False]
    box.end(sequences[0])
    assert not box.place(sequence(list(range(60)), max_tokens=8))
    assert box.place(sequences[3])
    sequences[3].tokens.extend([0] * 4)
    box.end(sequences[2])
    assert not box.slots.fits(sequences[4])


def test_growth_takes_the_memory_of_idle_slots_and_says_what_is_missing() -> None:
    box = Box(pages=12)
    box.serve(list(range(1000, 1040)))
    each = sequence(list(range(100)), max_tokens=28)
    box.place(each)
    assert box.slots.shortage([(each, 129)]) == 0
    assert len(box.slots.free.kept) == 1
    assert box.slots.shortage([(each, 160)]) == 0
    assert not box.slots.free.kept
    assert box.slots.shortage([(each, 193)]) == PAGE


def test_idle_time_keeps_a_text_once_and_gives_back_what_was_taken_back() -> None:
    box = Box(pages=20)
    running, short, long = (sequence(tokens) for tokens in (PROMPT[60:80], PROMPT[:48], [*PROMPT[:48], *PROMPT]))
    for each in (running, short, long):
        box.place(each)
    for each in (short, long):
        box.read(each)
        box.end(each)
    box.slots.tidy(0.0)
    assert box.slots.num_compactions == 1
    assert box.obey() == [Trim(1, 0)]
    box.read(running, rejected=60)
    box.slots.tidy(0.0)
    assert box.obey() == [Trim(0, 20)]
    assert (box.slots.num_compactions, box.slots.free.num_evictions) == (2, 0)


def test_above_the_limit_idle_time_evicts_what_was_not_used_for_longest() -> None:
    box = Box(pages=10)
    box.serve(list(range(1000, 1064)))
    box.serve(list(range(2000, 2048)))
    assert box.slots.unused_bytes == 7 * PAGE
    box.slots.tidy(0.0)
    assert list(box.slots.free.kept) == [1]
    assert box.slots.free.num_evictions == 1
    assert box.slots.unused_bytes <= EVICT_ABOVE * box.slots.budget_bytes


def test_of_texts_that_begin_alike_and_come_at_once_one_is_read() -> None:
    box = Box()
    first, second, third = (sequence([*PROMPT[:80], number, 7, 7]) for number in range(3))
    for each in (first, second, third):
        box.place(each)
        assert each.num_cached == 0
    assert box.join(first)
    assert not box.join(second, first)
    box.read(first, 40)
    assert not box.join(second, first)
    box.read(first, 41)
    assert box.join(second, first)
    assert box.join(third, first, second)
    assert (second.num_cached, third.num_cached) == (80, 80)
    assert (first.num_reused, second.num_reused, third.num_reused) == (0, 80, 80)
    assert (box.slots.num_reuses, box.slots.num_reused_tokens) == (2, 160)


def test_nobody_waits_for_a_beginning_of_little_use_or_of_another_key() -> None:
    box = Box()
    first, second, third = sequence(PROMPT[:60]), sequence([*PROMPT[:50], 7, 7]), sequence(PROMPT[:60], key="a")
    for each in (first, second, third):
        box.place(each)
    assert box.join(third, first)
    box.read(first, 34)
    assert box.join(second, first)
    assert second.num_cached == 34


def test_what_was_begun_is_read_on() -> None:
    box = Box()
    first, second = sequence(PROMPT), sequence(PROMPT)
    for each in (first, second):
        box.place(each)
    box.read(second, 10)
    assert box.join(second, first)
    box.read(first)
    assert box.join(second)
    assert second.num_cached == 10


def test_what_is_read_again_was_read_once_for_the_same_answer() -> None:
    box = Box()
    each = sequence(PROMPT)
    box.place(each)
    box.read(each)
    box.end(each)
    assert each.num_cached == 0
    box.place(each)
    assert (each.num_cached, each.num_reused) == (98, 0)


def test_the_statistics_tell_waste_from_the_ends_of_pages() -> None:
    box = Box(pages=20)
    assert box.slots.statistics()["kv_fragmentation_ratio"] == 0.0
    box.serve(PROMPT[:48])
    other = sequence([*PROMPT[:40], *PROMPT[:16]])
    box.place(other)
    box.read(other, rejected=10)
    numbers = box.slots.statistics()
    assert (numbers["kv_budget_bytes"], numbers["kv_bytes"]) == (20 * PAGE, 5 * PAGE)
    assert numbers["kv_waste_ratio"] == 1 / 20  # a page of what was taken back
    assert numbers["kv_fragmentation_ratio"] == 1 - 56 / 80
    assert (numbers["prefix_hits_total"], numbers["prefix_tokens_total"], numbers["prefixes"]) == (1, 40, 0)


@given(st.lists(st.integers(0, 1), max_size=300), st.integers(0, 300), st.integers(0, 300))
def test_the_common_length_is_that_of_the_first_difference(tokens: list[int], at: int, most: int) -> None:
    most = min(most, len(tokens))
    other = [2 if place == at else token for place, token in enumerate(tokens)]
    assert common_length(tokens, other, most) == min(at, most)
