"""A configuration on its way to be the current one: who has still to build it, and who to commit it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.events import Plan
from appliance.post import Post


@dataclass(slots=True)
class Candidate:
    """Posts go by name, since a start outlives a child that dies. ``due_at`` limits the phase that it is in."""

    plan: Plan
    revision: int
    generation: int
    loads_engine: bool  # the generation is a new one
    due_at: float
    asked: frozenset[str] = frozenset()  # the proxies of the rollout
    pending: frozenset[str] = frozenset()  # those that have not built it; after the commit, not committed it
    committed: bool = False

    def concerns(self, post: Post) -> bool:
        """Whether the process of this post builds it now."""
        if self.committed:
            return False
        if post.role == "engine":
            return self.loads_engine and post.generation == self.generation
        return post.name in self.asked

    def ask(self, names: list[str]) -> None:
        """These proxies shall build it."""
        self.asked = self.pending = frozenset(names)

    def commit(self, due_at: float) -> None:
        """All have built it; from now on it is a matter of their taking it."""
        self.committed, self.pending, self.due_at = True, self.asked, due_at
