"""Who runs next in the language model, and with how many tokens.

Pure. Continuous batching with chunked prefill: each step first gives every begun answer its next token, then reads as
much of the unread prompts as the allowance pays for, in every second step those first whose turn it is
(``engine.llm.waiting``), in the others the shortest; a step that reads several is short even if nobody decodes, for the
sake of their first tokens. A sequence has a slot or waits for one. It goes back to waiting, with all its tokens, when
the memory is short (the one that is due last; the first one stays, so somebody always gets on) or when its reader is
slow and others wait; what was in its slot is read again later. The queue is bounded outside, by the Admission that lets
requests in.

A prompt is never cut so that one token stands alone: a single token meets other kernels, and measured on every cut of
a prompt those were the only ones that changed the logits after it (two best tokens 0.10 nats apart became 0.005).
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from operator import attrgetter
from typing import NamedTuple

from engine.errors import RequestError
from engine.llm.cost import SMALLEST_CHUNK, StepCost
from engine.llm.deadlines import Deadlines
from engine.llm.forecast import Forecast
from engine.llm.ledger import Ledger
from engine.llm.sequence import Sequence
from engine.llm.slots import Slots
from engine.llm.waiting import Waiting, due_at

PARKED_GRACE_S = 1.0  # so long a parked sequence keeps its slot while others wait for one
READING_S = 0.2  # of one step, while several prompts are read and nobody waits for a next token


class Share(NamedTuple):
    """One sequence's part of a step: its next ``num_tokens`` unread tokens."""

    sequence: Sequence
    num_tokens: int


class Plan(NamedTuple):
    """What is to be done next: tell those who were too late, run the shares."""

    shares: list[Share]
    late: list[tuple[Sequence, RequestError]]


