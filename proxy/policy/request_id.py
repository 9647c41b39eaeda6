"""Every request has an id and a trace: accepted when well-formed, else made. Pure.

A client's X-Request-Id is reused only if it is short and plain, because it goes into logs and headers; W3C traceparent
(Trace Context level 1) is continued with this hop as the new parent. Both go upstream, the id also back to the client.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from multidict import istr

from proxy import config_policies
from proxy.chain import Policy
from proxy.exchange import Exchange, Head, Reply
from proxy.policy.env import PolicyEnv

NAME: Final = "request_id"
ALWAYS: Final = True

_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACEPARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(-.*)?"
)
_X_REQUEST_ID: Final = istr("X-Request-Id")
_TRACEPARENT_NAME: Final = istr("traceparent")
_DROP: Final = frozenset({b"x-request-id", b"traceparent"})


Config = config_policies.RequestId


def build(config: Config, env: PolicyEnv) -> RequestId:
    """The policy of one route."""
    return RequestId(config, env.draw_hex)


class RequestId(Policy):
    def __init__(self, config: Config, draw_hex: Callable[[int], str]) -> None:
        self._accept = config.accept
        self._draw_hex = draw_hex

    def admit(self, x: Exchange, now: float) -> Reply | None:
        drawn = self._draw_hex(24)
        request_id = trace_id = drawn[:32]
        flags = "00"
        if self._accept:
            given = x.fields.get(_X_REQUEST_ID)
            if given is not None and _ID.fullmatch(given):
                request_id = given
            given = x.fields.get(_TRACEPARENT_NAME)
            if given is not None and (trace := self._trace(given)) is not None:
                trace_id, flags = trace
        x.request_id = request_id
        x.traceparent = traceparent = f"00-{trace_id}-{drawn[32:]}-{flags}"
        x.drop |= _DROP
        x.add += ((b"X-Request-Id", request_id.encode()), (b"traceparent", traceparent.encode()))
        return None

    @staticmethod
    def _trace(given: str) -> tuple[str, str] | None:
        """(trace id, flags) of a valid traceparent; a version above 00 may carry more behind a dash."""
        found = _TRACEPARENT.fullmatch(given) if len(given) <= 512 else None
        if found is None or (found[1] == "00" and found[4] is not None):
            return None
        # Of the flags only "sampled" is defined in the version that is sent on (§3.2.2.5).
        return found[2], "01" if int(found[3], 16) & 1 else "00"

    def respond(self, x: Exchange, head: Head, now: float) -> None:
        head.headers.append((b"X-Request-Id", x.request_id.encode()))
