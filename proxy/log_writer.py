"""Lines on their way to a file descriptor, without the event loop ever waiting for it.

Owns a bounded buffer and one write at a time in a thread. What finds the buffer full is dropped and counted: a log that
nobody takes must cost lines, not requests.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

MAX_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 65536


class LineWriter:
    """Writes lines to ``descriptor``; None: nowhere. dropped: called for every line lost."""

    def __init__(self, descriptor: int | None, dropped: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._dropped = dropped
        self._lines: list[bytes] = []
        self._num_bytes = 0
        self._writing: asyncio.Future[None] | None = None

    @property
    def writes(self) -> bool:
        """Whether what is emitted goes anywhere."""
        return self._descriptor is not None

    def emit(self, line: bytes) -> None:
        """Take one line without its newline; returns at once."""
        if self._descriptor is None:
            return
        if self._num_bytes > MAX_BYTES:
            self._dropped()
            return
        self._lines.append(line)
        self._num_bytes += len(line) + 1

    def flush(self) -> None:
        """Begin to write what was taken, unless a write is under way. Called by the worker's sweep."""
        if not self._lines or (self._writing is not None and not self._writing.done()):
            return
        data = b"\n".join(self._lines) + b"\n"
        self._lines.clear()
        self._num_bytes = 0
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, data)

    async def close(self) -> None:
        """Write what is left."""
        for _ in range(2):  # what is under way, then the rest
            if self._writing is not None:
                await self._writing
            self.flush()

    def _write(self, data: bytes) -> None:
        assert self._descriptor is not None
        view = memoryview(data)
        while view:
            try:
                num_written = os.write(self._descriptor, view[:_PIECE_BYTES])
                view = view[num_written:]
            except OSError:  # the disk is full or the reader is gone
                for _ in range(bytes(view).count(b"\n")):
                    self._dropped()
                return
