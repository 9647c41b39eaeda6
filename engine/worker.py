"""One engine process from the inside: load the models, run them on one device, serve them, drain.

Owns the order of these steps and which failures are permanent. The appliance's child drives it, or ``python -m
engine``; it knows neither the control channel nor the command line.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import memory
from engine.device import Device
from engine.errors import EngineError as EngineError
from engine.errors import RequestError
from engine.fleet import Fleet
from engine.load_page import LoadPage, page_path
from engine.loading import open_entry
from engine.repository import Repository
from engine.serving import Serving
from engine.settings import EngineSettings

if TYPE_CHECKING:
    from engine.server import Server

#: A run holds the GIL for moments only, but between runs the device's thread and the loop share it: hand over quickly.
_SWITCH_INTERVAL_S = 0.0005
_STOP_DEVICE_S = 5.0

_log = logging.getLogger(__name__)


class EngineWorker:
    """Serves ``settings.models`` on ``settings.socket_path``. All methods are for the event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._serving: Serving | None = None
        self._server: Server | None = None
        self._page: LoadPage | None = None

    async def start(self, progress: Callable[[str], None]) -> None:
        """Load and warm up the models that there is memory for, then bind the socket and serve. progress: told each
        step in a few words.

        Raises EngineError; what was loaded before it is given back.
        """
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        settings = self._settings
        threads = settings.threads or len(os.sched_getaffinity(0))
        importing = _Importing()
        open_model = partial(open_entry, threads=threads, quiet=importing.wait)
        entries = [await asyncio.to_thread(open_model, model) for model in settings.models]
        device = Device("cpu", [], asyncio.get_running_loop())
        fleet = Fleet(entries, device, budget=lambda: int(settings.memory * memory.reachable_bytes()))
        repository = Repository(fleet, open_model, settings.models, settings.repository)
        await repository.open()
        serving = Serving(
            fleet,
            device,
            hang_s=settings.hang_s,
            max_body_bytes=settings.max_body_bytes,
            repository=repository,
            control=settings.control,
        )
        device.start()
        try:
            await fleet.start(progress)
            server = (await asyncio.to_thread(importing.wait))(serving, settings.socket_path)
            await server.open()
        except BaseException as error:
            await device.stop(_STOP_DEVICE_S)
            await fleet.close()
            match error:
                case OSError():
                    path, why = settings.socket_path, error.strerror or error
                    raise EngineError(f"{path}: cannot listen there ({why})", permanent=False) from error
                case MemoryError():  # nobody says how much there is
                    raise EngineError(str(error), permanent=True) from error
            raise
        gc.freeze()  # what was loaded at the start mostly stays: never search it for garbage again
        self._serving, self._server = serving, server
        self._page = LoadPage(page_path(settings.socket_path), fleet.entries)
        self._page.open()
        progress("serving")

    def healthy(self, now: float) -> str | None:
        """None when the runner is fine, otherwise why not. now: monotonic seconds."""
        return None if self._serving is None else self._serving.problem(now)

    async def drain(self, deadline_s: float) -> bool:
        """Take no new connection, let requests end within ``deadline_s``, cut the rest, stop. True: nothing was cut."""
        serving, server = self._serving, self._server
        if serving is None or server is None:
            return True
        await server.stop_accepting()
        if self._page is not None:
            self._page.close()
        nothing_cut = await serving.drain(deadline_s)
        await server.close()
        serving.pool.close()
        if await serving.device.stop(_STOP_DEVICE_S):
            await serving.fleet.close()
        self._serving = self._server = None
        return nothing_cut

    async def order(self, order: str, name: str = "", path: str = "") -> dict[str, Any]:
        """An operator's order: ``load``, ``unload`` or ``swap`` the model called ``name`` (``swap``: for the folder at
        ``path``), or only ``list``. What became of it: ``ok``, ``problems`` and all ``models`` as they are then."""
        if self._serving is None:
            return {"ok": False, "problems": ["the engine is not serving yet"], "models": []}
        repository = self._serving.repository
        problems: list[str] = []
        models: list[dict[str, Any]] = []
        try:
            match order:
                case "load":
                    await repository.load(name)
                case "unload":
                    await repository.unload(name)
                case "swap":
                    await repository.swap(name, Path(path))
            models = [asdict(row) for row in await repository.index()]
        except (EngineError, RequestError) as error:
            problems.append(str(error))
        return {"ok": not problems, "problems": problems, "models": models}

    def statistics(self) -> dict[str, Any]:
        """Plain numbers of each model and of the device."""
        serving = self._serving
        if serving is None:
            return {"models": {}, "requests": 0, "steps": 0}
        return {
            "models": serving.fleet.statistics(),
            "requests": serving.num_inside,
            "steps": serving.device.num_steps,
            "run_s": serving.device.occupancy.run_s,
            "host_s": serving.device.occupancy.host_s,
        }


class _Importing:
    """The HTTP server's modules, imported beside the loading of models: the one takes the interpreter, and the other,
    until it times its steps, a processor for as long."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._import, name="import", daemon=True)
        self._thread.start()

    def _import(self) -> None:
        import engine.server  # noqa: F401

    def wait(self) -> type[Server]:
        """The server, when all of it is there. Any thread."""
        self._thread.join()
        from engine.server import Server

        return Server
