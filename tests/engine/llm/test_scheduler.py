"""The scheduler: nobody is lost, run twice or starved, keys share alike; decodes come first; chunks keep to what others
may be made to wait."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.llm.cost import SMALLEST_CHUNK
from engine.llm.scheduler import PARKED_GRACE_S, READING_S
from engine.llm.sequence import Sequence
from engine.llm.slot_memory import Trim
from engine.llm.waiting import PATIENCE_S, STRETCH
from tests.engine.llm.sequences import TOKEN_S, run, scheduler, sequence, step

MAX_HELD = 150  # of the random lives: sometimes one sequence alone, always the longest


def test_decodes_come_before_a_prompt_is_read_and_the_prompt_is_cut_to_the_allowance() -> None:
    queue = scheduler()
    first, second = sequence(), sequence(num_prompt=200)
    queue.add(first)
    step(queue)
    queue.add(second)
    assert step(queue, allowance_s=0.1) == [(first, 1), (second, 50)]
    assert step(queue, allowance_s=0.0) == [(first, 1), (second, 3)]


def test_reading_is_planned_shorter_where_steps_differ_but_only_if_somebody_waits_for_its_next_token() -> None:
    queue = scheduler()
    for number in range(200):
        queue._cost.observe([0], [(50, 0)], 0.01 + 50 * TOKEN_S * (0.5 if number % 2 else 1.5))
    alone = queue._cost.chunk_tokens(0.1)
    first, second = sequence(num_prompt=200, max_tokens=9), sequence(num_prompt=200)
    queue.add(first)
    assert step(queue, allowance_s=0.1) == [(first, alone)]
    while not first.decoding:
        step(queue)
    queue.add(second)
    [(_, one), (_, beside)] = step(queue, allowance_s=0.1)
    assert one == 1
    assert alone / 2 - 1 <= beside < alone


def test_prompts_that_are_read_together_wait_for_no_long_step_of_each_other_though_nobody_decodes() -> None:
    queue = scheduler(max_chunk=1000)
    first, second = sequence(num_prompt=900), sequence(num_prompt=20)
    queue.add(first)
    assert step(queue, allowance_s=0.5) == [(first, 250)]  # alone: nobody waits
    queue.add(second)
    assert step(queue, allowance_s=0.5) == [(second, 20), (first, round(READING_S / TOKEN_S) - 20)]


def test_a_chunk_is_never_longer_than_the_decoder_takes() -> None:
    queue = scheduler(max_chunk=8)
    queue.add(sequence(num_prompt=20))
    assert [step(queue)[0][1] for _ in range(3)] == [8, 8, 4]


def test_no_cut_leaves_a_single_token() -> None:
    queue = scheduler(max_chunk=8)
    for num_prompt in (9, 1):
        queue.add(sequence(num_prompt=num_prompt, max_tokens=1))
    assert [[count for _, count in step(queue)] for _ in range(2)] == [[1, 7], [2]]


def test_prompts_are_read_in_the_order_of_their_slots() -> None:
    queue = scheduler()
    first, second = sequence(num_prompt=60), sequence(num_prompt=60)
    queue.add(first)
    queue.add(second)
    assert step(queue, allowance_s=0.1) == [(first, 50)]
    assert step(queue, allowance_s=0.1) == [(first, 10), (second, 40)]


def test_slots_are_given_first_come_first_served_the_lowest_first() -> None:
    queue = scheduler(slots=2)
    jobs = [sequence(max_tokens=2) for _ in range(4)]
    for job in jobs:
        queue.add(job)
    step(queue)
    assert [job.slot for job in jobs] == [0, 1, None, None]
    queue.remove(jobs[1], 0.0)
    queue.remove(jobs[0], 0.0)
    step(queue)
    assert [job.slot for job in jobs] == [None, None, 0, 1]


def test_a_slot_is_given_only_while_all_could_grow_on_in_memory() -> None:
    queue = scheduler(slots=3, max_held=100)
    first, large, small = sequence(3, 40, priority=0), sequence(70, 4, priority=0), sequence(1, 2)
    for each in (first, large, small):
        queue.add(each)
    step(queue)
    assert [each.slot for each in (first, large, small)] == [0, None, None]  # the small one does not pass the large
    first.parked_at = 0.0
    assert not queue.ready(0.0)
    queue.remove(first, 0.0)
    assert queue.ready(0.0)
    step(queue)
    assert [each.slot for each in (large, small)] == [0, 1]


def test_when_the_memory_is_short_the_one_due_last_goes_back_and_loses_no_token() -> None:
    queue = scheduler(slots=2, max_held=100)
    first, second = sequence(10, 90), sequence(12, 60, arrived_at=0.1)
    for each in (first, second):
        queue.add(each)
    while queue.num_preempted == 0:
        shares = step(queue)
    assert (second.slot, second.num_cached) == (None, 0)
    assert [each for each, _ in shares] == [first]
    made = second.num_output_tokens
    assert made > 30
    while first in queue.running:
        assert step(queue) == [(first, 1)]
    assert step(queue) == [(second, 12 + made)]  # all is read again, and the next token chosen
    assert (second.num_output_tokens, second.decoding) == (made + 1, True)
    while queue.running:
        step(queue)
    assert (first.num_output_tokens, second.num_output_tokens) == (90, 60)
    assert queue.num_preempted == 1


def test_a_parked_sequence_keeps_its_slot_and_is_passed_over() -> None:
    queue = scheduler()
    slow, fast = sequence(), sequence()
    queue.add(slow)
    queue.add(fast)
    step(queue)
    slow.parked_at = 0.0
    assert step(queue) == [(fast, 1)]
    fast.parked_at = 0.0
    assert not queue.ready(1000.0)
    assert not queue.decoding()
    slow.parked_at = None
    assert step(queue) == [(slow, 1)]


def test_the_same_prompt_is_read_once_and_nobody_waits_for_one_that_is_parked() -> None:
    queue = scheduler(keep_s=60.0)
    first, second = sequence(num_prompt=100), sequence(num_prompt=100, arrived_at=0.1)
    for each in (first, second):
        queue.add(each)
    assert step(queue, allowance_s=0.1) == [(first, 50)]
    assert step(queue, allowance_s=0.08) == [(first, 40)]
    first.parked_at = 0.0
    assert step(queue, allowance_s=0.1) == [(second, 10)]  # it has a copy of what was read
    assert (second.num_reused, second.num_output_tokens) == (90, 1)


def test_slow_readers_do_not_keep_their_slots_while_others_wait() -> None:
    queue = scheduler(slots=2)
    slow, slower, new = sequence(), sequence(), sequence()
    for each in (slow, slower):
        queue.add(each)
    step(queue)
    slow.parked_at, slower.parked_at = 2.0, 1.0
    queue.add(new)
    assert not queue.ready(1.9)
    assert queue.wake_at() == 1.0 + PARKED_GRACE_S
    assert queue.ready(2.0)
    plan = queue.plan(1.0, 2.0)
    assert [each for each, _ in plan.shares] == [new]
    assert (slower.slot, slow.slot, new.slot) == (None, 0, 1)
    assert queue.slots.memory.take_commands() == [Trim(1, 0)]
    run(queue, plan)
    assert not queue.waiting.next()
    slower.parked_at = None
    queue.remove(slow, 0.0)
    assert step(queue, now=2.0) == [(new, 1), (slower, 4)]


def test_a_short_prompt_is_read_before_long_ones_that_came_just_before() -> None:
    queue = scheduler(slots=3)
    long, short = sequence(num_prompt=400), sequence(num_prompt=40, arrived_at=1.0)
    queue.add(long)
    step(queue, allowance_s=0.1)
    queue.add(short)
    assert step(queue, allowance_s=0.1) == [(short, 40), (long, 10)]


def test_neither_short_prompts_nor_long_ones_that_are_due_wait_for_all_of_the_others() -> None:
    queue = scheduler(slots=5)
    long = sequence(num_prompt=400)
    short = [sequence(num_prompt=30, arrived_at=60.0) for _ in range(4)]
    for each in (long, *short):
        queue.add(each)
    assert step(queue, allowance_s=0.1) == [(short[0], 30), (short[1], 20)]
    assert step(queue, allowance_s=0.1) == [(short[0], 1), (long, 50)]
    assert step(queue, allowance_s=0.1) == [(short[0], 1), (short[1], 10), (short[2], 30), (short[3], 10)]
    assert [(each, num) for each, num in step(queue, allowance_s=0.1) if num > 1] == [(long, 50)]


@pytest.mark.parametrize("priority", [0, 1, 2])
def test_nobody_is_passed_by_what_comes_later_than_its_patience(priority: int) -> None:
    queue = scheduler(slots=1)
    patient = sequence(num_prompt=100, priority=priority)
    others = [sequence(1, 1, arrived_at=now, priority=0) for now in range(100)]
    for each in (patient, *others):
        queue.add(each)
    order = [shares[0][0] for _ in range(101) if (shares := step(queue))]
    patience_s = PATIENCE_S[priority] + STRETCH * 100 * TOKEN_S
    assert order.index(patient) == math.ceil(patience_s)


def test_a_key_that_floods_the_queue_does_not_keep_others_waiting() -> None:
    queue = scheduler(slots=2)
    for _ in range(50):
        queue.add(sequence(key="greedy"))
    step(queue)
    modest = sequence(key="modest", arrived_at=5.0)
    queue.add(modest)
    while modest.slot is None:
        assert len(queue.waiting) > 46
        step(queue, now=5.0)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_keys_that_always_want_more_get_the_same_whatever_they_ask(data: st.DataObject) -> None:
    """No key is ahead by more than its running sequences cost (Sheng et al., theorem 4.4)."""
    slots = 3
    queue = scheduler(slots=slots)
    sizes = {key: data.draw(st.tuples(st.integers(1, 100), st.integers(1, 30))) for key in "abc"}
    served = dict.fromkeys("abc", 0)
    for _ in range(400):
        for key, (num_prompt, max_tokens) in sizes.items():
            for _ in range(slots + 1 - sum(each.key == key for each in queue.waiting)):
                queue.add(sequence(num_prompt, max_tokens, key=key))
        plan = queue.plan(0.05, 0.0)
        before = [(share, share.sequence.decoding, len(share.sequence.tokens)) for share in plan.shares]
        run(queue, plan)
        for (each, num_tokens), decoding, length in before:
            served[each.key] += (0 if decoding else num_tokens) + 2 * (len(each.tokens) - length)
    largest = max(num_prompt + 2 * max_tokens for num_prompt, max_tokens in sizes.values())
    assert max(served.values()) - min(served.values()) <= 2 * slots * largest


def test_a_sequence_that_cannot_meet_its_deadline_is_told_before_it_costs_anything() -> None:
    queue = scheduler(slots=2)
    hopeless, fine = sequence(100, deadline_at=0.19), sequence(100, deadline_at=9.0)
    for each in (hopeless, fine):
        queue.add(each)
    assert queue.wake_at() == 0.0
    plan = queue.plan(1.0, 0.0)
    [(late, error)] = plan.late
    assert (late, plan.shares) == (hopeless, [(fine, 100)])
    assert error.message.startswith("the deadline is in 0.19 s, and the first token would take 0.20 s")


def test_a_deadline_that_passes_ends_a_sequence_wherever_it_stands() -> None:
    queue = scheduler(slots=1)
    running, waiting = sequence(deadline_at=5.0), sequence(deadline_at=4.0)
    for each in (running, waiting):
        queue.add(each)
    step(queue)
    assert queue.wake_at() == 4.0 - 3 * TOKEN_S  # what reading its prompt takes
    running.parked_at = 3.5  # its slot would be free for another in a second
    assert queue.ready(4.0)
    plan = queue.plan(1.0, 4.0)
    assert [(each, error.message) for each, error in plan.late] == [
        (waiting, "the deadline passed before the first token; allow more time or ask for a shorter answer")
    ]
    plan = queue.plan(1.0, 5.0)
    assert queue.slots.memory.take_commands() == [Trim(0, 0)]
    assert [(each, error.message) for each, error in plan.late] == [
        (running, "the deadline passed after 1 tokens; allow more time or ask for a shorter answer")
    ]
    assert not queue.ready(9.0)
    assert queue.wake_at() is None


def test_who_is_parked_is_told_as_soon_as_it_cannot_be_in_time() -> None:
    queue = scheduler()
    parked = sequence(num_prompt=100, deadline_at=5.0)
    queue.add(parked)
    assert queue.plan(0.0, 0.0).late == []
    parked.parked_at = 0.0
    at = queue.wake_at()
    assert at == pytest.approx(5.0 - 100 * TOKEN_S)
    assert not queue.ready(4.79)
    assert queue.plan(0.0, 4.79) == ([], [])
    assert queue.ready(4.81)
    assert [each for each, _ in queue.plan(0.0, 4.81).late] == [parked]


def test_removing_what_is_not_there_changes_nothing() -> None:
    queue = scheduler()
    stranger = sequence()
    queue.remove(stranger, 0.0)
    queue.add(stranger)
    queue.remove(stranger, 0.0)
    queue.remove(stranger, 0.0)
    assert not queue.ready(0.0)


class Life(RuleBasedStateMachine):
    """Sequences come, run, are parked and cancelled in any order, with little memory."""

    keep_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.queue = scheduler(slots=3, max_held=MAX_HELD, keep_s=self.keep_s)
        self.alive: list[Sequence] = []
        self.now = 0.0

    @rule(
        num_prompt=st.integers(1, 120),
        max_tokens=st.integers(1, 30),
        key=st.sampled_from("ab"),
        priority=st.integers(0, 2),
        time_s=st.none() | st.floats(0, 2),
    )
    def arrive(self, num_prompt: int, max_tokens: int, key: str, priority: int, time_s: float | None) -> None:
        deadline_at = None if time_s is None else self.now + time_s
        fields = {"arrived_at": self.now, "key": key, "priority": priority, "deadline_at": deadline_at}
        new = sequence(num_prompt, max_tokens, **fields)
        self.alive.append(new)
        self.queue.add(new)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.alive))
        self.queue.remove(gone, self.now)
        self.queue.slots.memory.take_commands()
        self.alive.remove(gone)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), parked=st.booleans())
    def park(self, data: st.DataObject, parked: bool) -> None:
        data.draw(st.sampled_from(self.alive)).parked_at = self.now if parked else None

    @rule(allowance_s=st.sampled_from([0.0, 0.02, 0.1]), took_s=st.sampled_from([0.01, 0.3, 2.0]))
    def run(self, allowance_s: float, took_s: float) -> None:
        ready = self.queue.ready(self.now)
        before = {each: len(each.tokens) for each in self.alive}
        plan = self.queue.plan(allowance_s, self.now)
        if plan.shares or plan.late or self.queue.slots.memory.take_commands():
            assert ready
        else:
            assert not self.queue.ready(self.now)  # or the device would turn without end
        assert {each: len(each.tokens) for each in before} == before
        for each, _ in plan.late:
            self.alive.remove(each)
        decoding = {each for each in self.queue.running if each.decoding and not each.parked}
        shares = dict(plan.shares)
        assert len(shares) == len(plan.shares)
        assert decoding <= shares.keys() <= set(self.queue.running)
        pieces = [(each, count) for each, count in plan.shares if each not in decoding]
        assert sum(count for _, count in pieces) <= max(SMALLEST_CHUNK, allowance_s / TOKEN_S)
        assert all(count > 1 or each.num_prompt_tokens == 1 for each, count in pieces)
        run(self.queue, plan)
        assert self.queue.slots.memory.committed_bytes <= self.queue.slots.budget_bytes
        self.queue.slots.memory.take_commands()
        self.now += took_s
        self.alive = [each for each in self.alive if each.slot is not None or each in self.queue.waiting]

    @invariant()
    def nobody_is_lost_or_doubled(self) -> None:
        inside = [*self.queue.waiting, *self.queue.running]
        assert sorted(map(id, inside)) == sorted(map(id, self.alive))
        assert len(self.queue.waiting) + len(self.queue.running) == len(inside)
        slots = [each.slot for each in self.queue.running]
        assert None not in slots
        assert len(set(slots)) == len(slots) <= 3
        assert all(each.num_cached == 0 for each in self.queue.waiting)

    def teardown(self) -> None:
        """Whatever happened before: unparked, everyone ends."""
        for each in self.alive:
            each.parked_at = None
        most_steps = 20 * sum(each.most_tokens for each in self.alive)
        for _ in range(most_steps):
            if not self.queue.ready(self.now):
                break
            step(self.queue, 0.0, self.now)
        assert not list(self.queue.waiting)
        assert not self.queue.running


class SharingLife(Life):
    """All prompts begin alike: who waits for whom to be read, copies and is sent back gets on all the same."""

    keep_s = 5.0


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
SharingLife.TestCase.settings = Life.TestCase.settings
TestLife = Life.TestCase
TestSharingLife = SharingLife.TestCase
