"""Answers in the shared mapping: a ring of bytes that every worker writes to and reads from, and an index by digest.

Entries follow each other in the order in which they were put; a new one overwrites the oldest, so memory is bounded and
nothing is ever searched for room. Whoever puts or gets has the lock. A process killed in the middle leaves nothing half
done: ``OLDEST`` has passed what is overwritten before a byte of it changes, and an entry counts from the one store on
that moves ``NEXT`` behind it. What an index slot says is believed only if the entry itself says the same.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from proxy.shared.layout import WINDOW, AnswerArea, Memory, locking, unlocking
from proxy.shared.locks import Locks

DIGEST_BYTES: Final = 32
_ENTRY: Final = Struct(f"@Qd{DIGEST_BYTES}s")  # bytes of the whole entry, when it expires, whose it is
_SLOTS: Final = Struct(f"@{2 * WINDOW}Q")  # digest's first word, place in the ring plus 1


class SharedAnswers:
    """One process's view of one ring. Places in it only grow: a place's bytes stand at its remainder by the ring's
    size."""

    __slots__ = (
        "_done", "_index", "_lock", "_locks", "_mask", "_next_at", "_octets", "_oldest_at", "_ring", "_size", "_words",
    )  # fmt: skip

    def __init__(self, memory: Memory, locks: Locks, area: AnswerArea) -> None:
        self._locks = locks
        self._lock = locking(area.lock)
        self._done = unlocking(area.lock)
        self._words = memory.words
        self._octets = memory.octets
        self._next_at = area.begin // 8
        self._oldest_at = self._next_at + 1
        self._index = area.slots
        self._mask = area.num_slots - 1
        self._ring = area.ring
        self._size = area.ring_bytes

    def get(self, digest: bytes, now: float) -> bytes | None:
        """What was put under this digest last, if it is still there and has not expired."""
        self._locks.enter(self._lock)
        try:
            _, slots = self._window(digest)
            word = int.from_bytes(digest[:8], "little")
            if word not in slots[::2]:
                return None
            for i in range(0, len(slots), 2):
                if slots[i] == word and self._is_kept(at := slots[i + 1] - 1):
                    size, expires_at, whose = _ENTRY.unpack(self._read(at, _ENTRY.size))
                    if whose == digest:
                        if expires_at <= now:
                            return None
                        padded = self._read(at + _ENTRY.size, size - _ENTRY.size)
                        return padded[: len(padded) - padded[-1]]
            return None
        finally:
            self._locks.leave(self._done)

    def put(self, digest: bytes, answer: bytes, expires_at: float, now: float) -> int:
        """Keep it, in place of what was there. How many that had not expired were dropped for it, itself if it is
        larger than an eighth of the ring."""
        padding = 8 - len(answer) % 8  # 1 to 8, told by the last byte
        padded = answer + bytes(padding - 1) + bytes((padding,))
        size = _ENTRY.size + len(padded)
        if size > self._size // 8:
            return 1
        self._locks.enter(self._lock)
        try:
            num_dropped = self._make_room(size, now)
            at = self._words[self._next_at]
            self._write(at, _ENTRY.pack(size, expires_at, digest) + padded)
            num_dropped += self._point(digest, at, now)
            self._words[self._next_at] = at + size
            return num_dropped
        finally:
            self._locks.leave(self._done)

    def _make_room(self, size: int, now: float) -> int:
        num_dropped = 0
        at, end = self._words[self._oldest_at], self._words[self._next_at]
        while end + size - at > self._size:
            dropped_bytes, expires_at, _ = _ENTRY.unpack(self._read(at, _ENTRY.size))
            num_dropped += expires_at > now
            at += dropped_bytes
            self._words[self._oldest_at] = at
        return num_dropped

    def _point(self, digest: bytes, at: int, now: float) -> int:
        """Have a slot of the digest's window say where the entry is: its own, one of nothing that is kept, else that of
        the oldest entry, which is lost: 1."""
        first, slots = self._window(digest)
        word = int.from_bytes(digest[:8], "little")
        words, places = slots[::2], slots[1::2]
        num_lost = 0
        if word in words:
            chosen = words.index(word)
        elif 0 in words:
            chosen = words.index(0)
        else:
            chosen = next((i for i, place in enumerate(places) if not self._is_kept(place - 1)), -1)
            if chosen < 0:
                chosen, num_lost = places.index(min(places)), 1
        slot = first + 2 * chosen
        self._words[slot] = 0  # killed between the stores, it leaves an empty slot
        self._words[slot + 1] = at + 1
        self._words[slot] = word
        return num_lost

    def _is_kept(self, at: int) -> bool:
        return self._words[self._oldest_at] <= at < self._words[self._next_at]

    def _window(self, digest: bytes) -> tuple[int, tuple[int, ...]]:
        """(index of its first word, the slots' words) where this digest may stand."""
        first = self._index + 16 * (int.from_bytes(digest[8:16], "little") & self._mask)
        found: tuple[int, ...] = _SLOTS.unpack_from(self._octets, first)
        return first // 8, found

    def _read(self, at: int, size: int) -> bytes:
        begin = at % self._size
        piece = self._octets[self._ring + begin : self._ring + min(begin + size, self._size)]
        rest = size - len(piece)
        return bytes(piece) + bytes(self._octets[self._ring : self._ring + rest]) if rest else bytes(piece)

    def _write(self, at: int, data: bytes) -> None:
        begin = at % self._size
        first = min(len(data), self._size - begin)
        self._octets[self._ring + begin : self._ring + begin + first] = data[:first]
        if first < len(data):
            self._octets[self._ring : self._ring + len(data) - first] = data[first:]
