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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine import model_folder
from engine.device import Device
from engine.embedder import load_embedder
from engine.errors import EngineError as EngineError
from engine.llm.chat import ChatModel
from engine.model_folder import ModelError, ModelFolder
from engine.server import Server
from engine.serving import Model, Serving
from engine.settings import EngineSettings, ModelSettings

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

    async def start(self, progress: Callable[[str], None]) -> None:
        """Load and warm up every model, then bind the socket and serve. progress: told each step in a few words.

        Raises EngineError; what was loaded before it is given back.
        """
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        models = await self._load_all(progress)
        device = Device("cpu", [model.lane for model in models.values()], asyncio.get_running_loop())
        serving = Serving(models, device, hang_s=self._settings.hang_s, max_body_bytes=self._settings.max_body_bytes)
        server = Server(serving, self._settings.socket_path)
        gc.freeze()  # what was loaded lives as long as the process: never search it for garbage again
        device.start()
        try:
            await server.open()
        except OSError as error:
            await device.stop(_STOP_DEVICE_S)
            path = self._settings.socket_path
            raise EngineError(f"{path}: cannot listen there ({error.strerror or error})", permanent=False) from error
        self._serving, self._server = serving, server
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
        nothing_cut = await serving.drain(deadline_s)
        await server.close()
        if await serving.device.stop(_STOP_DEVICE_S):
            for model in serving.models.values():
                model.close()
        self._serving = self._server = None
        return nothing_cut

    def statistics(self) -> dict[str, Any]:
        """Plain numbers of each model and of the device."""
        serving = self._serving
        if serving is None:
            return {"models": {}, "requests": 0, "steps": 0}
        return {
            "models": {name: model.statistics() for name, model in serving.models.items()},
            "requests": serving.num_inside,
            "steps": serving.device.num_steps,
        }

    async def _load_all(self, progress: Callable[[str], None]) -> dict[str, Model]:
        threads = self._settings.threads or len(os.sched_getaffinity(0))
        models: dict[str, Model] = {}
        try:
            for settings in self._settings.models:
                progress(f"loading {settings.name} from {settings.path}")
                share = 1 / len(self._settings.models)
                models[settings.name] = await asyncio.to_thread(_load, settings, threads, share)
        except BaseException:
            for model in models.values():
                model.close()
            raise
        return models


def _load(settings: ModelSettings, threads: int, memory_share: float) -> Model:
    try:
        folder = model_folder.read(Path(settings.path))
        return _load_kind(folder, settings, threads, memory_share)
    except ModelError as error:
        raise EngineError(f"model {settings.name!r}: {error}", permanent=True) from error
    except MemoryError as error:
        message = f"model {settings.name!r}: not enough memory ({error or 'none left'})"
        raise EngineError(message, permanent=False) from error


def _load_kind(folder: ModelFolder, settings: ModelSettings, threads: int, memory_share: float) -> Model:
    if folder.manifest.kind == "chat":
        return ChatModel.load(folder, settings, threads=threads, memory_share=memory_share)
    return load_embedder(folder, settings, threads=threads)
