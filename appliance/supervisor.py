"""The supervisor's mind: events and the time go in, actions come out. It starts, watches, replaces, reloads and drains.

Start and reload are one thing, a *candidate* configuration that goes through two phases. First it is built by all:
every proxy holds a snapshot, a new engine is loaded when ``models`` changed. Then it is committed by all. One refusal,
or one child that dies before the commit, and all discard it: a start is given up, a reload changes nothing. After the
commit the old engine drains.

A child that dies is replaced, the first time at once, then with a growing delay. A replacement is always built from
the current configuration; whatever it was building when that changed, it is configured again. Pure: knows neither
clock nor process, and its sockets, files and signals are the shell's (appliance.process).
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace
from math import inf

from appliance import events, exit_codes
from appliance.candidate import Candidate
from appliance.crew import Crew
from appliance.events import Action, ChildEvent, Event, Level, Plan
from appliance.post import Limits, Post, State, spell_end
from appliance.reload_queue import ReloadQueue
from appliance.statistics import Statistics

STOPPING = "headrace is stopping"
#: What clients are told of an engine that is away. The cause, which may name files, is for the log and the status page.
RESTARTING = "it is being restarted"
UNRESPONSIVE = "it does not respond"


class Supervisor:
    """Feed it events with ``handle``, and Ticked at ``wake_at``. The first event is Loaded."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._crew = Crew(self._limits)
        self._current: Plan | None = None
        self._candidate: Candidate | None = None
        self._reloads = ReloadQueue()
        self._revision = self._generation = 0  # of what is current
        self._num_revisions = self._num_generations = 0
        self._stop_at: float | None = None
        self._exit_code: int = exit_codes.OK
        self._now = 0.0
        self._actions: list[Action] = []

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do about ``event`` at ``now`` (monotonic seconds), in order."""
        late_s = now - self.wake_at()
        self._now, self._actions = now, []
        match event:
            case events.Ticked():
                self._tick(late_s)
            case events.Loaded(plan):
                self._loaded(plan)
            case events.LoadFailed(problems):
                self._reload_ended(problems)
            case events.ReloadAsked(ticket):
                self._reload_asked(ticket)
            case events.StopAsked():
                self._stop_asked()
            case ChildEvent(child):
                post = self._crew.of_child(child)
                if post is not None:  # else it is a late word of a process that is gone
                    self._heard(post, event)
        return self._actions

    def wake_at(self) -> float:
        """When to tell Ticked, if nothing else happens before; ``inf``: never."""
        return min(self._crew.wake_at(), self._candidate.due_at if self._candidate else inf)

    def statistics(self) -> Statistics:
        """A picture of now."""
        phase = "stopping" if self._stop_at is not None else "starting" if self._current is None else "serving"
        faults = [] if phase == "serving" else [f"headrace is {phase}"]
        faults += self._crew.faults(self._generation)
        if phase == "serving" and self._reloads.busy:
            phase = "reloading"
        posts = tuple(replace(post) for post in self._crew.posts.values())
        return Statistics(phase, tuple(faults), self._revision, self._generation, replace(self._reloads), posts)

    # Start and reload: load, build, commit.

    def _reload_asked(self, ticket: int | None) -> None:
        if self._stop_at is not None:
            self._answer([] if ticket is None else [ticket], (STOPPING,))
        elif self._reloads.ask(ticket):
            self._load()

    def _load(self) -> None:
        self._do(events.Notify("reloading", "reading the configuration"), events.Load())

    def _loaded(self, plan: Plan) -> None:
        if self._stop_at is not None:
            self._do(events.Forget())
            return
        starts = self._current is None
        loads_engine = bool(plan.models) and (self._current is None or plan.models != self._current.models)
        self._num_revisions += 1
        self._num_generations += loads_engine
        generation = self._num_generations if loads_engine else self._generation if plan.models else 0
        due_at = inf if starts else self._now + self._limits.reload_s
        self._candidate = candidate = Candidate(plan, self._num_revisions, generation, loads_engine, due_at)
        if loads_engine:
            self._fill(Post(f"engine-{generation}", "engine", generation))
        if starts:
            proxies = [self._crew.vacancy(n) for n in range(1, plan.workers + 1)]
            candidate.ask([post.name for post in proxies])
            for post in proxies:
                self._fill(post)
            self._do(events.Notify("status", "starting"))
            return
        # A child holds one configuration that is built and not committed: only who is done with the last one is asked.
        proxies = [
            each for each in self._crew.proxies() if each.state is State.SERVING and each.revision == self._revision
        ]
        candidate.ask([post.name for post in proxies])
        for post in proxies:
            self._configure(post)
        self._commit_if_built()

    def _commit_if_built(self) -> None:
        candidate = self._candidate
        if candidate is None or candidate.committed or candidate.pending:
            return
        if candidate.loads_engine and not self._crew.engine(candidate.generation).serves:
            candidate.due_at = inf  # the proxies are done; the engine's start has its own limit
            return
        if self._current is None:
            self._do(events.Listen())
        self._do(events.Adopt(candidate.revision, candidate.generation))
        self._current, self._revision, self._generation = candidate.plan, candidate.revision, candidate.generation
        candidate.commit(self._now + self._limits.reload_s)
        for name in sorted(candidate.asked):
            self._commit(self._crew.posts[name])
        for post in self._crew.proxies():
            if post.name not in candidate.asked and post.state in (State.STARTING, State.BUILT, State.SERVING):
                self._configure(post)
                if post.state is not State.STARTING:  # it serves the one before, or is about to
                    candidate.pending |= {post.name}
        self._finish_if_committed()

    def _finish_if_committed(self) -> None:
        candidate = self._candidate
        if candidate is None or not candidate.committed or candidate.pending:
            return
        self._candidate = None
        for post in self._crew.engines():
            if post.generation != self._generation:
                self._drain(post, candidate.plan.drain_s)
        staying = [post for post in self._crew.proxies() if post.state is not State.DRAINING]
        for post in staying[candidate.plan.workers :]:
            self._drain(post, candidate.plan.drain_s)
        for _ in range(candidate.plan.workers - len(staying)):
            self._fill(self._crew.vacancy())
        self._crew.hurry(self._now)  # what they failed by may be what was mended
        self._reload_ended(())

    def _roll_back(self, *problems: str) -> None:
        candidate, self._candidate = self._candidate, None
        assert candidate is not None
        for name in sorted(candidate.asked):
            post = self._crew.posts.get(name)
            if post and post.alive:
                post.asked_revision = self._revision
                self._do(events.Discard(post.child, candidate.revision))
        if candidate.loads_engine:
            self._drain(self._crew.engine(candidate.generation), 0.0)
        self._do(events.Forget())
        self._reload_ended(problems)

    def _reload_ended(self, problems: tuple[str, ...]) -> None:
        if self._stop_at is not None:
            return
        if problems:
            self._log("error", *(f"reload: {problem}" for problem in problems))
            self._log("error", "the reload was refused; the configuration before it stays in force, whole")
        elif self._revision > 1:
            self._log("info", f"the configuration was reloaded; revision {self._revision} serves")
        self._answer(self._reloads.end(problems, counts=self._num_revisions > 1 or bool(problems)), problems)
        self._do(events.Notify("ready", self._summary()))
        if self._reloads.next():
            self._load()

    # The children.

    def _heard(self, post: Post, event: ChildEvent) -> None:
        leaving = post.state in (State.DRAINING, State.ABORTING)
        match event:
            case events.Exited(_, status):
                self._exited(post, status)
            case events.Fatal(_, reason):
                post.told = reason
            case events.Beat() if not leaving:
                post.heard(self._now, self._limits)
                self._set_trouble(post, "")
            case events.Trouble(_, reason) if not leaving:
                self._set_trouble(post, reason)
            case events.Built(_, revision) if not leaving and revision == post.asked_revision:
                self._built(post)
            case events.Refused(_, revision, problems) if not leaving and revision == post.asked_revision:
                self._refused(post, problems)
            case events.Serving(_, revision) if not leaving:
                self._serving(post, revision)

    def _built(self, post: Post) -> None:
        if post.state is State.STARTING:
            post.entered(State.BUILT, self._now, self._limits)
        candidate = self._candidate
        if candidate and candidate.concerns(post):
            candidate.pending -= {post.name}
            self._commit_if_built()
        else:
            self._commit(post)

    def _serving(self, post: Post, revision: int) -> None:
        if post.state is not State.SERVING and post.num_restarts:
            self._log("info", f"{post.name} serves again")
        post.entered(State.SERVING, self._now, self._limits)
        if post.role == "engine":
            if post.generation == self._generation:
                self._tell_engine(up=True)
            self._commit_if_built()
            return
        post.revision = revision
        if self._candidate and self._candidate.committed and revision == self._revision:
            self._candidate.pending -= {post.name}
            self._finish_if_committed()

    def _refused(self, post: Post, problems: tuple[str, ...]) -> None:
        if self._current is None:
            self._give_up(*problems)
        elif self._candidate and self._candidate.concerns(post):
            self._roll_back(*problems)
        else:
            post.told = "cannot build what its predecessor served: " + "; ".join(problems)
            self._do(events.Kill(post.child, "SIGKILL"))

    def _set_trouble(self, post: Post, trouble: str) -> None:
        if trouble == post.trouble:
            return
        post.trouble = trouble
        self._log("warning" if trouble else "info", f"{post.name}: {trouble or 'well again'}")
        if post.state is State.SERVING and self._is_current_engine(post):
            self._tell_engine(up=not trouble, reason=UNRESPONSIVE)

    def _exited(self, post: Post, status: int) -> None:
        how = spell_end(status, post.told, post.reason if post.state is State.ABORTING else "")
        if self._stop_at is not None or post.state is State.DRAINING:
            self._left(post, how, status)
            return
        candidate = self._candidate
        delay_s = post.failed(how, self._now, self._limits)
        if self._current is None and status == exit_codes.CANNOT_BOOT:
            self._give_up(f"{post.name} {how}")
            return
        if self._current is None and post.num_failures >= self._limits.num_start_attempts:
            self._give_up(f"{post.name} did not start in {post.num_failures} attempts; the last one {how}")
            return
        if candidate and candidate.committed:
            candidate.pending -= {post.name}
        elif candidate and candidate.concerns(post):
            if self._current is None:
                candidate.pending |= candidate.asked & {post.name}
            else:
                self._roll_back(f"{post.name} {how}")
        if self._crew.posts.get(post.name) is post:  # else it was the engine of what was rolled back
            self._log("error", f"{post.name} {how}; it is started again {f'in {delay_s:g} s' if delay_s else 'now'}")
            if self._is_current_engine(post):
                self._tell_engine(up=False, reason=RESTARTING)
            if not delay_s:
                self._fill(post)
        self._finish_if_committed()

    def _left(self, post: Post, how: str, status: int) -> None:
        del self._crew.posts[post.name]
        if status not in (0, -signal.SIGKILL):
            self._log("warning", f"{post.name} {how}")
        if self._stop_at is not None:
            self._stop_engines()

    def _fill(self, post: Post) -> None:
        self._do(self._crew.fill(post, self._now))
        self._configure(post)

    def _drain(self, post: Post, limit_s: float) -> None:
        self._do(*self._crew.drain(post, limit_s, self._now))

    def _configure(self, post: Post) -> None:
        revision, generation, ahead = self._revision, self._generation, False
        if self._candidate and self._candidate.concerns(post):
            revision, generation, ahead = self._candidate.revision, self._candidate.generation, True
        post.asked_revision = revision
        if post.role == "engine":
            self._do(events.StartEngine(post.child, generation, ahead))
        else:
            self._do(events.Build(post.child, revision, generation, ahead))

    def _commit(self, post: Post) -> None:
        self._do(events.Commit(post.child, self._revision))
        if self._generation:
            engine = self._crew.engine(self._generation)
            reason = "" if engine.serves else UNRESPONSIVE if engine.trouble else RESTARTING
            self._do(events.TellEngine(post.child, engine.serves, reason))

    def _tell_engine(self, *, up: bool, reason: str = "") -> None:
        for post in self._crew.proxies():
            if post.state in (State.BUILT, State.SERVING):
                self._do(events.TellEngine(post.child, up, "" if up else reason))

    def _is_current_engine(self, post: Post) -> bool:
        return post.role == "engine" and post.generation == self._generation

    # The passing of time.

    def _tick(self, late_s: float) -> None:
        if late_s > 1:
            self._crew.forgive(self._now)
        for post in [post for post in self._crew.posts.values() if post.due_at <= self._now]:
            if post.state is State.WAITING:
                self._fill(post)
                continue
            served = post.serves
            self._do(*self._crew.overdue(post, self._now))
            if served and self._is_current_engine(post):
                self._tell_engine(up=False, reason=UNRESPONSIVE)
        if self._candidate and self._candidate.due_at <= self._now:
            self._overdue(self._candidate)

    def _overdue(self, candidate: Candidate) -> None:
        why = f"the configuration was not taken within {self._limits.reload_s:g} s"
        late = sorted(candidate.pending)
        if not candidate.committed:
            self._roll_back(*(f"{name}: {why}" for name in late))
            return
        candidate.due_at = inf
        for name in late:
            self._do(*self._crew.abort(self._crew.posts[name], why, self._now))

    # The end.

    def _give_up(self, *problems: str) -> None:
        self._log("error", *problems)
        self._exit_code = exit_codes.CANNOT_BOOT
        self._stop(0.0, "the start has failed")

    def _stop_asked(self) -> None:
        if self._stop_at is None:
            drain_s = self._current.drain_s if self._current else 0.0
            self._log("info", f"stopping; what is open has {drain_s:g} s to end")
            self._stop(drain_s, "stopping")
            return
        self._log("warning", "asked to stop a second time: ending at once, what is open is cut")
        self._do(*self._crew.kill_all(), events.Exit(exit_codes.FORCED))

    def _stop(self, drain_s: float, status: str) -> None:
        self._candidate, self._stop_at = None, self._now + drain_s
        self._answer(self._reloads.abandon(), (STOPPING,))
        self._do(events.Notify("stopping", status))
        for post in list(self._crew.posts.values()):
            if post.role == "proxy" or not post.alive:
                self._drain(post, drain_s)
        self._do(events.StopListening())
        self._stop_engines()

    def _stop_engines(self) -> None:
        """Engines go after the last proxy, whose streams they feed; then the supervisor itself."""
        assert self._stop_at is not None
        if not self._crew.proxies():
            for post in self._crew.engines():
                self._drain(post, max(0.0, self._stop_at - self._now))
        if not self._crew.posts:
            self._do(events.Exit(self._exit_code))

    # Words.

    def _summary(self) -> str:
        engine = f" and engine {self._generation}" if self._generation else ""
        return f"revision {self._revision} serves, with {len(self._crew.proxies())} workers{engine}"

    def _answer(self, tickets: Iterable[int], problems: tuple[str, ...]) -> None:
        self._do(*(events.Answer(ticket, problems) for ticket in tickets))

    def _log(self, level: Level, *messages: str) -> None:
        self._do(*(events.Log(level, message) for message in messages))

    def _do(self, *actions: Action) -> None:
        self._actions += actions
