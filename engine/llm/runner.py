"""The language model's lane on a device: plans a step, runs the decoder, chooses tokens, says what came of it.

Owns the meeting of scheduler, decoder and sampler, on the device's thread. Knows neither HTTP nor ONNX Runtime: the
decoder is handed in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as SequenceOf
from itertools import zip_longest
from typing import Protocol

from engine.errors import Kind, RequestError
from engine.job import Delivery
from engine.llm.cost import StepCost
from engine.llm.decoder import RowLogits, RowWork
from engine.llm.sampler import BadLogitsError
from engine.llm.scheduler import Scheduler, Share
from engine.llm.sequence import Sequence
from engine.llm.slot_memory import Copy
from engine.llm.slots import Slots
from engine.llm.speculate import Drafts, make_drafts

_log = logging.getLogger(__name__)


class Decodes(Protocol):
    """What the lane needs of a decoder; see ``engine.llm.decoder.Decoder``."""

    slots: int

    def run(self, rows: SequenceOf[RowWork]) -> list[list[RowLogits]]: ...

    def copy(self, source: int, target: int, tokens: int) -> None: ...

    def trim(self, slot: int, tokens: int) -> None: ...

    def release(self, slot: int) -> None: ...


class TokenBytes(Protocol):
    """The bytes that a token stands for; empty for control tokens."""

    def __call__(self, token: int, /) -> bytes: ...


class LanguageLane:
    """Continuous batching over one decoder. See ``engine.job.Lane`` for the threads."""

    width = 1

    def __init__(
        self,
        name: str,
        decoder: Decodes,
        token_bytes: TokenBytes,
        cost: StepCost,
        *,
        max_stall_s: float,
        max_chunk: int,
        slots: Slots,
        speculation: bool = False,
        deterministic: bool = False,
    ) -> None:
        """max_chunk: see Scheduler. slots: the decoder's. speculation: whether to draft tokens where it pays.

        deterministic: see Decoder; no token is read alone.
        """
        self.name = name
        self.max_stall_s = max_stall_s
        self.scheduler = Scheduler(slots, cost, max_chunk=max_chunk)
        self.run_s = 0.0  # inside the decoder: runs, and copies of keys and values that spare some
        self.num_prompt_tokens = 0  # read so far; what had to be read again counts again
        self.num_output_tokens = 0  # chosen so far
        self.num_bad_rows = 0  # answers that ended because the model gave no finite probabilities
        self.num_late = 0  # sequences that missed their deadline or could not meet it
        self.num_drafted = 0  # draft tokens that were read, and those of them that were right
        self.num_accepted = 0
        self._speculation = speculation
        self._least = 2 if deterministic else 1
        self._decoder = decoder
        self._token_bytes = token_bytes
        self._cost = cost

    def add(self, job: Sequence) -> None:
        self.scheduler.add(job)

    def drop(self, job: Sequence) -> None:
        self._end(job, keep=True)

    def tidy(self, now: float) -> None:
        self.scheduler.slots.tidy(now)
        self._obey_slots()

    def allot(self, num_bytes: int) -> None:
        """What keys and values may take from now on; what is kept beyond it is given back."""
        self.scheduler.slots.resize(num_bytes)
        self._obey_slots()

    def ready(self, now: float) -> bool:
        return self.scheduler.ready(now)

    def decoding(self) -> bool:
        return self.scheduler.decoding()

    def wake_at(self) -> float | None:
        instants = (self.scheduler.wake_at(), self.scheduler.slots.tidy_at())
        return min((at for at in instants if at is not None), default=None)

    def plan(self, now: float, allowance_s: float) -> _DecodeStep | None:
        shares, late = self.scheduler.plan(allowance_s, now)
        drafts = self._draft(shares, allowance_s)
        self._obey_slots()
        self.num_late += len(late)
        return _DecodeStep(self, shares, drafts, late) if shares or late else None

    def run(self, shares: SequenceOf[Share], drafts: Drafts) -> list[Delivery]:
        """Run one step of the decoder and choose a token for every share that is read to its end, and as many more as
        its draft has right."""
        rows = [_row(share, drafts.get(share.sequence, []), self._least) for share in shares]
        began_at = time.perf_counter()
        answers = self._decoder.run(rows)
        took_s = time.perf_counter() - began_at
        self.run_s += took_s
        decodes = [share.sequence.num_cached for share in shares if share.sequence.decoding]
        chunks = [(share.num_tokens, share.sequence.num_cached) for share in shares if not share.sequence.decoding]
        num_drafted = sum(map(len, drafts.values()))
        self._cost.observe(decodes, chunks, took_s, num_drafted=num_drafted)
        self.num_drafted += num_drafted
        self.num_prompt_tokens += sum(num_tokens for num_tokens, _ in chunks)
        if len(answers) != len(shares):
            raise RuntimeError(f"the decoder answered {len(answers)} rows for {len(shares)}")
        for sequence, draft in drafts.items():
            self.scheduler.slots.grew(sequence, sequence.num_cached + 1 + len(draft))
        self.scheduler.advance(shares)
        deliveries: list[Delivery] = []
        for (sequence, _), answer in zip(shares, answers, strict=True):
            self._choose(sequence, answer, drafts.get(sequence, []), deliveries)
        return deliveries

    def fail(self, shares: SequenceOf[Share], error: BaseException) -> list[Delivery]:
        """The step failed as a whole: its sequences end, the others are untouched."""
        answer = RequestError(Kind.FAILED, f"a step of the model failed ({type(error).__name__}); try again")
        for share in shares:
            self._end(share.sequence, keep=False)
        return [(share.sequence, answer) for share in shares]

    def _draft(self, shares: list[Share], allowance_s: float) -> Drafts:
        """Drafts for the step; none when they have no room in the memory."""
        drafts = make_drafts(shares, self._cost, allowance_s) if self._speculation else {}
        if not drafts:
            return {}
        growth = [(sequence, num_tokens + len(drafts.get(sequence, ()))) for sequence, num_tokens in shares]
        return {} if self.scheduler.slots.shortage(growth) else drafts

    def _choose(
        self, sequence: Sequence, answer: list[RowLogits], draft: list[int], deliveries: list[Delivery]
    ) -> None:
        """A token after each of the last tokens read, until one is not the draft's: what was read after it is void."""
        for logits, drafted in zip_longest(answer, draft):
            if not self._choose_one(sequence, logits, deliveries) or sequence.tokens[-1] != drafted:
                return
            sequence.num_cached += 1
            self.num_accepted += 1

    def _choose_one(self, sequence: Sequence, logits: RowLogits, deliveries: list[Delivery]) -> bool:
        """Whether the answer goes on."""
        try:
            choice = sequence.sampler.pick(logits)
            progress = sequence.take(choice, self._token_bytes(choice.token))
        except Exception as error:  # this row's fault alone: the rest of the step stands
            self.num_bad_rows += isinstance(error, BadLogitsError)
            _log.exception("%s: choosing a token failed", self.name, exc_info=not isinstance(error, BadLogitsError))
            self._end(sequence, keep=False)
            deliveries.append((sequence, RequestError(Kind.FAILED, f"no token could be chosen: {error}")))
            return False
        self.num_output_tokens += 1
        if progress is None:
            return True
        deliveries.append((sequence, progress))
        if progress.finish_reason is not None:
            self._end(sequence, keep=True)
        return progress.finish_reason is None

    def _end(self, sequence: Sequence, *, keep: bool) -> None:
        self.scheduler.remove(sequence, time.monotonic(), keep=keep)
        self._obey_slots()

    def _obey_slots(self) -> None:
        """Do with the decoder's memory what was decided about the slots."""
        for command in self.scheduler.slots.memory.take_commands():
            if isinstance(command, Copy):
                began_at = time.perf_counter()
                self._decoder.copy(*command)
                self.run_s += time.perf_counter() - began_at
            else:
                self._decoder.trim(*command)


class _DecodeStep:
    """One planned run of the decoder, and what those are told who were too late for it."""

    def __init__(self, lane: LanguageLane, shares: list[Share], drafts: Drafts, late: SequenceOf[Delivery]) -> None:
        self._lane = lane
        self._shares = shares
        self._drafts = drafts
        self._late = late

    def run(self) -> SequenceOf[Delivery]:
        return [*self._late, *(self._lane.run(self._shares, self._drafts) if self._shares else ())]

    def fail(self, error: BaseException) -> SequenceOf[Delivery]:
        return [*self._late, *self._lane.fail(self._shares, error)]


def _row(share: Share, draft: list[int], least: int) -> RowWork:
    """The share as the decoder takes it; logits are wanted only when nothing stays unread, and after drafted tokens.

    least: tokens of a row; for it tokens before the share's are read again.
    """
    sequence, num_tokens = share
    if sequence.slot is None:
        raise RuntimeError("a sequence without a slot was scheduled")
    end = sequence.num_cached + num_tokens
    start = max(0, min(sequence.num_cached, end - least))
    num_logits = int(end == len(sequence.tokens)) + len(draft)
    return RowWork(slot=sequence.slot, tokens=sequence.tokens[start:end] + draft, past=start, num_logits=num_logits)
