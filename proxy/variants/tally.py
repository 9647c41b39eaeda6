"""What is counted of one arm of an experiment: by each worker in a row of its own, so that nothing is lost. Pure.

A row says of which beginning its numbers are: after a new one each worker empties its own, and until then it is passed
over. Users fall into groups, and what the test needs is counted by group.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from proxy.shared.columns import Columns, Row
from proxy.variants.assignment import NUM_GROUPS
from proxy.variants.sequential import Counts

#: Numbers of a row: the beginning plus 1 (0: never used), then by group, then the rest.
_BEGAN: Final = 0
_NUM, _GOOD = 1, 1 + NUM_GROUPS
_TOLD, _TOLD_GOOD = 1 + 2 * NUM_GROUPS, 1 + 3 * NUM_GROUPS
_REST: Final = 1 + 4 * NUM_GROUPS
_GONE, _ANSWERED, _ANSWER_S, _BEGUN, _FIRST_BYTE_S, _STREAMED, _FIRST_TOKEN_S, _USED, _PROMPT, _COMPLETION = range(
    _REST, _REST + 10
)
ROW_SIZE: Final = _REST + 10


class Ended(NamedTuple):
    """One request. good: None, the client left. answer_s: until all of it was sent; first_byte_s, first_token_s: None
    where there was none, or none was looked for; tokens: of prompt and answer, None where nobody counts."""

    good: bool | None
    answer_s: float
    first_byte_s: float | None = None
    first_token_s: float | None = None
    tokens: tuple[int, int] | None = None


class Sums(NamedTuple):
    """All workers' together. requests, outcomes: by group of users. The rest are sums, each with how many it is of."""

    requests: tuple[Counts, ...]
    outcomes: tuple[Counts, ...]
    gone: float
    answered: float
    answer_s: float
    begun: float
    first_byte_s: float
    streamed: float
    first_token_s: float
    used: float
    prompt_tokens: float
    completion_tokens: float


class Tally:
    """One worker's end of an arm's. columns: shared with the other workers."""

    __slots__ = ("_columns",)

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def ended(self, group: int, ended: Ended, beginning: float) -> None:
        """Count a request that went to an upstream."""
        row = self._row(beginning)
        if ended.good is None:
            row[_GONE] += 1.0
        else:
            row[_NUM + group] += 1.0
            if ended.good:
                row[_GOOD + group] += 1.0
                row[_ANSWERED] += 1.0
                row[_ANSWER_S] += ended.answer_s
        if ended.first_byte_s is not None:
            row[_BEGUN] += 1.0
            row[_FIRST_BYTE_S] += ended.first_byte_s
        if ended.first_token_s is not None:
            row[_STREAMED] += 1.0
            row[_FIRST_TOKEN_S] += ended.first_token_s
        if ended.tokens is not None:
            row[_USED] += 1.0
            row[_PROMPT] += ended.tokens[0]
            row[_COMPLETION] += ended.tokens[1]

    def told(self, group: int, good: bool, beginning: float) -> None:
        """Count an outcome."""
        row = self._row(beginning)
        row[_TOLD + group] += 1.0
        if good:
            row[_TOLD_GOOD + group] += 1.0

    def sums(self, beginning: float) -> Sums:
        """What all workers have counted since this beginning."""
        rows = [list(row) for row in self._columns.rows if row[_BEGAN] == beginning + 1.0]
        sums = [sum(numbers) for numbers in zip(*rows, strict=True)] if rows else [0.0] * ROW_SIZE
        return Sums(_by_group(sums, _NUM, _GOOD), _by_group(sums, _TOLD, _TOLD_GOOD), *sums[_REST:])

    def _row(self, beginning: float) -> Row:
        row = self._columns.mine
        if row[_BEGAN] != beginning + 1.0:
            row[_BEGAN] = 0.0  # nobody reads it meanwhile
            for at in range(1, ROW_SIZE):
                row[at] = 0.0
            row[_BEGAN] = beginning + 1.0
        return row


def total(groups: tuple[Counts, ...]) -> Counts:
    """All groups together."""
    return Counts(sum(each.num for each in groups), sum(each.good for each in groups))


def _by_group(sums: list[float], num_at: int, good_at: int) -> tuple[Counts, ...]:
    pairs = zip(sums[num_at : num_at + NUM_GROUPS], sums[good_at : good_at + NUM_GROUPS], strict=True)
    return tuple(Counts(num, good) for num, good in pairs)
