"""What the end of an attempt says about those who took part: the upstream's breaker, and the one server."""

from __future__ import annotations

from typing import Final

from proxy.exchange import Ending
from proxy.llm.error_events import Fault
from proxy.relay import End
from proxy.upstream.permit import Permit
from proxy.upstream.retry import Failure
from proxy.upstream.upstream import Upstream

_COMPLETE: Final = Ending.COMPLETE
_FAILED: Final = Ending.UPSTREAM_FAILED
_ABORTED: Final = Ending.UPSTREAM_ABORTED
_ERROR: Final = Ending.UPSTREAM_ERROR
_REFUSED: Final = Fault.REFUSED
_STALE: Final = Failure.STALE
_DECLINED: Final = Failure.DECLINED


def settle(upstream: Upstream, permit: Permit, end: End, now: float) -> None:
    """Tell the breaker how the upstream did."""
    answered = end.ending is _COMPLETE or end.failure is _DECLINED
    refused = (answered and (end.status == 429 or end.status == 503)) or end.fault is _REFUSED
    # A 503 of the engine is about one of its models; of its own health the supervisor tells.
    ok = None if refused and upstream.is_local else _counts_as(end)
    permit.settle(ok, now, refused, end.retry_after_s)


def _counts_as(end: End) -> bool | None:
    """What the breaker is told: a client that left, or whose body broke off, says nothing about the upstream; nor does
    the end of a tunnel, whose beginning was counted. A stream says itself whether it failed."""
    if end.status == 101:
        return None
    if end.fault is not None:
        return False if end.fault is Fault.FAILED or end.fault is Fault.EMPTY else None
    if end.ending is _COMPLETE:
        return end.status < 500 if end.status != 429 else None
    if end.failure is _DECLINED and 400 <= end.status < 500:
        return None  # our key, our share or the model's name: no fault of the upstream
    if end.ending in (_FAILED, _ABORTED):
        return False
    return None


def server_worked(end: End) -> bool | None:
    """What passive health is told: a 5xx is an answer, a connection that broke is not; a stale one says nothing."""
    if end.ending is _COMPLETE or end.ending is _ERROR:
        return True
    if end.ending in (_FAILED, _ABORTED):
        return None if end.failure is _STALE else end.failure is _DECLINED
    return None
