"""All posts together: who fills them, who is to leave, who is late. Pure, as the supervisor whose limbs these are.

Whatever has to be done outside is returned as actions.
"""

from __future__ import annotations

from itertools import count
from math import inf

from appliance.events import Action, Drain, Kill, Log, Spawn
from appliance.post import Limits, Post, State


class Crew:
    """The posts by name. ``now`` is monotonic seconds."""

    def __init__(self, limits: Limits) -> None:
        self.posts: dict[str, Post] = {}
        self._limits = limits
        self._num_spawned = 0

    def of_child(self, child: int) -> Post | None:
        """The post that the process fills; None once it is gone."""
        return next((post for post in self.posts.values() if post.alive and post.child == child), None)

    def proxies(self) -> list[Post]:
        """All of them, the leaving ones too."""
        return [post for post in self.posts.values() if post.role == "proxy"]

    def engines(self) -> list[Post]:
        """All of them, the leaving ones too."""
        return [post for post in self.posts.values() if post.role == "engine"]

    def engine(self, generation: int) -> Post:
        """The engine of the generation, which is there as long as the generation is current or a candidate."""
        return self.posts[f"engine-{generation}"]

    def vacancy(self, at_least: int = 1) -> Post:
        """A new post for a proxy, with the lowest free number."""
        return Post(next(name for n in count(at_least) if (name := f"proxy-{n}") not in self.posts), "proxy")

    def fill(self, post: Post, now: float) -> Action:
        """Put a new process on the post."""
        self._num_spawned += 1
        self.posts[post.name] = post
        post.started(self._num_spawned, now, self._limits)
        return Spawn(post.child, post.name, post.role)

    def drain(self, post: Post, limit_s: float, now: float) -> list[Action]:
        """Give the post up: its process shall end within ``limit_s``, and has no successor."""
        if not post.alive:
            del self.posts[post.name]
        elif post.state is State.ABORTING:
            post.state = State.DRAINING  # it is as good as gone
        elif post.state is not State.DRAINING:
            post.state, post.due_at = State.DRAINING, now + limit_s + self._limits.drain_grace_s
            return [Drain(post.child, limit_s)]
        return []

    def abort(self, post: Post, reason: str, now: float) -> list[Action]:
        """End a process that cannot be reasoned with. SIGABRT makes it print its stacks; SIGKILL follows."""
        post.state, post.reason, post.due_at = State.ABORTING, reason, now + self._limits.abort_s
        return [Log("error", f"{post.name}: {reason}; it is aborted"), Kill(post.child, "SIGABRT")]

    def overdue(self, post: Post, now: float) -> list[Action]:
        """Its process has not done within the limit what it was asked for."""
        match post.state:
            case State.STARTING:
                return self.abort(post, "it was not ready in time", now)
            case State.BUILT | State.SERVING:
                return self.abort(post, post.trouble or f"no heartbeat for {self._limits.silence_s:g} s", now)
            case _:
                post.due_at = now + self._limits.abort_s
                why = f"{post.name} has not ended in time; it is killed"
                return [Log("warning", why), Kill(post.child, "SIGKILL")]

    def kill_all(self) -> list[Action]:
        """End every process at once."""
        return [Kill(post.child, "SIGKILL") for post in self.posts.values() if post.alive]

    def forgive(self, now: float) -> None:
        """The supervisor itself did not run until ``now``: the heartbeats of that time are still to be read."""
        for post in self.posts.values():
            post.heard(now, self._limits)

    def hurry(self, now: float) -> None:
        """Let nobody wait for the next attempt."""
        for post in self.posts.values():
            if not post.alive:
                post.due_at = now

    def wake_at(self) -> float:
        """When the first of them is due."""
        return min((post.due_at for post in self.posts.values()), default=inf)

    def faults(self, generation: int) -> list[str]:
        """Who should serve and does not, and why, of the proxies and the engine of the generation."""
        return [
            f"{post.name} is {post.trouble or post.state.value}" + f": {post.reason}" * bool(post.reason)
            for post in self.posts.values()
            if not post.serves and post.state is not State.DRAINING and post.generation in (0, generation)
        ]
