"""The status page: the supervisor's statistics and what the children say of themselves, as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from appliance.children import Child
from appliance.metrics import resident_bytes
from appliance.post import Post
from appliance.statistics import Statistics


def spell_status(
    statistics: Statistics, children: Iterable[Child], *, uptime_s: float, urls: list[str], admin: str | None
) -> dict[str, Any]:
    """The page. children: the running ones."""
    running = {child.number: child for child in children}
    reloads = statistics.reloads
    return {
        "version": installed_version(),
        "phase": statistics.phase,
        "ready": not statistics.faults,
        "faults": list(statistics.faults),
        "uptime_s": round(uptime_s, 1),
        "revision": statistics.revision,
        "generation": statistics.generation,
        "listeners": urls,
        "admin": admin,
        "reloads": {"ok": reloads.num_ok, "failed": reloads.num_failed, "last_problems": list(reloads.last_problems)},
        "children": [_spell_post(post, running.get(post.child)) for post in statistics.posts],
    }


def _spell_post(post: Post, child: Child | None) -> dict[str, Any]:
    return {
        "name": post.name,
        "pid": child.process.pid if child else None,
        "state": post.state.value,
        "restarts": post.num_restarts,
        "reason": post.trouble or post.reason,
        "resident_bytes": resident_bytes(child.process.pid) if child else None,
        **({"revision": post.revision} if post.role == "proxy" else {"generation": post.generation}),
        **(child.statistics if child else {}),
    }


def installed_version() -> str:
    """The version of the installed distribution; a bare checkout has none."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"
