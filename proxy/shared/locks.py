"""Locks of a shared table that end with their holder, and none while a worker is alone.

They are the kernel's record locks on bytes of the mapping's file: held by a process, so that whatever ends the process
ends them, and waited for in the kernel. They are held for microseconds, between two lines of synchronous code; so
whoever finds one taken asks again a few times before it sleeps, which takes longer than most wait.

A worker that is alone needs none. The supervisor says so by an even epoch, and makes it odd *before* it starts a second
worker. Each worker looks at the epoch whenever it begins a decision, and says in its column which one it has seen; the
newcomer decides nothing before all others have said that they lock. So nobody is ever inside of an unlocked change
when another one begins.
"""

from __future__ import annotations

import fcntl
from typing import Final

from proxy.shared.layout import (
    COLUMNS_AT,
    EPOCH_AT,
    LIMIT_LOCKS,
    NUM_STRIPES,
    PERMIT_LOCKS,
    Memory,
    locking,
    unlocking,
)

STRIPE_MASK: Final = NUM_STRIPES - 1
LIMIT_STRIPES = tuple(locking(LIMIT_LOCKS + i) for i in range(NUM_STRIPES))
ALL_LIMITS, LIMITS_DONE = locking(LIMIT_LOCKS, NUM_STRIPES), unlocking(LIMIT_LOCKS, NUM_STRIPES)
PERMIT_STRIPES = tuple(locking(PERMIT_LOCKS + i) for i in range(NUM_STRIPES))
ALL_PERMITS, PERMITS_DONE = locking(PERMIT_LOCKS, NUM_STRIPES), unlocking(PERMIT_LOCKS, NUM_STRIPES)
_EVERYTHING_DONE: Final = unlocking(0, 0)
#: How often a lock is asked for before it is slept for. Four processes on two cores that decide about one key and do
#: nothing else: 47,000 decisions a second and core without, 102,000 with 1, 170,000 with 4, 186,000 with 8, 155,000
#: with 32, when whoever waits for one that the kernel has taken off its core keeps that core from it.
_NUM_TRIES: Final = 8


class Locks:
    """One process's way in and out. Not for threads: record locks do not keep those of one process apart."""

    __slots__ = ("_ack_at", "_acks_at", "_column", "_epoch", "_fd", "_inside", "_locks", "_words")

    def __init__(self, memory: Memory, fd: int, column: int) -> None:
        self._words = memory.words
        self._fd = fd
        self._column = column
        self._acks_at = memory.layout.acks // 8
        self._ack_at = self._acks_at + column
        self._inside = 0
        self._locks = False
        self._epoch = -1
        self.look()

    def look(self) -> None:
        """Take note of whether others are there. Called now and then by who decides rarely: somebody may wait."""
        epoch = self._words[EPOCH_AT]
        if epoch == self._epoch or self._inside:
            return
        if self._locks:
            fcntl.fcntl(self._fd, fcntl.F_SETLK, _EVERYTHING_DONE)
        self._locks = epoch % 2 == 1
        self._epoch = epoch
        self._words[self._ack_at] = epoch + 1

    @property
    def all_lock(self) -> bool:
        """Whether every other worker knows of this one."""
        self.look()
        here, words = self._acks_at, self._words
        said = words[here : here + words[COLUMNS_AT]].tolist()
        return all(ack in (0, self._epoch + 1) for column, ack in enumerate(said) if column != self._column)

    def enter(self, lock: bytes) -> None:
        """Have the bytes to oneself, if need be after waiting for who is inside."""
        if self._words[EPOCH_AT] != self._epoch:
            self.look()
        if self._locks:
            for _ in range(_NUM_TRIES):
                try:
                    fcntl.fcntl(self._fd, fcntl.F_SETLK, lock)
                except OSError:
                    continue
                return
            fcntl.fcntl(self._fd, fcntl.F_SETLKW, lock)

    def leave(self, unlock: bytes) -> None:
        """Let the next one in. The range may be larger than what was locked."""
        if self._locks:
            fcntl.fcntl(self._fd, fcntl.F_SETLK, unlock)

    def stay(self, lock: bytes) -> None:
        """``enter`` where other code runs before ``go``: until then, others are not told that this one locks."""
        self.enter(lock)
        self._inside += 1

    def go(self, unlock: bytes) -> None:
        """The end of ``stay``."""
        self._inside -= 1
        self.leave(unlock)
