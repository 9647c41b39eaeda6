"""One child's post: the state of the process that fills it, and when the supervisor must look again.

    waiting --due--> starting --built--> built --serving--> serving --drain--> draining --exited--> (gone)
       ^                |                  |                   |                  |
       |                +-------- limit passed: no word, or no heartbeat ---------+
       |                                         v
       +---------------- exited ------------- aborting (SIGABRT for the stacks, then SIGKILL)

An engine goes from starting to serving at once. ``due_at`` means by state: waiting, the next attempt; starting, the
limit on the start; built and serving, the limit on silence; draining and aborting, the SIGKILL. Pure: ``now`` is given.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import Enum

from appliance.events import Role


class State(Enum):
    WAITING = "waiting"
    STARTING = "starting"
    BUILT = "built"
    SERVING = "serving"
    DRAINING = "draining"
    ABORTING = "aborting"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the supervisor waits for what, in seconds, and how often it tries."""

    silence_s: float = 10.0  # between two heartbeats
    start_proxy_s: float = 60.0  # from exec to "built"
    start_engine_s: float = 600.0  # from exec to "serving": a large model on a slow disk
    reload_s: float = 60.0  # for all proxies to build and commit
    abort_s: float = 2.0  # from SIGABRT to SIGKILL
    drain_grace_s: float = 0.5  # from the end of the drain to SIGKILL
    retry_s: float = 0.5  # the second restart's delay; the first is immediate, then it doubles
    max_retry_s: float = 30.0
    stable_s: float = 10.0  # a child that served so long starts again with no delay
    num_start_attempts: int = 5  # per post, before the first success


@dataclass(slots=True)
class Post:
    """A place to be filled by a process."""

    name: str
    role: Role
    generation: int = 0  # of an engine
    child: int = 0
    state: State = State.WAITING
    due_at: float = 0.0
    revision: int = 0  # the configuration that a proxy serves
    asked_revision: int = 0  # the last one it was sent and shall not forget
    serving_at: float = 0.0
    num_failures: int = 0  # running, without a stable time between
    num_restarts: int = 0
    reason: str = ""  # why it does not serve, or why the last process ended
    trouble: str = ""  # what a process that still beats has said of itself
    told: str = field(default="", repr=False)  # the process's own last words

    @property
    def alive(self) -> bool:
        """Whether a process fills the post."""
        return self.state is not State.WAITING

    @property
    def serves(self) -> bool:
        """Whether it does its work as far as can be told."""
        return self.state is State.SERVING and not self.trouble

    def started(self, child: int, now: float, limits: Limits) -> None:
        """A process was spawned for it."""
        self.child, self.state, self.told, self.trouble, self.revision = child, State.STARTING, "", "", 0
        self.due_at = now + (limits.start_engine_s if self.role == "engine" else limits.start_proxy_s)

    def heard(self, now: float, limits: Limits) -> None:
        """A heartbeat came."""
        if self.state in (State.BUILT, State.SERVING):
            self.due_at = now + limits.silence_s

    def entered(self, state: State, now: float, limits: Limits) -> None:
        """The process has come to ``state``, BUILT or SERVING."""
        if state is State.SERVING and self.state is not State.SERVING:
            self.serving_at, self.reason = now, ""
        self.state = state
        self.heard(now, limits)

    def failed(self, reason: str, now: float, limits: Limits) -> float:
        """The process ended unasked: wait, and return for how many seconds."""
        if self.state in (State.SERVING, State.ABORTING) and 0 < self.serving_at <= now - limits.stable_s:
            self.num_failures = 0
        self.num_failures += 1
        self.num_restarts += 1
        exponent = min(self.num_failures - 2, 32)
        delay_s = 0.0 if self.num_failures == 1 else min(limits.retry_s * 2.0**exponent, limits.max_retry_s)
        self.state, self.reason, self.due_at, self.serving_at = State.WAITING, reason, now + delay_s, 0.0
        return delay_s


def spell_end(status: int, told: str = "", aborted: str = "") -> str:
    """How a process ended: "was killed by SIGKILL" for -9. told: its own last words; aborted: why we have ended it."""
    if told:
        return f"failed: {told}"
    if aborted:
        return f"was aborted: {aborted}"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"exited with status {status}" if status else "exited unasked"
