"""Who runs next in the language model, and with how many tokens.

Pure. Continuous batching with chunked prefill: each step first gives every begun answer its next token, then reads as
much of the oldest unread prompts as the allowance pays for. Slots are given first come, first served, and only while
all that hold one could grow to their longest within the memory; a parked sequence keeps its slot and is passed over.
The queue is bounded outside, by the Admission that lets requests in.

A prompt is never cut so that one token stands alone: a single token meets other kernels, and measured on every cut of
a prompt those were the only ones that changed the logits after it (two best tokens 0.10 nats apart became 0.005).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf
from heapq import heappop, heappush
from typing import NamedTuple

from engine.llm.cost import SMALLEST_CHUNK, StepCost
from engine.llm.sequence import Sequence


class Share(NamedTuple):
    """One sequence's part of a step: its next ``num_tokens`` unread tokens."""

    sequence: Sequence
    num_tokens: int


class Scheduler:
    """Slots, the queue before them, and the plan of each step.

    max_chunk: tokens of one sequence in one step. max_held: tokens that all slots together may come to hold, at least
    as many as the longest sequence has.
    """

    def __init__(self, slots: int, cost: StepCost, *, max_chunk: int, max_held: int) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in the order in which they were given a slot
        self._free = list(range(slots))  # a heap: the lowest is given first, a run covers all slots up to the highest
        self._cost = cost
        self._max_chunk = max_chunk
        self._room = max_held  # tokens that nobody with a slot can come to hold

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def ready(self) -> bool:
        """Whether ``plan`` would give a step."""
        return self._next_fits() or any(not sequence.parked for sequence in self.running)

    def decoding(self) -> bool:
        """Whether a reader waits for the next token of an answer that has begun."""
        return any(sequence.decoding and not sequence.parked for sequence in self.running)

    def plan(self, allowance_s: float) -> list[Share]:
        """The shares of the next step: decodes, then prefill within the allowance. Gives free slots to the waiting."""
        self._give_slots()
        active = [sequence for sequence in self.running if not sequence.parked]
        shares = [Share(sequence, 1) for sequence in active if sequence.decoding]
        budget = self._cost.chunk_tokens(allowance_s)
        for sequence in active:
            if not sequence.decoding and (num_tokens := _piece(sequence.num_unread, min(budget, self._max_chunk))):
                shares.append(Share(sequence, num_tokens))
                budget -= num_tokens
        return shares

    def advance(self, shares: SequenceOf[Share]) -> None:
        """The step was run: its tokens are in the slots."""
        for sequence, num_tokens in shares:
            sequence.num_cached += num_tokens

    def remove(self, sequence: Sequence) -> int | None:
        """Take a sequence out, wherever it stands; the slot that it gives back, None if it had none."""
        slot = sequence.slot
        if slot is not None:
            self.running.remove(sequence)
            self._room += sequence.most_tokens
            heappush(self._free, slot)
            sequence.slot = None
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        return slot

    def _next_fits(self) -> bool:
        """Whether the first that waits can have a slot; nobody passes it, so it cannot starve."""
        return bool(self._free and self.waiting) and self.waiting[0].most_tokens <= self._room

    def _give_slots(self) -> None:
        while self._next_fits():
            sequence = self.waiting.popleft()
            sequence.slot = heappop(self._free)
            self._room -= sequence.most_tokens
            self.running.append(sequence)


def _piece(num_unread: int, budget: int) -> int:
    """How many of a prompt's unread tokens to read now: neither they nor what is left are one token; 0: not now."""
    if num_unread <= budget:
        return num_unread
    if budget < SMALLEST_CHUNK:
        return 0
    return budget - 1 if num_unread - budget == 1 else budget
