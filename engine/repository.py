"""The model repository: which names there are, and orders to load, swap and unload them by name.

Owns the directory whose model folders are served under the names of their own directories. A folder that appears in it
later is listed, and served once it is loaded by an order, since nobody can tell whether it is still being copied. How a
model comes into memory and leaves it is the fleet's. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from engine.entry import Entry, State
from engine.errors import EngineError, Kind, RequestError
from engine.fleet import Fleet
from engine.model_folder import MANIFEST
from engine.settings import ModelSettings

MAX_FOLDERS = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_log = logging.getLogger(__name__)

Open = Callable[[ModelSettings], Entry]  # reads a model's folder; blocking, raises EngineError


def _refuse(settings: ModelSettings) -> Entry:
    raise EngineError(f"model {settings.name!r}: this engine reads no folders", permanent=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One name of the index. version: None while no folder of that name has been read."""

    name: str
    version: str | None
    state: State
    reason: str


class Repository:
    """Orders to a fleet, by name. All methods are for the event loop."""

    def __init__(
        self,
        fleet: Fleet,
        open_entry: Open = _refuse,
        models: Iterable[ModelSettings] = (),
        directory: str | None = None,
    ) -> None:
        """models: those that the configuration names. directory: of the others; None: there are no others."""
        self._fleet = fleet
        self._open = open_entry
        self._settings = {each.name: each for each in models}
        self._directory = Path(directory) if directory else None
        self._failed: set[str] = set()  # folders that were to be served and cannot even be read

    async def open(self) -> None:
        """Give the fleet every folder of the directory. One that cannot be read is listed with its reason and does not
        keep the others from serving. Raises EngineError when the directory cannot be read."""
        for name in await asyncio.to_thread(self._scan):
            if name not in self._fleet.entries:
                try:
                    self._fleet.entries[name] = await self._read(name)
                except EngineError as error:
                    _log.error("%s", error)

    async def index(self) -> list[Row]:
        """Every name, in alphabetical order: served, to be loaded, or only there. Raises EngineError as ``open``."""
        rows = {
            name: Row(name, entry.source.version, entry.state, entry.reason)
            for name, entry in self._fleet.entries.items()
        }
        for name in await asyncio.to_thread(self._scan):
            reason = "it could not be read; the engine's log says why" if name in self._failed else "not loaded yet"
            rows.setdefault(name, Row(name, None, State.UNAVAILABLE, reason))
        return [rows[name] for name in sorted(rows)]

    async def load(self, name: str) -> None:
        """Serve what the folder of this name holds now. Raises RequestError (404, 503) and EngineError, as
        ``Fleet.load``; it may name paths."""
        if name not in self._fleet.entries:
            if name not in await asyncio.to_thread(self._scan):
                raise self.unknown(name)
            entry = await self._read(name)
            self._fleet.entries.setdefault(name, entry)  # another order may have come first
        await self._fleet.load(self._fleet.entries[name])

    async def swap(self, name: str, path: Path) -> None:
        """Serve the folder at ``path`` under this name, until the engine is started anew. Raises as ``load``."""
        entry = self._known(name)
        settings = dataclasses.replace(self._settings_of(name), path=str(path))
        successor = await asyncio.to_thread(self._open, settings)
        await self._fleet.load(entry, successor.reread)

    async def unload(self, name: str) -> None:
        """Give it to no new request until it is loaded by an order. Raises RequestError (404, 503)."""
        entry = self._known(name)
        await self._fleet.unload(entry)
        if self._directory is None or name in self._settings:
            return
        if name not in await asyncio.to_thread(self._scan) and not entry.is_wanted:
            self._fleet.entries.pop(name, None)  # its folder is gone, too

    def why_not(self) -> list[str]:
        """The names that were to be served and cannot be now; empty: all can.

        A model of the directory that was unloaded by an order is not to be served; one that the configuration names is
        promised by it, whoever unloaded it.
        """
        unready = [
            name
            for name, entry in self._fleet.entries.items()
            if entry.state is not State.READY and (entry.is_wanted or name in self._settings)
        ]
        return sorted({*unready, *self._failed})

    def unknown(self, name: str) -> RequestError:
        """What a request for a name that is not served is answered."""
        if name in self._failed:
            message = f"the model {name!r} could not be loaded; the engine's log says why"
            return RequestError(Kind.UNAVAILABLE, message)
        known = ", ".join(sorted(self._fleet.entries)) or "none"
        return RequestError(Kind.MODEL_NOT_FOUND, f"there is no such model here; there is: {known}", param="model")

    async def _read(self, name: str) -> Entry:
        try:
            entry = await asyncio.to_thread(self._open, self._settings_of(name))
        except EngineError:
            self._failed.add(name)
            raise
        self._failed.discard(name)
        entry.is_needed = name in self._settings
        return entry

    def _known(self, name: str) -> Entry:
        entry = self._fleet.entries.get(name)
        if entry is None:
            raise self.unknown(name)
        return entry

    def _settings_of(self, name: str) -> ModelSettings:
        if self._directory is None or name in self._settings:
            return self._settings[name]
        return ModelSettings(name=name, path=str(self._directory / name))

    def _scan(self) -> list[str]:
        """The names of the directory's model folders. Blocking."""
        if self._directory is None:
            return []
        try:
            names = [path.name for path in self._directory.iterdir() if (path / MANIFEST).is_file()]
        except OSError as error:
            message = f"the model repository {self._directory} cannot be read: {error.strerror or error}"
            raise EngineError(message, permanent=False) from error
        names = sorted(filter(_NAME.fullmatch, names))
        if len(names) > MAX_FOLDERS:
            message = f"the model repository {self._directory} has more than {MAX_FOLDERS} model folders; remove some"
            raise EngineError(message, permanent=True)
        return names
