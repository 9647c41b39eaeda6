"""Whether a server is up by what its checks say: ``fall`` bad ones running take it down, ``rise`` good ones bring it
back. Pure.

The very first check counts whole, either way: a worker that starts beside a dead server shall not need ``fall``
intervals to see it. Also here: whether an answer to a check is a good one.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.config import Health as HealthConfig
from proxy.config import StatusRange


class Health:
    """One server's standing. up: it may be asked. reason: of the last bad check, "" after a good one."""

    __slots__ = ("_config", "_running", "num_checks", "reason", "up")

    def __init__(self, config: HealthConfig, *, up: bool = True) -> None:
        self._config = config
        self._running = 0  # checks running that speak against ``up``
        self.num_checks = 0
        self.up = up
        self.reason = ""

    def told(self, reason: str) -> bool:
        """Take the outcome of a check: why it was bad, "" for a good one. True: the server went down or came up."""
        self.num_checks += 1
        self.reason = reason
        if (reason == "") is self.up:
            self._running = 0
            return False
        self._running += 1
        needed = self._config.fall if self.up else self._config.rise
        if self._running < needed and self.num_checks > 1:
            return False
        self.up = not self.up
        self._running = 0
        return True


def verdict(status: int, body: bytes, wanted: Sequence[StatusRange], text: str | None) -> str:
    """Why an answer is a bad one, "" if it is good. body: its first bytes, as many as are looked at."""
    if not any(low <= status <= high for low, high in wanted):
        return f"it answered {status}"
    if text is not None and text.encode() not in body:
        return "its answer does not contain the text that health.body asks for"
    return ""
