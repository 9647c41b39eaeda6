"""How long the work inside a language model will take, by what was measured: what deadlines and Retry-After stand on.

Pure. How long an answer gets is not known before it ends, so the mean of those that have ended stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from engine.llm.cost import StepCost
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

    def work_s(self, inside: Iterable[Sequence]) -> float:
        """Until all these are answered, if nothing else comes."""
        num_inside = num_unread = num_to_choose = 0
        for sequence in inside:
            num_inside += 1
            num_unread += 0 if sequence.decoding else sequence.num_unread
            num_to_choose += max(1, self.answer_tokens(sequence) - sequence.num_output_tokens)
        return num_unread * self._cost.token_s + num_to_choose * self._token_s(num_inside)

    def first_token_s(
        self, sequence: Sequence, *, running: SequenceOf[Sequence], ahead: SequenceOf[Sequence], allowance_s: float
    ) -> float:
        """Until a sequence that waits has its first token. ahead: those that get a slot before it; allowance_s: what
        reading may add to a step that decodes."""
        num_decodes = sum(each.decoding for each in running)
        reading = [each for each in running if not each.decoding and _comes_before(each, sequence)]
        num_tokens = sum(each.num_unread for each in (*reading, *ahead, sequence))
        read_s = num_tokens * self._cost.token_s
        if num_decodes:
            read_s += num_tokens / self._cost.chunk_tokens(allowance_s) * self._cost.decode_s(num_decodes)
        num_leaving = max(0, len(running) + len(ahead) + 1 - self._slots)  # before there is a slot for it
        return read_s + num_leaving * self._answer_tokens * self._token_s(len(running))

    def _token_s(self, num_rows: int) -> float:
        """What one more token of an answer takes while so many are made together."""
        num_rows = min(max(num_rows, 1), self._slots)
        return self._cost.decode_s(num_rows) / num_rows


def _comes_before(one: Sequence, other: Sequence) -> bool:
    return one.key != other.key or one.due_at <= other.due_at
