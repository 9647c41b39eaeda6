"""How many requests of a key are open in the whole box: one column of counts per worker, in the shared table.

A worker writes only its own column, each change by one store, and the sum over the columns is what counts: looked at
and added to in the lock of the key's stripe. A permit is given back without a lock. When a worker dies, its column is
zeroed, and with it all its permits are back.

Memory is bounded: a key has a slot as long as it has something open. Keys that find no free one share the last slot,
whose count is held against all keys as long as there is any: too few permits rather than too many.
"""

from __future__ import annotations

from proxy.shared.key_slots import KeySlots
from proxy.shared.layout import COLUMNS_AT, CROWDED_AT, Memory
from proxy.shared.locks import ALL_PERMITS, PERMIT_STRIPES, PERMITS_DONE, STRIPE_MASK, Locks


class Permits:
    """The permits of one name, whose keys are its own."""

    __slots__ = ("_common", "_counts", "_counts_at", "_keys_at", "_locks", "_own", "_slots", "_stride", "_words")

    def __init__(self, memory: Memory, locks: Locks, column: int, name: str) -> None:
        layout = memory.layout
        self._locks = locks
        self._words = memory.words
        self._counts = memory.counts
        self._slots = KeySlots(memory, layout.permit_keys, layout.geometry.permits, name)
        self._keys_at = layout.permit_keys // 8
        self._counts_at = layout.counts // 4
        self._stride = layout.counts_stride // 4
        self._own = self._counts_at + column * self._stride
        self._common = layout.num_permits - 1

    def take(self, key: str, most: int) -> int:
        """A permit, to be given back, unless ``most`` of the key's are out: then -1."""
        at, digest = self._slots.find(key)
        if at:
            self._locks.enter(PERMIT_STRIPES[digest & STRIPE_MASK])
            try:
                if self._words[at] == digest:
                    return self._take(at - self._keys_at, most)
            finally:
                self._locks.leave(PERMITS_DONE)
        return self._take_anew(key, most)

    def give_back(self, permit: int) -> None:
        """Once for each permit. No lock: the column is ours, and nobody gives the slot away while we have a count."""
        self._counts[self._own + permit] -= 1

    def open(self, key: str) -> int:
        """How many of the key's are out now; without the lock, one that moves from worker to worker may count twice."""
        at, _ = self._slots.look_up(key)
        return self._sum(at - self._keys_at) if at else 0

    def _take(self, slot: int, most: int) -> int:
        num_open = self._sum(slot)
        if self._words[CROWDED_AT] and slot != self._common:
            num_open += self._sum(self._common)
        if num_open >= most:
            return -1
        self._counts[self._own + slot] += 1
        return slot

    def _sum(self, slot: int) -> int:
        num_columns = self._words[COLUMNS_AT]
        if num_columns == 1:
            return self._counts[self._own + slot]
        first = self._counts_at + slot
        return sum(self._counts[first : first + num_columns * self._stride : self._stride].tolist())

    def _take_anew(self, key: str, most: int) -> int:
        """Find or make the key's slot; all stripes are ours meanwhile."""
        self._locks.enter(ALL_PERMITS)
        try:
            at, digest = self._slots.look_up(key)
            if not at:
                at = self._free_slot(digest)
                if not at:
                    self._words[CROWDED_AT] = 1
                    return self._take(self._common, most)
                self._words[at] = digest
                self._slots.stands(key, at, digest)
            return self._take(at - self._keys_at, most)
        finally:
            self._locks.leave(PERMITS_DONE)

    def _free_slot(self, digest: int) -> int:
        """A slot that is empty, else one whose key has nothing open; 0: there is none."""
        first, standing = self._slots.window(digest)
        if 0 in standing:
            return first + standing.index(0)
        indexes = (first + i for i in range(len(standing)))
        return next((at for at in indexes if not self._sum(at - self._keys_at)), 0)
