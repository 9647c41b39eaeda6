"""What the engine tells of its load: places taken and free by model, in a file that the edge maps into its memory.

So whoever forwards requests knows at once that a model is full, and for how long, before a body is uploaded in vain. It
is a hint, never a promise: a request that comes all the same is judged by ``engine.admission``. How many are inside is
written in the moment in which it changes, everything else a few times a second, with the time: a page that has gone
stale says nothing. The layout is told to nobody in code, since the edge knows nothing of the engine: all numbers are
doubles; VERSION, when it was written (monotonic seconds; 0: it is being remade), how many records; then by model
RECORD numbers: ``name_number`` of its name, its kind (KINDS), inside, places, seconds until about half of the work is
done, and whether it is in memory.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import time
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from engine.admission import Admission
from engine.entry import Entry

VERSION: Final = 1.0
REFRESH_S: Final = 0.25
MAX_MODELS: Final = 256
RECORD: Final = 6
KINDS: Final = {"chat": 0.0, "embedding": 1.0, "tensor": 2.0}
_VERSION, _WRITTEN_AT, _COUNT, _RECORDS = range(4)
_INSIDE: Final = 2
SIZE_BYTES: Final = 8 * (_RECORDS + RECORD * MAX_MODELS)

_log = logging.getLogger(__name__)


def page_path(socket_path: str) -> str:
    """Where the page of an engine on this socket is."""
    return f"{socket_path}.load"


def name_number(name: str) -> float:
    """A model's name as a number: 48 bits of a digest."""
    return float(int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=6).digest(), "big"))


class LoadPage:
    """The page of one engine, kept up to date on its event loop from ``open`` to ``close``."""

    def __init__(self, path: str, entries: Mapping[str, Entry]) -> None:
        """entries: the models by name, as they are at any moment."""
        self._path = path
        self._entries = entries
        self._memory: mmap.mmap | None = None
        self._numbers: memoryview[float] = memoryview(bytearray(SIZE_BYTES)).cast("d")
        self._told: list[Admission] = []  # whose number stands in the page
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Make the file, or take over what a dead engine left. Without one the engine serves as well."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            try:
                os.ftruncate(descriptor, SIZE_BYTES)
                self._memory = mmap.mmap(descriptor, SIZE_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            _log.warning("%s: its load will not be seen from outside (%s)", self._path, error.strerror or error)
            return
        self._numbers = memoryview(self._memory).cast("d")
        self._numbers[_VERSION], self._numbers[_WRITTEN_AT] = VERSION, 0.0
        self._refresh()

    def close(self) -> None:
        """Remove the file; what others have mapped goes stale."""
        if self._memory is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._numbers[_WRITTEN_AT] = 0.0
        self._let_go()
        self._numbers.release()
        self._memory.close()
        self._memory = None
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return

    def write(self, now: float) -> None:
        """Write down how all models are. now: monotonic seconds."""
        numbers = self._numbers
        self._let_go()
        count = 0
        for name, entry in list(self._entries.items())[:MAX_MODELS]:
            at = _RECORDS + RECORD * count
            numbers[at], numbers[at + 1] = name_number(name), KINDS[entry.kind]
            model = entry.model
            if model is None:
                numbers[at + 2] = numbers[at + 3] = numbers[at + 4] = numbers[at + 5] = 0.0
            else:
                admission = model.admission
                numbers[at + 3], numbers[at + 4] = admission.running + admission.queue, admission.retry_after_s()
                numbers[at + 5] = 1.0
                self._told.append(admission)
                admission.show(numbers[at + _INSIDE : at + _INSIDE + 1])
            count += 1
        numbers[_COUNT], numbers[_WRITTEN_AT] = count, now

    def _let_go(self) -> None:
        for admission in self._told:
            admission.show([0.0])
        self._told.clear()

    def _refresh(self) -> None:
        self.write(time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(REFRESH_S, self._refresh)
