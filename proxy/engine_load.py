"""The local engine's load as it tells it: which models are full, and for how long, before any body is uploaded.

The engine keeps a page of numbers in a file beside its socket (``engine/load_page.py`` has the layout); it is mapped
here, so a look costs no system call. What is stale, missing or not understood says nothing, and the request is sent:
the engine judges for itself. Owns the mapping, and which models a request may be for before its body is read.
"""

from __future__ import annotations

import mmap
import os
from hashlib import blake2b
from typing import Final

_VERSION: Final = 1.0
STALE_S: Final = 2.0  # after which a page says nothing; the engine writes it four times a second
_AGAIN_S: Final = 1.0  # how often it is looked for where there is none
_RECORDS: Final = 3
_RECORD: Final = 6
_CHAT: Final = 0.0
_EMBEDDING: Final = 1.0
_ENDPOINTS: Final = (("/chat/completions", _CHAT), ("/completions", _CHAT), ("/embeddings", _EMBEDDING))
_BY_NAME: Final = "/v2/models/"


class EngineLoad:
    """Of the engine whose socket is at ``socket_path``."""

    def __init__(self, socket_path: str) -> None:
        self._path = f"{socket_path}.load"
        self._numbers: memoryview[float] | None = None
        self._looked_at = -_AGAIN_S

    def full_for_s(self, path: str, share: float, now: float) -> float | None:
        """None: some model that a request with this path may be for has a place within ``share`` of its places, or
        nobody knows. Else the seconds after which to come back."""
        name, kind = _asked_of(path)
        return None if name is None and kind is None else self._full_for_s(name, kind, share, now)

    def model_full_for_s(self, model: str, share: float, now: float) -> float | None:
        """The same for one model."""
        return self._full_for_s(_number_of(model), None, share, now)

    def _full_for_s(self, name: float | None, kind: float | None, share: float, now: float) -> float | None:
        numbers = self._numbers
        if numbers is None or not 0.0 <= now - numbers[1] < STALE_S:
            numbers = self._look(now)
            if numbers is None:
                return None
        wait_s: float | None = None
        for at in range(_RECORDS, _RECORDS + _RECORD * int(numbers[2]), _RECORD):
            if numbers[at] != name if name is not None else numbers[at + 1] != kind:
                continue
            inside, places = numbers[at + 2], numbers[at + 3]
            if not numbers[at + 5] or inside < share * places:
                return None  # it is loaded when it is asked for, or has a place
            wait_s = numbers[at + 4] if wait_s is None else min(wait_s, numbers[at + 4])
        return wait_s

    def _look(self, now: float) -> memoryview[float] | None:
        """Map the page anew: another engine may have made another one. None: there is none that says anything."""
        if now - self._looked_at < _AGAIN_S:
            return None
        self._looked_at = now
        self._numbers = None
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                numbers = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)).cast("d")
            finally:
                os.close(descriptor)
        except (OSError, ValueError, TypeError):
            return None
        if len(numbers) < _RECORDS or numbers[0] != _VERSION or len(numbers) < _RECORDS + _RECORD * int(numbers[2]):
            return None
        self._numbers = numbers
        return numbers if 0.0 <= now - numbers[1] < STALE_S else None


def _number_of(model: str) -> float:
    return float(int.from_bytes(blake2b(model.encode("utf-8", "replace"), digest_size=6).digest(), "big"))


def _asked_of(path: str) -> tuple[float | None, float | None]:
    """Which model a request is for: its name as a number where the path says it, or a kind; neither: not known."""
    _, found, rest = path.partition(_BY_NAME)
    if found:
        return _number_of(rest.partition("/")[0]), None
    for end, kind in _ENDPOINTS:
        if path.endswith(end):
            return None, kind
    return None, None
