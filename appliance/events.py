"""The supervisor's two vocabularies: events, which happen to it, and actions, which it asks to be done.

Frozen data without behaviour. A child is named twice: by the number of its process, which is never used again, so that
a late word of a dead process cannot be taken for its successor's; and by its post ("proxy-1", "engine-2"), which a
successor takes over. ``revision`` counts the configurations that were loaded, ``generation`` the engines' models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["proxy", "engine"]
Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a configuration asks of the supervisor. Plans of equal ``models`` share an engine; "" needs none."""

    workers: int
    drain_s: float
    models: str = ""


class Event:
    """Something that happened."""


@dataclass(frozen=True, slots=True)
class Loaded(Event):
    """The configuration was read and is sound, and its new listeners are bound."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class LoadFailed(Event):
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReloadAsked(Event):
    """By a signal, or by somebody who waits for the Answer with this ticket."""

    ticket: int | None = None


@dataclass(frozen=True, slots=True)
class StopAsked(Event):
    """The first drains, the second ends at once."""


@dataclass(frozen=True, slots=True)
class Ticked(Event):
    """The time of ``Supervisor.wake_at`` has come."""


@dataclass(frozen=True, slots=True)
class ChildEvent(Event):
    """Something that a child did or said."""

    child: int


@dataclass(frozen=True, slots=True)
class Built(ChildEvent):
    """A proxy holds a snapshot of the revision, ready to be committed."""

    revision: int


@dataclass(frozen=True, slots=True)
class Refused(ChildEvent):
    revision: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Serving(ChildEvent):
    """A proxy serves the revision, or an engine is loaded, warm and reachable."""

    revision: int = 0


@dataclass(frozen=True, slots=True)
class Beat(ChildEvent):
    """The child's loop turns and it can do its work."""


@dataclass(frozen=True, slots=True)
class Trouble(ChildEvent):
    """Instead of a heartbeat: the child's loop turns, but it cannot do its work."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fatal(ChildEvent):
    """The child is about to exit, and says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Exited(ChildEvent):
    """status: the exit code, or minus the number of the signal that killed it."""

    status: int


class Action:
    """Something to be done, in the order given."""


@dataclass(frozen=True, slots=True)
class Load(Action):
    """Read the configuration and bind its new listeners; then tell Loaded or LoadFailed."""


@dataclass(frozen=True, slots=True)
class Listen(Action):
    """Let the bound sockets take connections: all that shall answer them is there."""


@dataclass(frozen=True, slots=True)
class Adopt(Action):
    """The loaded configuration is the current one from now on, and the only one."""

    revision: int
    generation: int


@dataclass(frozen=True, slots=True)
class Forget(Action):
    """Drop the loaded configuration and the sockets that only it wanted."""


@dataclass(frozen=True, slots=True)
class StopListening(Action):
    pass


@dataclass(frozen=True, slots=True)
class Spawn(Action):
    child: int
    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Build(Action):
    """Have a proxy build a configuration: the loaded one (``candidate``) or the current one."""

    child: int
    revision: int
    generation: int  # of the engine that it names; 0: none
    candidate: bool


@dataclass(frozen=True, slots=True)
class StartEngine(Action):
    """Have an engine load the models of the loaded configuration (``candidate``) or of the current one, and serve."""

    child: int
    generation: int
    candidate: bool


@dataclass(frozen=True, slots=True)
class Commit(Action):
    child: int
    revision: int


@dataclass(frozen=True, slots=True)
class Discard(Action):
    child: int
    revision: int


@dataclass(frozen=True, slots=True)
class TellEngine(Action):
    """Tell a proxy whether the local engine can be reached."""

    child: int
    up: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Drain(Action):
    """Ask a child to finish what it has within ``limit_s`` and to exit."""

    child: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Kill(Action):
    child: int
    signal: Literal["SIGABRT", "SIGKILL"]


@dataclass(frozen=True, slots=True)
class Answer(Action):
    """The verdict on a reload for the one who waits for it. No problems: the new configuration serves."""

    ticket: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Notify(Action):
    """Tell the service manager."""

    state: Literal["ready", "reloading", "stopping", "status"]
    status: str


@dataclass(frozen=True, slots=True)
class Log(Action):
    level: Level
    message: str


@dataclass(frozen=True, slots=True)
class Exit(Action):
    code: int
