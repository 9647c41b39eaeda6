"""How long the work inside a language model will take, by what was measured: what deadlines and Retry-After stand on.

Pure. How long an answer gets is not known before it ends, so the mean of those that have ended stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from engine.llm.cost import SMALLEST_CHUNK, StepCost
from engine.llm.sequence import Sequence

_FIRST_GUESS_TOKENS = 100.0  # of an answer, until some have ended
_SMOOTHING = 0.1  # weight of the newest answer


class Forecast:
    """Estimates in seconds. slots: how many sequences run at once."""

    def __init__(self, slots: int, cost: StepCost) -> None:
        self._slots = slots
        self._cost = cost
        self._answer_tokens = _FIRST_GUESS_TOKENS

    def ended(self, sequence: Sequence) -> None:
        """Learn from an answer that has ended, however it did."""
        self._answer_tokens += _SMOOTHING * (sequence.num_output_tokens - self._answer_tokens)

    def answer_tokens(self, sequence: Sequence) -> int:
        """How many tokens its answer will probably have: at least 1, at most what it may have."""
        return min(sequence.max_tokens, max(1, round(self._answer_tokens)))

    def work_s(self, inside: SequenceOf[Sequence]) -> float:
        """Until all these are answered, if nothing else comes."""
        read_s = sum(self._read_s(each) for each in inside if not each.decoding)
        num_to_choose = sum(max(1, self.answer_tokens(each) - each.num_output_tokens) for each in inside)
        return read_s + num_to_choose * self._token_s(inside)

    def first_token_s(
        self, sequence: Sequence, *, running: SequenceOf[Sequence], ahead: SequenceOf[Sequence], allowance_s: float
    ) -> float:
        """Until a sequence that waits has its first token. ahead: those that get a slot before it; allowance_s: what
        reading may add to a step that decodes."""
        decodes = [each for each in running if each.decoding]
        others = [*(each for each in running if not each.decoding and _comes_before(each, sequence)), *ahead]
        in_turn_s = sum(map(self._read_s, others), self._read_s(sequence))
        shorter = (each for each in others if each.num_unread <= sequence.num_unread)
        read_s = min(in_turn_s, 2 * sum(map(self._read_s, shorter), self._read_s(sequence)))  # in every second step
        if decodes:
            num_before = sum(each.num_cached for each in decodes)
            planned_s = self._cost.planned_s(allowance_s, len(decodes), num_before)
            per_step_s = max(planned_s, self._cost.read_s(SMALLEST_CHUNK))
            read_s += read_s / per_step_s * self._cost.decode_s(len(decodes), num_before)
        num_leaving = max(0, len(running) + len(ahead) + 1 - self._slots)  # before there is a slot for it
        return read_s + num_leaving * self._answer_tokens * self._token_s(running)

    def _read_s(self, sequence: Sequence) -> float:
        return self._cost.read_s(sequence.num_unread, sequence.num_cached)

    def _token_s(self, together: SequenceOf[Sequence]) -> float:
        """What one more token of an answer takes while these are made, as many at once as there are slots."""
        num_rows = min(max(len(together), 1), self._slots)
        num_before = sum(len(each.tokens) for each in together) * num_rows // max(len(together), 1)
        return self._cost.decode_s(num_rows, num_before) / num_rows


def _comes_before(one: Sequence, other: Sequence) -> bool:
    return one.key != other.key or one.due_at <= other.due_at
