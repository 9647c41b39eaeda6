"""The supervisor among children that are slow, refuse, hang and die in any order: whatever happened, it settles.

Every seed is a world of its own: the orders of a child wait in its inbox like in a socket, and it obeys them one by one
when the dice say so. The laws are checked at each step, and that all serve the last good configuration at the end.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from appliance import events
from appliance.events import Action, Event, Plan
from appliance.supervisor import Supervisor

PLANS = [Plan(workers, 5.0, models) for workers in (1, 2, 3) for models in ("", "a", "b")]
NUM_STEPS = 400


@dataclass
class Child:
    """What a process does with its orders."""

    name: str
    inbox: deque[Action] = field(default_factory=deque)
    built: int = 0
    hangs: bool = False
    serves: int = 0


class World:
    """Children, a clock and those who wait for reloads, around one supervisor."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.supervisor = Supervisor()
        self.now = 0.0
        self.children: dict[int, Child] = {}
        self.loading = False
        self.waiting: set[int] = set()
        self.num_tickets = 0
        self.revision = 0
        self.plan = self.loaded = self.dice.choice(PLANS)
        self.exit_code: int | None = None
        self.later: deque[Event] = deque()  # has happened and was not told yet
        self.tell(events.Loaded(self.loaded))

    def tell(self, event: Event) -> None:
        for action in self.supervisor.handle(event, self.now):
            self.perform(action)

    def perform(self, action: Action) -> None:
        match action:
            case events.Spawn(child, name):
                assert name not in [each.name for each in self.children.values()], "two processes on one post"
                self.children[child] = Child(name)
            case events.Load():
                assert not self.loading, "two reloads at once"
                self.loading = True
            case events.Adopt(revision):
                assert revision > self.revision
                self.revision, self.plan = revision, self.loaded
            case events.Answer(ticket):
                self.waiting.remove(ticket)  # each is answered once
            case events.Exit(code):
                self.exit_code = code
            case events.Kill(child, "SIGKILL") if child in self.children:
                self.die(child, -9)
            case events.Build(child) | events.StartEngine(child) | events.Commit(child) | events.Discard(child):
                self.order(child, action)
            case events.Drain(child):
                self.order(child, action)

    def order(self, child: int, action: Action) -> None:
        if child in self.children:
            self.children[child].inbox.append(action)

    def die(self, child: int, status: int) -> None:
        del self.children[child]
        self.later.append(events.Exited(child, status))

    def obey(self, child: int, *, faults: bool) -> None:
        """The child does its next order."""
        me = self.children[child]
        if me.hangs or not me.inbox:
            return
        match me.inbox.popleft():
            case events.Build(_, revision):
                if faults and self.dice.random() < 0.1:
                    self.later.append(events.Refused(child, revision, ("no",)))
                else:
                    me.built = revision
                    self.later.append(events.Built(child, revision))
            case events.Commit(_, revision):
                assert me.built == revision, f"{me.name} was told to commit {revision} and holds {me.built}"
                me.built, me.serves = 0, revision
                self.later.append(events.Serving(child, revision))
            case events.Discard(_, revision):
                me.built = 0 if me.built == revision else me.built
            case events.StartEngine(_, generation):
                if faults and self.dice.random() < 0.2:
                    self.die(child, self.dice.choice([1, 78]))
                else:
                    me.serves = generation
                    self.later.append(events.Serving(child))
            case events.Drain():
                self.die(child, 0)

    def step(self, *, faults: bool) -> None:
        """One thing happens."""
        self.now += self.dice.choice([0.0, 0.01, 0.3])
        if self.later:
            self.tell(self.later.popleft())
        elif self.supervisor.wake_at() <= self.now:
            self.tell(events.Ticked())
        elif self.loading and self.dice.random() < 0.5:
            self.loading = False
            if faults and self.dice.random() < 0.3:
                self.tell(events.LoadFailed(("bad",)))
            else:
                self.loaded = self.dice.choice(PLANS) if faults else self.loaded
                self.tell(events.Loaded(self.loaded))
        elif self.children:
            child = self.dice.choice(sorted(self.children))
            if not self.children[child].hangs:
                self.tell(events.Beat(child))
            if faults and self.dice.random() < 0.03:
                self.die(child, -9)
            elif faults and self.dice.random() < 0.01:
                self.children[child].hangs = True
            else:
                self.obey(child, faults=faults)

    def ask(self) -> None:
        self.num_tickets += 1
        self.waiting.add(self.num_tickets)
        self.tell(events.ReloadAsked(self.num_tickets))

    def settle(self) -> None:
        """Nothing bad happens any more: every child is heard again and again."""
        for _ in range(20_000):
            self.step(faults=False)
            busy = any(each.inbox or each.hangs for each in self.children.values())
            idle = not (self.later or self.loading or busy)
            if idle and not self.waiting and not self.supervisor.statistics().faults:
                return


@pytest.mark.parametrize("seed", range(60))
def test_J01_J04_whatever_happens_all_serve_one_configuration_in_the_end(seed: int) -> None:
    world = World(seed)
    for _ in range(NUM_STEPS):
        if world.revision and world.dice.random() < 0.05:
            world.ask()
        world.step(faults=bool(world.revision))
    world.settle()
    statistics = world.supervisor.statistics()
    assert statistics.faults == ()
    assert not world.waiting
    proxies = [each for each in world.children.values() if each.name.startswith("proxy")]
    assert [each.serves for each in proxies] == [world.revision] * world.plan.workers
    engines = [each.name for each in world.children.values() if each.name.startswith("engine")]
    assert engines == ([f"engine-{statistics.generation}"] if world.plan.models else [])


@pytest.mark.parametrize("seed", range(60))
def test_D08_J02_a_stop_at_any_moment_ends_all(seed: int) -> None:
    world = World(seed)
    for _ in range(world.dice.randrange(NUM_STEPS)):
        if world.dice.random() < 0.05:
            world.ask()
        world.step(faults=bool(world.revision))
    world.tell(events.StopAsked())
    for _ in range(20_000):
        if world.exit_code is not None:
            break
        world.step(faults=True)
    assert world.exit_code is not None
    assert not world.children
    assert not world.waiting
