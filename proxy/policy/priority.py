"""How urgent a request is, and until when its answer is of use: what a client may say of both, for the engine's queue.

``X-Priority: high|normal|low`` is heard from those whose key allows it (``allow: {priority: true}``); all others have
the route's ``default``. ``X-Request-Deadline`` (``2s``, ``500ms`` or an instant like ``2026-01-31T12:00:00Z``) and a
client's own timeout are heard from all: they only shorten what is done for it. The engine orders its queue by them, and
what passes its deadline is stopped, here and there. Pure.
"""

from __future__ import annotations

from math import inf
from typing import Final

from proxy import config_policies
from proxy.chain import Policy
from proxy.deadline import DEADLINE, TIMEOUT, Deadline, read_deadline, read_timeout
from proxy.errors import Kind, refuse
from proxy.exchange import Exchange, Reply
from proxy.policy.env import PolicyEnv

NAME: Final = "priority"
ALWAYS: Final = False

LEVELS: Final = ("high", "normal", "low")
_DROP: Final = frozenset({b"x-priority", b"headrace-priority", b"x-request-deadline", DEADLINE, TIMEOUT})
PASSED: Final = "The deadline of this request has passed. Allow more time, or send it earlier."


Config = config_policies.Priority


def build(config: Config, env: PolicyEnv) -> Priority:
    """The policy of one route."""
    return Priority(config)


class Priority(Policy):
    def __init__(self, config: Config) -> None:
        self._default = config.default
        self._longest_s = config.longest if config.longest is not None else inf
        self._timeouts = config.timeouts

    def admit(self, x: Exchange, now: float) -> Reply | None:
        x.drop |= _DROP
        level: str = self._default
        if x.key is not None and x.key.allow.priority:
            asked = x.fields.get("X-Priority") or x.fields.get("headrace-priority")
            if asked is not None:
                level = asked.strip().lower()
                if level not in LEVELS:
                    return refuse(x, Kind.BAD_REQUEST, f"X-Priority must be one of {', '.join(LEVELS)}.")
        x.scratch[NAME] = level
        if level != "normal":
            x.add.append((b"headrace-priority", level.encode()))
        return self._hear_deadline(x, now)

    def _hear_deadline(self, x: Exchange, now: float) -> Reply | None:
        end_s, begin_s = self._longest_s, inf
        asked = x.fields.get("X-Request-Deadline") or x.fields.get("headrace-deadline")
        if asked is not None:
            seconds = read_deadline(asked, x.wall_at)
            if seconds is None:
                message = "X-Request-Deadline must be a duration like 2s or 500ms, or an instant with a time zone."
                return refuse(x, Kind.BAD_REQUEST, message)
            end_s = min(end_s, seconds)
        for name in self._timeouts:
            timeout = x.fields.get(name)
            if timeout is not None and (seconds := read_timeout(timeout)) is not None:
                begin_s = min(begin_s, seconds)
        if end_s < inf or begin_s < inf:
            x.deadline = Deadline(x.started_at + end_s, x.started_at + begin_s)
            if x.deadline.passed(now, False):
                return refuse(x, Kind.DEADLINE, PASSED, should_retry=False)
        return None