class Scheduler:
    """Those who have a slot, those who wait for one, and the plan of each step.

    max_chunk: tokens of one sequence in a step. What it decides about the slots is among ``slots.memory``, to be
    carried out before the next run.
    """

    def __init__(self, slots: Slots, cost: StepCost, *, max_chunk: int) -> None:
        self.slots = slots
        self.running: list[Sequence] = []  # in the order in which they were given a slot
        self.num_preempted = 0  # these two only grow: sequences sent back to wait, and why
        self.num_parked_out = 0
        self._ledger = Ledger()
        self.waiting = Waiting(self._ledger)
        self.forecast = Forecast(slots.num_slots, cost)
        self._deadlines = Deadlines()
        self._shortest_first = False
        self._cost = cost
        self._max_chunk = max_chunk

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        sequence.due_at = due_at(sequence, self._cost.read_s(sequence.num_prompt_tokens))
        self._ledger.enter(sequence.key)
        self.waiting.add(sequence)
        self._deadlines.add(sequence)

    def ready(self, now: float) -> bool:
        """Whether ``plan`` would give anything to do."""
        if any(not sequence.parked for sequence in self.running):
            return True
        if self._next_that_fits() is not None or self._deadlines.has_late(now, self._cost.read_s):
            return True
        way_at = self._way_at()
        return way_at is not None and way_at <= now

    def wake_at(self) -> float | None:
        """When ``ready`` will turn true by itself: as somebody cannot be in time any more, or a parked sequence must
        make way."""
        instants = (self._deadlines.next_at(self._cost.read_s), self._way_at())
        return min((at for at in instants if at is not None), default=None)

    def decoding(self) -> bool:
        """Whether a reader waits for the next token of an answer that has begun."""
        return any(sequence.decoding and not sequence.parked for sequence in self.running)

    def plan(self, allowance_s: float, now: float) -> Plan:
        """The next step: decodes, then prefill within the allowance. Gives free slots to those who wait."""
        late = self._end_late(allowance_s, now)
        self._make_way(now)
        self._give_slots(now)
        return Plan(self._spare_memory(self._share(allowance_s, now), now), late)

    def advance(self, shares: SequenceOf[Share]) -> None:
        """The step was run: its tokens are in the slots."""
        for sequence, num_tokens in shares:
            sequence.num_cached += num_tokens
            self.slots.grew(sequence, sequence.num_cached)
            self._ledger.settle(sequence, ended=False)

    def remove(self, sequence: Sequence, now: float, *, keep: bool = True) -> None:
        """Take a sequence out, wherever it stands. keep: what was read of it is sound and may be of use again."""
        if sequence.slot is not None:
            self._take_slot(sequence, now, keep=keep)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            return
        if sequence.num_output_tokens:
            self.forecast.ended(sequence)
        self._ledger.settle(sequence, ended=True)
        self._ledger.leave(sequence.key)
        self._deadlines.discard(sequence)

    def work_s(self) -> float:
        """How long all that is inside will take. Any thread: it may be a moment old."""
        return self.forecast.work_s([*self.running, *self.waiting])

    def _end_late(self, allowance_s: float, now: float) -> list[tuple[Sequence, RequestError]]:
        def first_token_s(sequence: Sequence) -> float:
            ahead = self.waiting.ahead_of(sequence)
            return self.forecast.first_token_s(sequence, running=self.running, ahead=ahead, allowance_s=allowance_s)

        late = self._deadlines.judge(now, self._cost.read_s, first_token_s)
        for sequence, _ in late:
            self.remove(sequence, now)
        return late

    def _make_way(self, now: float) -> None:
        """Send parked sequences back to wait while others could use their slots."""
        while True:
            parked = [(at, number) for number, each in enumerate(self.running) if (at := each.parked_at) is not None]
            longest_at, number = min(parked, default=(now, 0))
            if longest_at + PARKED_GRACE_S > now:
                return
            if self.waiting.next() is None or self._next_that_fits() is not None:
                return
            self.num_parked_out += 1
            self._send_back(self.running[number], now)

    def _way_at(self) -> float | None:
        """When ``_make_way`` has something to do; None: nobody is in anybody's way."""
        if not self.running or self.waiting.next() is None:
            return None
        parked = [sequence.parked_at for sequence in self.running if sequence.parked_at is not None]
        return min(parked) + PARKED_GRACE_S if parked else None

    def _give_slots(self, now: float) -> None:
        while (sequence := self._next_that_fits()) is not None:
            self.waiting.remove(sequence)
            self.slots.place(sequence, now)
            self._ledger.prepay(sequence, self.forecast.answer_tokens(sequence))
            self.running.append(sequence)

    def _share(self, allowance_s: float, now: float) -> list[Share]:
        active = [sequence for sequence in self.running if not sequence.parked]
        shares = [Share(sequence, 1) for sequence in active if sequence.decoding]
        reading = [sequence for sequence in active if not sequence.decoding]
        if shares:  # somebody waits for the next token; else a longer step keeps nobody waiting
            num_before = sum(sequence.num_cached for sequence, _ in shares)
            allowance_s = self._cost.planned_s(allowance_s, len(shares), num_before)
        elif len(reading) > 1:  # some wait for the first one, and whoever comes meanwhile for the end of this step
            allowance_s = min(allowance_s, READING_S)
        least = SMALLEST_CHUNK  # whatever the allowance, so that somebody gets on
        ahead: list[Sequence] = []
        for sequence in self._in_turn(reading):
            if not self.slots.join(sequence, ahead, now):
                continue
            budget = max(least, self._cost.chunk_tokens(allowance_s, sequence.num_cached))
            if num_tokens := _piece(sequence.num_unread, min(budget, self._max_chunk)):
                shares.append(Share(sequence, num_tokens))
                ahead.append(sequence)
                allowance_s = max(0.0, allowance_s - self._cost.read_s(num_tokens, sequence.num_cached))
                least = 0
        return shares

    def _in_turn(self, reading: list[Sequence]) -> list[Sequence]:
        """Who is read before whom: in one step those whose turn it is, in the next the shortest. So neither do short
        prompts wait until long ones that are due have been read, nor those for an end of short ones."""
        self._shortest_first = not self._shortest_first and len(reading) > 1
        return sorted(reading, key=attrgetter("num_unread") if self._shortest_first else self.waiting.rank)

    def _spare_memory(self, shares: list[Share], now: float) -> list[Share]:
        """The shares that the memory has room for: until it has, the one that is due last goes back to wait."""
        while self.slots.shortage(shares) and len(self.running) > 1:
            victim = max(self.running, key=lambda each: (each.parked, each.due_at))
            self.num_preempted += 1
            self._send_back(victim, now)
            shares = [share for share in shares if share.sequence is not victim]
        return shares

    def _next_that_fits(self) -> Sequence | None:
        """The one that comes next, if it can have a slot; nobody passes it, so it cannot starve."""
        sequence = self.waiting.next()
        return sequence if sequence is not None and self.slots.fits(sequence) else None

    def _send_back(self, sequence: Sequence, now: float) -> None:
        self._take_slot(sequence, now, keep=True)
        self.waiting.add(sequence)

    def _take_slot(self, sequence: Sequence, now: float, *, keep: bool) -> None:
        self.running.remove(sequence)
        self.slots.give_back(sequence, now, keep=keep)


def _piece(num_unread: int, budget: int) -> int:
    """How many of a prompt's unread tokens to read now: neither they nor what is left are one token; 0: not now."""
    if num_unread <= budget:
        return num_unread
    if budget < SMALLEST_CHUNK:
        return 0
    return budget - 1 if num_unread - budget == 1 else budget
