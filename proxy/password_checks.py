"""Passwords that are being judged: in a few threads, a bounded number at once, and remembered for a while once right.

A hash that is slow on purpose must cost neither the event loop nor more of the box than a few threads: what comes when
the queue is full is refused, and one client can fill only a part of it. Equal checks that are under way are one. What
is remembered is an HMAC under a key that this process drew, over the user, the hash in the file and the password: the
memory gives no password away, and a changed file makes it forget. Wrong passwords are not remembered: who guesses would
choose what the memory holds.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

NUM_THREADS = 2
MAX_OPEN = 64
MAX_OPEN_PER_CLIENT = 8
MAX_REMEMBERED = 1024


class _Check:
    """One password that is being judged, and how many requests wait for the answer."""

    __slots__ = ("done", "num_waiting")

    def __init__(self) -> None:
        self.done: asyncio.Future[bool]
        self.num_waiting = 0


class PasswordChecks:
    """The checks of one process. matches: (hash, password) -> whether it is right, slow, called in a thread."""

    def __init__(self, matches: Callable[[bytes, bytes], bool], *, num_threads: int = NUM_THREADS) -> None:
        self._matches = matches
        self._num_threads = num_threads
        self._threads: ThreadPoolExecutor | None = None  # begun by the first check
        self._key = secrets.token_bytes(32)
        self._right: dict[bytes, float] = {}  # digest -> when it was found right; the oldest first
        self._wanted: dict[bytes, _Check] = {}  # under way, and somebody waits
        self.num_open = 0  # under way; those that nobody waits for any more count until a thread has let go of them
        self._num_by_client: dict[str, int] = {}

    def digest(self, user: bytes, kept: bytes, password: bytes) -> bytes:
        """What stands for the three, none of which holds a NUL."""
        return hmac.digest(self._key, b"\0".join((user, kept, password)), "sha256")

    def remembers(self, digest: bytes, since: float) -> bool:
        """Whether it was found right at ``since`` or later."""
        found_at = self._right.get(digest)
        return found_at is not None and found_at >= since

    def remember(self, digest: bytes, now: float) -> None:
        """It was found right; what was so longest ago makes room."""
        self._right.pop(digest, None)
        if len(self._right) >= MAX_REMEMBERED:
            del self._right[next(iter(self._right))]
        self._right[digest] = now

    def begin(self, digest: bytes, client: str, kept: bytes, password: bytes) -> Awaitable[bool] | None:
        """Whether it is right, to be awaited, begun or joined; None: too many wait, or too many of this client's."""
        check = self._wanted.get(digest)
        if check is None:
            of_client = self._num_by_client.get(client, 0)
            if self.num_open >= MAX_OPEN or of_client >= MAX_OPEN_PER_CLIENT:
                return None
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._num_threads, thread_name_prefix="passwords")
            self._wanted[digest] = check = _Check()
            self.num_open += 1
            self._num_by_client[client] = of_client + 1
            check.num_waiting = 1  # before a thread looks
            loop = asyncio.get_running_loop()
            check.done = loop.run_in_executor(self._threads, self._judge, check, kept, password)
            check.done.add_done_callback(lambda _done: self._ended(digest, check, client))
        else:
            check.num_waiting += 1
        return self._wait(digest, check)

    def _judge(self, check: _Check, kept: bytes, password: bytes) -> bool:
        """In a thread. What nobody waits for any more is not worth a hash: a worker that drains is soon done."""
        return check.num_waiting > 0 and self._matches(kept, password)

    async def _wait(self, digest: bytes, check: _Check) -> bool:
        try:
            return await asyncio.shield(check.done)
        finally:
            check.num_waiting -= 1
            if not check.num_waiting:
                self._forget(digest, check)

    def _ended(self, digest: bytes, check: _Check, client: str) -> None:
        self._forget(digest, check)
        self.num_open -= 1
        left = self._num_by_client[client] - 1
        if left:
            self._num_by_client[client] = left
        else:
            del self._num_by_client[client]

    def _forget(self, digest: bytes, check: _Check) -> None:
        """Nobody joins it any more: a thread may have found that nobody waits."""
        if self._wanted.get(digest) is check:
            del self._wanted[digest]
