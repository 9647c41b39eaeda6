"""A picture of the supervisor at one moment, for the status page, the metrics and the health check."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.post import Post
from appliance.reload_queue import ReloadQueue


@dataclass(frozen=True, slots=True)
class Statistics:
    """Copies: nothing in it changes any more."""

    phase: str  # starting, serving, reloading, stopping
    faults: tuple[str, ...]  # why the box is not ready; empty: it is
    revision: int  # of the configuration in force; 0: none yet
    generation: int  # of the engine in force; 0: none
    reloads: ReloadQueue
    posts: tuple[Post, ...]
