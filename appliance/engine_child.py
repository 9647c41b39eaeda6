"""The engine's role in a child: start when configured, show its health in its heartbeats, drain at the end.

Knows nothing of models: engine.worker does the work.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

from appliance import exit_codes, log
from appliance.control import Message
from appliance.link import Link
from engine.errors import EngineError
from engine.settings import EngineSettings

_log = logging.getLogger("headrace.engine")


class Worker(Protocol):
    """engine.worker.EngineWorker, as far as it is needed here."""

    async def start(self, progress: Callable[[str], None]) -> None: ...
    def healthy(self, now: float) -> str | None: ...
    async def drain(self, deadline_s: float) -> bool: ...
    async def order(self, order: str, name: str, path: str) -> dict[str, Any]: ...
    def statistics(self) -> dict[str, Any]: ...


class EngineChild:
    """Carries the supervisor's orders out on a worker, which is made when its settings come."""

    def __init__(self, link: Link, make_worker: Callable[[EngineSettings], Worker]) -> None:
        self._link = link
        self._make_worker = make_worker
        self._worker: Worker | None = None
        self._socket_path = ""
        self._serves = False
        self._orders: set[asyncio.Task[None]] = set()

    def report(self) -> tuple[str | None, dict[str, Any]]:
        """Well while it loads; afterwards as the worker says, as long as it can be reached."""
        if self._worker is None or not self._serves:
            return None, {}
        trouble = self._worker.healthy(time.monotonic())
        if trouble is None and not os.path.exists(self._socket_path):
            trouble = f"its socket {self._socket_path} was removed"
        return trouble, self._worker.statistics()

    async def run(self) -> int:
        """Obey until told to end, or until the start fails; return the exit code."""
        self._link.start_beating(self.report)
        starting: asyncio.Task[int | None] | None = None
        while True:
            order = asyncio.ensure_future(self._link.inbox.get())
            await asyncio.wait({order} if starting is None else {order, starting}, return_when=asyncio.FIRST_COMPLETED)
            if starting is not None and starting.done():
                code, starting = starting.result(), None
                if code is not None:
                    return code
            if not order.done():
                order.cancel()
                continue
            message, _ = order.result()
            match message["type"]:
                case "configure":
                    log.set_level(message["log_level"])
                    starting = asyncio.create_task(self._start(EngineSettings.from_json(message["settings"])))
                case "models":
                    obeying = asyncio.create_task(self._obey(message))  # the next message may be to end
                    self._orders.add(obeying)
                    obeying.add_done_callback(self._orders.discard)
                case "drain":
                    if self._worker is not None and self._serves:
                        await self._link.finish(self._worker.drain, message["limit_s"])
                    return exit_codes.OK

    async def _obey(self, message: Message) -> None:
        assert self._worker is not None  # only an engine that serves is given orders
        try:
            answer = await self._worker.order(message["order"], message["name"], message["path"])
        except Exception as error:
            _log.exception("an order failed")
            answer = {"ok": False, "problems": [f"{type(error).__name__}: {error}"], "models": []}
        self._link.tell("answer", ticket=message["ticket"], **answer)

    async def _start(self, settings: EngineSettings) -> int | None:
        """None: it serves. Else the exit code."""
        began_at = time.monotonic()
        self._worker, self._socket_path = self._make_worker(settings), settings.socket_path
        try:
            await self._worker.start(lambda step: self._link.tell("progress", step=step))
        except EngineError as error:
            self._link.tell("fatal", reason=str(error))
            return exit_codes.CANNOT_BOOT if error.permanent else exit_codes.FAILED
        self._serves = True
        self._link.tell("serving")
        _log.info("loaded and warm after %.1f s", time.monotonic() - began_at)
        return None
