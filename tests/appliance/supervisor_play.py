"""Conversations with a supervisor, up to where a test begins."""

from __future__ import annotations

from appliance.events import (
    Adopt,
    Build,
    Built,
    Commit,
    Listen,
    Loaded,
    Log,
    Notify,
    Plan,
    Serving,
    Spawn,
    StartEngine,
    TellEngine,
)
from appliance.supervisor import Supervisor
from tests.playbook import Playbook

PLAIN = Plan(workers=2, drain_s=30.0)


LOCAL = Plan(workers=2, drain_s=30.0, models="a")


def begin() -> Playbook:
    return Playbook(Supervisor(), aside=(Log, Notify))


def logged(play: Playbook) -> str:
    return "\n".join(each.message for each in play.asides if isinstance(each, Log))


def notified(play: Playbook) -> list[str]:
    return [each.state for each in play.asides if isinstance(each, Notify)]


def plain() -> Playbook:
    """Two proxies serve; children 1 and 2."""
    play = begin()
    play >> Loaded(PLAIN)
    play << Spawn(1, "proxy-1", "proxy") << Build(1, 1, 0, True)
    play << Spawn(2, "proxy-2", "proxy") << Build(2, 1, 0, True)
    play >> Built(1, 1)
    play >> Built(2, 1) << Listen() << Adopt(1, 0) << Commit(1, 1) << Commit(2, 1)
    play >> Serving(1, 1)
    play >> Serving(2, 1)
    return play


def local() -> Playbook:
    """An engine and two proxies serve; children 1, 2 and 3."""
    play = begin()
    play >> Loaded(LOCAL)
    play << Spawn(1, "engine-1", "engine") << StartEngine(1, 1, True)
    play << Spawn(2, "proxy-1", "proxy") << Build(2, 1, 1, True)
    play << Spawn(3, "proxy-2", "proxy") << Build(3, 1, 1, True)
    play >> Built(2, 1)
    play >> Built(3, 1)
    play >> Serving(1) << Listen() << Adopt(1, 1)
    play << Commit(2, 1) << TellEngine(2, True) << Commit(3, 1) << TellEngine(3, True)
    play >> Serving(2, 1)
    play >> Serving(3, 1)
    return play


def faults(play: Playbook) -> str:
    assert isinstance(play.core, Supervisor)
    return "; ".join(play.core.statistics().faults)
