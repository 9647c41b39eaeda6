"""How long one attempt may take: until the client's deadline, and as long as the upstream's table lets it. Pure.

A slow client's pauses and uploads are not the upstream's. A language model's answer begins with its content, so until
then it has the time of a first byte. Whoever relays asks once a second, and when the deadline has come.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from proxy.config_routes import ENGINE

if TYPE_CHECKING:
    from proxy.config import Timeouts
    from proxy.exchange import Exchange
    from proxy.upstream.transport import UpstreamConnection

#: For our engine to say itself that a deadline has passed, with what the answer has cost by then.
_ENGINE_GRACE_S: Final = 0.1


def stop_at(x: Exchange, begun: bool) -> float:
    """When the client's deadline ends the attempt; inf: never. begun: whether the answer has."""
    deadline = x.deadline
    if deadline is None:
        return inf
    at = deadline.end_at if begun else min(deadline.end_at, deadline.begin_at)
    return at + _ENGINE_GRACE_S if x.upstream == ENGINE else at


def said_too_late(x: Exchange, status: int, now: float) -> bool:
    """Whether such an answer is our engine's word for a deadline that has passed, or is about to."""
    deadline = x.deadline
    if status != 408 or x.upstream != ENGINE or deadline is None:
        return False
    return deadline.passed(now + _ENGINE_GRACE_S, False)


def too_slow(
    x: Exchange,
    timeouts: Timeouts,
    connection: UpstreamConnection,
    now: float,
    begun: bool,
    uploading: bool,
    content_since: float | None,
) -> str:
    """Why the upstream is given up; "": it is not. begun: the answer has; uploading: some of the request is still to be
    sent; content_since: since when the content of a stream is waited for, None: it is not."""
    if timeouts.total is not None and now - x.started_at > timeouts.total:
        return f"not complete after {timeouts.total:g} s"
    if content_since is not None and now - content_since > timeouts.first_byte:
        return f"no content within {timeouts.first_byte:g} s"
    if connection.reading_paused or (uploading and not connection.writing_paused):
        return ""
    if begun or uploading:
        return f"no byte for {timeouts.idle:g} s" if now - connection.heard_at > timeouts.idle else ""
    waits = now - connection.heard_at > timeouts.first_byte
    return f"no first byte within {timeouts.first_byte:g} s" if waits else ""
