"""Sequences and a scheduler for tests, and a step that pretends to have been run."""

from __future__ import annotations

import mmap
from typing import Any

from engine.llm.cost import StepCost
from engine.llm.detokenize import TextStream
from engine.llm.kv import FLOAT_BYTES, KvShape, page_aligned_length
from engine.llm.sampler import Sampler
from engine.llm.sampling import Choice, Sampling
from engine.llm.scheduler import Plan, Scheduler
from engine.llm.sequence import Sequence
from engine.llm.slots import Slots

END = 1
TOKEN_S = 0.002  # of reading


def sequence(num_prompt: int = 3, max_tokens: int = 4, *, arrived_at: float = 0.0, **fields: Any) -> Sequence:
    """fields: of Sequence."""
    return Sequence(
        deliver=lambda event: None,
        arrived_at=arrived_at,
        tokens=[0] * num_prompt,
        max_tokens=max_tokens,
        sampler=Sampler(Sampling(), lambda: 0.0),
        text=TextStream(),
        end_ids={END},
        **fields,
    )


def step_cost(slots: int) -> StepCost:
    """A step of one row takes 10 ms, of all rows 40 ms."""
    return StepCost(slots, one_row_s=0.01, all_rows_s=0.04, token_s=TOKEN_S)


def scheduler(slots: int = 2, max_chunk: int = 512, max_held: int = 10_000, keep_s: float = 0.0) -> Scheduler:
    """max_held: tokens that the memory is for. keep_s: see Slots."""
    shape = KvShape(1, slots, 1, page_aligned_length(10_000), head_dim=mmap.PAGESIZE // FLOAT_BYTES)
    memory = Slots(shape, shape.committed_bytes(max_held), keep_s=keep_s)
    return Scheduler(memory, step_cost(slots), max_chunk=max_chunk)


def run(queue: Scheduler, plan: Plan) -> None:
    """Pretend that the step was run; every sequence that is read to its end chooses token 5."""
    queue.advance(plan.shares)
    for each, _ in plan.shares:
        if each.num_unread == 0:
            progress = each.take(Choice(5), b"x")
            if progress and progress.finish_reason:
                queue.remove(each, 0.0)


def step(queue: Scheduler, allowance_s: float = 1.0, now: float = 0.0) -> list[tuple[Sequence, int]]:
    """Plan a step and run it; its shares."""
    plan = queue.plan(allowance_s, now)
    run(queue, plan)
    return [tuple(share) for share in plan.shares]
