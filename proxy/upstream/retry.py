"""Whether a failed attempt is tried again, and after how long. Pure: the clock and the drawn number are handed in.

The rules: never after the first byte of the answer went to the client (the caller sees to that: nothing is asked here
then). Idempotent methods (RFC 9110 §9.2.2), or any method when no byte of the request was sent. Retries are held to a
share of the requests (the budget), with a floor of 3 so that a quiet upstream may be retried at all; without a budget,
retries multiply the load on what is failing. The local engine has no budget: all that it carried fails in the moment in
which it ends, and its successor has nothing else to do. Backoff is drawn from the whole interval, so that clients that
failed together do not come back together.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from proxy.config import Retry

IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
BUDGET_FLOOR: Final = 3
BUDGET_WINDOW_S: Final = 10.0
NUM_BUCKETS: Final = 10
BACKOFF_S: Final = 0.025
MAX_BACKOFF_S: Final = 0.25
ENGINE_GONE_S: Final = 0.1  # a process that ends closes its connections first and its listener a moment later


class Failure(Enum):
    """How an attempt ended without an answer."""

    CONNECT = "could not connect"
    STALE = "a kept-alive connection was closed under the request"
    BROKE_OFF = "closed before an answer"
    TIMEOUT = "no answer in time"
    PROTOCOL = "the answer was malformed"
    DECLINED = "an answer that another upstream or key may give better"


#: A slow server is not helped by the same work again, and a malformed answer will not be better: those are final.
_RETRYABLE: Final = frozenset({Failure.CONNECT, Failure.STALE, Failure.BROKE_OFF})


class RetryBudget:
    """Requests and retries of one upstream over the last ten seconds, in ten buckets."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets = [[-1, 0, 0] for _ in range(NUM_BUCKETS)]  # [tick, requests, retries]

    def request(self, now: float) -> None:
        """Count a request (not its retries)."""
        self._bucket(now)[1] += 1

    def allows(self, share: float, now: float) -> bool:
        """Whether one more retry stays within ``share`` of the requests, or within the floor."""
        tick = int(now * NUM_BUCKETS / BUDGET_WINDOW_S)
        requests = retries = 0
        for at, num_requests, num_retries in self._buckets:
            if tick - NUM_BUCKETS < at <= tick:
                requests += num_requests
                retries += num_retries
        return retries + 1 <= max(BUDGET_FLOOR, share * requests)

    def spend(self, now: float) -> None:
        """Count a retry."""
        self._bucket(now)[2] += 1

    def _bucket(self, now: float) -> list[int]:
        tick = int(now * NUM_BUCKETS / BUDGET_WINDOW_S)
        bucket = self._buckets[tick % NUM_BUCKETS]
        if bucket[0] != tick:
            bucket[:] = (tick, 0, 0)
        return bucket


def decide(
    config: Retry,
    budget: RetryBudget,
    *,
    attempt: int,
    method: str,
    sent: bool,
    replayable: bool,
    failure: Failure,
    draw: float,
    now: float,
    tried: int = 0,
    is_local: bool = False,
) -> float | None:
    """Seconds to wait before the next attempt, or None: give up. Allowing it spends the budget.

    attempt: the one that failed, from 1; one whose retry was free is not counted. sent: some byte of the request may
    have reached the server. replayable: the body can be sent again (there is none, none was taken from the client yet,
    or a copy is held). draw: in [0, 1). tried: how often it was tried with what others have tried (``attempts``).
    is_local: the upstream is the local engine, where a request leaves nothing behind and needs no budget.

    DECLINED is asked about only where the answer itself wants the request again, whatever its method.

    A kept-alive connection that was closed under the request says nothing about the server: its first retry is at once
    and outside the budget.
    """
    if not replayable or (failure not in _RETRYABLE and failure is not Failure.DECLINED):
        return None
    if sent and not (is_local or method in IDEMPOTENT or failure is Failure.DECLINED):
        return None
    if failure is Failure.STALE and attempt == 1:
        return 0.0
    if max(attempt, tried) >= config.attempts:
        return None
    backoff_s = draw * min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** (attempt - 1))
    if is_local:
        return ENGINE_GONE_S + backoff_s
    if not budget.allows(config.budget, now):
        return None
    budget.spend(now)
    return backoff_s
