"""What a client is told when no upstream answered its request: which, why as far as it may know, when to come back."""

from __future__ import annotations

from typing import Final

from proxy.errors import Kind, refuse
from proxy.exchange import Ending, Exchange, Reply
from proxy.relay import End
from proxy.upstream.key_ring import OURS
from proxy.upstream.permit import Refused
from proxy.upstream.retry import Failure
from proxy.upstream.upstream import ENGINE_RETRY_AFTER_S, Upstream

_DECLINED_RETRY_S: Final = 5.0  # when to come back if the upstream did not say


def engine_down(x: Exchange, why: str) -> End:
    """The local engine takes nothing now. why: for the log."""
    reply = _engine_reply(x)
    return End(Ending.UPSTREAM_FAILED, reply.status, f"engine down: {why}", reply)


def engine_full(x: Exchange, model: str, wait_s: float) -> End:
    """The local engine has no place for this model, or none for requests of this priority."""
    message = f"The inference engine has no place for {model} now, and no other upstream could. Try again later."
    reply = refuse(x, Kind.CAPACITY, message, retry_after_s=wait_s, violated=("shed",))
    return End(Ending.REFUSED, reply.status, "engine full", reply)


def breaker_open(x: Exchange, upstream: Upstream, refused: Refused) -> End:
    """The upstream's breaker lets nothing pass now."""
    message = f"The upstream {upstream.name} has failed too often and is spared for a while. Try again later."
    reply = refuse(x, Kind.BREAKER_OPEN, message, retry_after_s=refused.retry_after_s)
    return End(Ending.REFUSED, reply.status, "breaker open", reply)


def failure_reply(x: Exchange, upstream: Upstream, end: End) -> Reply:
    """The last attempt failed before anything was sent."""
    name, reason = upstream.name, end.reason
    if end.failure is Failure.DECLINED and end.status in OURS and upstream.authorization is not None:
        message = (
            f"The upstream {name} refuses the key that it is asked with here ({reason}); yours is not concerned. Only "
            "who runs this service can mend that."
        )
        return refuse(x, Kind.UPSTREAM_KEY, message, should_retry=False)
    if end.failure is Failure.DECLINED:
        message = f"The upstream {name} did not take the request ({reason}), and no other one could. Try again later."
        return refuse(x, Kind.CAPACITY, message, retry_after_s=end.retry_after_s or _DECLINED_RETRY_S)
    if end.failure is Failure.TIMEOUT:
        return refuse(x, Kind.UPSTREAM_TIMEOUT, f"The upstream {name} was too slow: {reason}.")
    if upstream.is_local and end.failure is not Failure.PROTOCOL:
        return _engine_reply(x)
    if end.failure is Failure.CONNECT:
        return refuse(x, Kind.UPSTREAM_CONNECT, f"The upstream {name} cannot be reached: {reason}.")
    if end.failure is Failure.PROTOCOL:
        return refuse(x, Kind.UPSTREAM_PROTOCOL, f"The upstream {name} answered wrongly: {reason}.")
    return refuse(x, Kind.UPSTREAM_ABORTED, f"The upstream {name} failed: {reason}.")


def _engine_reply(x: Exchange) -> Reply:
    """Why it is down is for the log: it may name paths, of which clients learn nothing."""
    message = f"The inference engine is not serving; try again in {ENGINE_RETRY_AFTER_S:g} s."
    return refuse(x, Kind.ENGINE_DOWN, message, retry_after_s=ENGINE_RETRY_AFTER_S)
