"""Deadlines of sequences: who cannot be in time, and what it is told.

Pure. A sequence is judged on arrival by the forecast, and before each step by the reading that it needs at least: what
cannot be in time is ended before it costs anything more.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import Kind, RequestError
from engine.llm.sequence import Sequence

ReadS = Callable[[int, int], float]  # seconds of reading so many tokens of a prompt, after so many


class Deadlines:
    """The sequences inside that have a deadline."""

    def __init__(self) -> None:
        self._instants: dict[Sequence, float] = {}  # monotonic seconds
        self._new: set[Sequence] = set()  # not judged yet

    def add(self, sequence: Sequence) -> None:
        """Watch it, if it has a deadline."""
        if sequence.deadline_at is not None:
            self._instants[sequence] = sequence.deadline_at
            self._new.add(sequence)

    def discard(self, sequence: Sequence) -> None:
        """It has ended."""
        self._instants.pop(sequence, None)
        self._new.discard(sequence)

    def next_at(self, read_s: ReadS) -> float | None:
        """When to judge next: at once while somebody is new, else when the first cannot be in time any more; None:
        nobody has a deadline. read_s: of StepCost."""
        if self._new:
            return 0.0
        return min((at - _needed_s(each, read_s) for each, at in self._instants.items()), default=None)

    def has_late(self, now: float, read_s: ReadS) -> bool:
        """Whether ``judge`` has something to say, or somebody new to look at."""
        return bool(self._new) or any(
            not _in_time(at - now, _needed_s(each, read_s)) for each, at in self._instants.items()
        )

    def judge(
        self, now: float, read_s: ReadS, first_token_s: Callable[[Sequence], float]
    ) -> list[tuple[Sequence, RequestError]]:
        """Those that cannot be in time. read_s: of StepCost; first_token_s: the forecast for one that is new."""
        late = []
        for sequence, at in self._instants.items():
            is_new = sequence in self._new and not sequence.num_output_tokens
            needed_s = first_token_s(sequence) if is_new else _needed_s(sequence, read_s)
            if (error := _verdict(sequence, at - now, needed_s)) is not None:
                late.append((sequence, error))
        self._new.clear()
        return late


def _needed_s(sequence: Sequence, read_s: ReadS) -> float:
    """What it takes at least until its first token."""
    return 0.0 if sequence.num_output_tokens else read_s(sequence.num_unread, sequence.num_cached)


def _in_time(left_s: float, needed_s: float) -> bool:
    return 0 < left_s >= needed_s


def _verdict(sequence: Sequence, left_s: float, needed_s: float) -> RequestError | None:
    if _in_time(left_s, needed_s):
        return None
    if left_s <= 0:
        made = f"after {sequence.num_output_tokens} tokens" if sequence.num_output_tokens else "before the first token"
        return RequestError(Kind.DEADLINE, f"the deadline passed {made}; allow more time or ask for a shorter answer")
    message = (
        f"the deadline is in {left_s:.2f} s, and the first token would take {needed_s:.2f} s at the present rate;"
        " allow more time or come back later"
    )
    return RequestError(Kind.DEADLINE, message, retry_after_s=needed_s - left_s)
