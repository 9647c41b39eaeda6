"""What requests have used, on its way into the record of usage: the event loop never waits for the disk.

Records are added up in memory, by what tells rows apart, and written once a second by a thread. What cannot be written
is kept and tried again; when there are too many sums that wait, records of others are dropped, counted and told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from proxy.usage_store import SLOT_S, Place, StoreError, Sums, UsageStore

log = logging.getLogger("headrace.proxy")

MAX_WAITING: Final = 10_000  # sums, in one worker
#: Models that one key has rows for in a quarter of an hour, in one worker. Where an upstream answers to any name, its
#: clients make names up: they would push the rows of all others out of the record.
MAX_MODELS: Final = 200
OTHER_MODELS: Final = "(others)"
_WRITE_S: Final = 1.0
_LATE_S: Final = 86400  # by which requests that ended were admitted earlier
_FORGET_S: Final = 60.0
_MAX_NAME: Final = 256
_MAX_TOKENS: Final = (1 << 36) - 1  # an upstream may say anything


class UsageRecord(NamedTuple):
    """One request that used tokens. wall_at: when it was admitted, in Unix time: its budgets count it there. The other
    names are "" where there is none."""

    wall_at: float
    key_id: str
    tenant: str
    team: str
    model: str
    upstream: str
    route: str
    status: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    estimated: bool = False


class UsageLog:
    """One worker's end. recorded, dropped: told how many records are taken, and how many of them are not kept."""

    def __init__(
        self, path: str, keep_s: float, max_bytes: int, recorded: Callable[[int], None], dropped: Callable[[int], None]
    ) -> None:
        self._path = path
        self._keep_s = keep_s
        self._max_bytes = max_bytes
        self._recorded = recorded
        self._dropped = dropped
        self._waiting: dict[Place, Sums] = {}
        self._models: dict[str, set[str]] = {}  # by key, of the last quarter of an hour
        self._models_at = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="usage")
        self._store: UsageStore | None = None
        self._forget_at = 0.0
        self._said = ""
        self._told_full = False
        self._closed = False

    def record(self, record: UsageRecord) -> None:
        """Take note of a request; returns at once. Once for each."""
        slot_at = int(record.wall_at // SLOT_S) * SLOT_S
        key = _name(record.key_id)
        place = Place(
            slot_at, key, _name(record.tenant), _name(record.team), self._model(slot_at, key, _name(record.model)),
            _name(record.upstream), _name(record.route), record.status,
        )  # fmt: skip
        num_prompt, num_completion, num_cached = [
            min(max(0, each), _MAX_TOKENS)
            for each in (record.prompt_tokens, record.completion_tokens, record.cached_tokens)
        ]
        self._recorded(1)
        self._take(place, Sums(1, num_prompt, num_completion, num_cached, int(record.estimated), record.wall_at))
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_WRITE_S, self._write_soon)

    async def close(self) -> None:
        """Write what waits, and let go of the file."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _ in range(2):  # what is under way, then the rest
            if self._writing is not None:
                await self._writing
            self._begin()
        if self._writing is not None:
            await self._writing
        self._thread.shutdown()
        if self._store is not None:
            self._store.close()
            self._store = None
        self._dropped(sum(each.requests for each in self._waiting.values()))

    def _model(self, slot_at: int, key: str, model: str) -> str:
        """What a model is recorded as."""
        if not 0 <= self._models_at - slot_at < _LATE_S:  # a later one, or the clock was put back
            self._models_at = slot_at
            self._models.clear()
        known = self._models.setdefault(key, set())
        if model not in known:
            if len(known) >= MAX_MODELS:
                return OTHER_MODELS
            known.add(model)
        return model

    def _take(self, place: Place, sums: Sums) -> None:
        before = self._waiting.get(place)
        if before is not None:
            self._waiting[place] = before.plus(sums)
        elif len(self._waiting) < MAX_WAITING:
            self._waiting[place] = sums
        else:
            self._dropped(sums.requests)
            self._say(f"more than {MAX_WAITING} sums wait to be written; what others use is not recorded")

    def _write_soon(self) -> None:
        self._timer = None
        self._begin()

    def _begin(self) -> None:
        if not self._waiting or (self._writing is not None and not self._writing.done()):
            return
        batch, self._waiting = self._waiting, {}
        self._writing = asyncio.ensure_future(self._write(batch))

    async def _write(self, batch: dict[Place, Sums]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._add, batch)
            self._said = ""
        except StoreError as error:
            self._say(f"{error}; it is tried again")
            for place, sums in batch.items():
                self._take(place, sums)
        if self._waiting and self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_WRITE_S, self._write_soon)

    def _add(self, batch: dict[Place, Sums]) -> None:
        """In the thread."""
        if self._store is None:
            self._store = UsageStore(self._path)
        self._store.add(batch)
        now = time.time()
        if now >= self._forget_at:
            self._forget_at = now + _FORGET_S
            self._forget(self._store, now)

    def _forget(self, store: UsageStore, now: float) -> None:
        """In the thread. What was added stays so, whatever comes of this."""
        try:
            while store.forget(now - self._keep_s, self._max_bytes):
                if not self._told_full:
                    self._told_full = True
                    text = (
                        "the record of usage %s has reached %d bytes; its oldest rows are forgotten before their time"
                    )
                    log.warning(text, self._path, self._max_bytes)
        except StoreError as error:
            self._say(f"{error}; what is old stays for now")

    def _say(self, text: str) -> None:
        """Tell the log, once for each new kind of fault."""
        if self._said != text:
            self._said = text
            log.error("%s", text)

    def __del__(self) -> None:
        self._thread.shutdown(wait=False)
        if self._store is not None:
            self._store.close()


def _name(text: str) -> str:
    """A name as a row can have it."""
    return text if text.isascii() and len(text) <= _MAX_NAME else text[:_MAX_NAME].encode("utf-8", "replace").decode()
