"""The scheduler: no sequence is lost, run twice or starved; decodes come first; chunks keep to the allowance."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.llm.cost import SMALLEST_CHUNK, StepCost
from engine.llm.detokenize import TextStream
from engine.llm.sampler import Sampler
from engine.llm.sampling import Choice, Sampling
from engine.llm.scheduler import Scheduler
from engine.llm.sequence import Sequence

END = 1
TOKEN_S = 0.002
MAX_HELD = 150  # of the random lives: sometimes one sequence alone, always the longest


def sequence(num_prompt: int = 3, max_tokens: int = 4) -> Sequence:
    return Sequence(
        deliver=lambda event: None,
        arrived_at=0.0,
        tokens=[0] * num_prompt,
        max_tokens=max_tokens,
        sampler=Sampler(Sampling(), lambda: 0.0),
        text=TextStream(),
        end_ids={END},
    )


def scheduler(slots: int = 2, max_chunk: int = 512, max_held: int = 10_000) -> Scheduler:
    cost = StepCost(slots, one_row_s=0.01, all_rows_s=0.04, token_s=TOKEN_S)
    return Scheduler(slots, cost, max_chunk=max_chunk, max_held=max_held)


def step(queue: Scheduler, allowance_s: float = 1.0) -> list[tuple[Sequence, int]]:
    """Plan a step and pretend it was run; every sequence that is read to its end chooses token 5."""
    shares = queue.plan(allowance_s)
    queue.advance(shares)
    for each, _ in shares:
        if each.num_unread == 0:
            progress = each.take(Choice(5), b"x")
            if progress and progress.finish_reason:
                queue.remove(each)
    return [tuple(share) for share in shares]


def test_decodes_come_before_a_prompt_is_read_and_the_prompt_is_cut_to_the_allowance() -> None:
    queue = scheduler()
    first, second = sequence(), sequence(num_prompt=200)
    queue.add(first)
    step(queue)
    queue.add(second)
    assert step(queue, allowance_s=0.1) == [(first, 1), (second, 50)]
    assert step(queue, allowance_s=0.0) == [(first, 1), (second, 3)]


def test_a_chunk_is_never_longer_than_the_decoder_takes() -> None:
    queue = scheduler(max_chunk=8)
    queue.add(sequence(num_prompt=20))
    assert [step(queue)[0][1] for _ in range(3)] == [8, 8, 4]


def test_no_cut_leaves_a_single_token() -> None:
    queue = scheduler(max_chunk=8)
    for num_prompt in (9, 1):
        queue.add(sequence(num_prompt=num_prompt, max_tokens=1))
    assert [[count for _, count in step(queue)] for _ in range(2)] == [[7, 1], [2]]


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
    queue.remove(jobs[1])
    queue.remove(jobs[0])
    step(queue)
    assert [job.slot for job in jobs] == [None, None, 0, 1]


def test_a_slot_is_given_only_while_all_could_grow_to_their_longest_in_memory() -> None:
    queue = scheduler(slots=3, max_held=20)
    first, large, small = sequence(3, 4), sequence(10, 4), sequence(1, 2)
    for each in (first, large, small):
        queue.add(each)
    step(queue)
    assert [each.slot for each in (first, large, small)] == [0, None, None]  # the small one does not pass the large
    first.parked = True
    assert not queue.ready()
    queue.remove(first)
    assert queue.ready()
    step(queue)
    assert [each.slot for each in (large, small)] == [0, 1]


def test_a_parked_sequence_keeps_its_slot_and_is_passed_over() -> None:
    queue = scheduler()
    slow, fast = sequence(), sequence()
    queue.add(slow)
    queue.add(fast)
    step(queue)
    slow.parked = True
    assert step(queue) == [(fast, 1)]
    fast.parked = True
    assert not queue.ready()
    assert not queue.decoding()
    slow.parked = False
    assert step(queue) == [(slow, 1)]


def test_removing_what_is_not_there_changes_nothing() -> None:
    queue = scheduler()
    stranger = sequence()
    assert queue.remove(stranger) is None
    queue.add(stranger)
    assert queue.remove(stranger) is None
    assert queue.remove(stranger) is None
    assert not queue.ready()


class Life(RuleBasedStateMachine):
    """Sequences come, run, are parked and cancelled in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = scheduler(slots=3, max_held=MAX_HELD)
        self.alive: list[Sequence] = []
        self.steps_since: dict[Sequence, int] = {}

    @rule(num_prompt=st.integers(1, 120), max_tokens=st.integers(1, 5))
    def arrive(self, num_prompt: int, max_tokens: int) -> None:
        new = sequence(num_prompt, max_tokens)
        self.alive.append(new)
        self.queue.add(new)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.alive))
        self.queue.remove(gone)
        self.alive.remove(gone)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), parked=st.booleans())
    def park(self, data: st.DataObject, parked: bool) -> None:
        data.draw(st.sampled_from(self.alive)).parked = parked

    @rule(allowance_s=st.sampled_from([0.0, 0.02, 0.1]))
    def run(self, allowance_s: float) -> None:
        decoding = {each for each in self.alive if each.slot is not None and each.decoding and not each.parked}
        shares = step(self.queue, allowance_s)
        assert {each for each, _ in shares if each in decoding} == decoding
        pieces = [(each, count) for each, count in shares if each not in decoding]
        assert sum(count for _, count in pieces) <= max(SMALLEST_CHUNK, allowance_s / TOKEN_S)
        assert all(count > 1 or each.num_prompt_tokens == 1 for each, count in pieces)
        assert len({each for each, _ in shares}) == len(shares)
        self.alive = [each for each in self.alive if each.slot is not None or each in self.queue.waiting]

    @invariant()
    def nobody_is_lost_or_doubled(self) -> None:
        inside = [*self.queue.waiting, *self.queue.running]
        assert sorted(map(id, inside)) == sorted(map(id, self.alive))
        slots = [each.slot for each in self.queue.running]
        assert None not in slots
        assert len(set(slots)) == len(slots) <= 3
        assert sum(each.most_tokens for each in self.queue.running) <= MAX_HELD

    def teardown(self) -> None:
        """Whatever happened before: unparked, everyone ends."""
        for each in self.alive:
            each.parked = False
        for _ in range(sum(each.num_unread + each.max_tokens for each in self.alive)):
            if not self.queue.ready():
                break
            step(self.queue, 0.0)
        assert not self.queue.waiting
        assert not self.queue.running


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase


@given(took=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 100), st.floats(0, 10)), max_size=50))
def test_no_measurement_makes_the_cost_model_useless(took: list[tuple[int, int, float]]) -> None:
    cost = StepCost(4, one_row_s=0.01, all_rows_s=0.04, token_s=TOKEN_S)
    for num_decodes, num_chunk_tokens, took_s in took:
        cost.observe(num_decodes, num_chunk_tokens, took_s)
    assert cost.token_s > 0
    assert cost.chunk_tokens(0.1) >= SMALLEST_CHUNK
    assert all(cost.decode_s(rows) > 0 for rows in range(1, 5))


def test_the_cost_model_learns_from_steps() -> None:
    cost = StepCost(4, one_row_s=0.01, all_rows_s=0.04, token_s=TOKEN_S)
    assert [round(cost.decode_s(rows), 3) for rows in range(5)] == [0.01, 0.01, 0.02, 0.03, 0.04]
    for _ in range(100):
        cost.observe(4, 0, 0.06)
        cost.observe(4, 20, 0.14)
    assert round(cost.decode_s(4), 3) == 0.06
    assert round(cost.token_s, 4) == 0.004
    assert cost.chunk_tokens(0.1) in (24, 25)
