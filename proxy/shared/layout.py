"""Where everything stands in the shared mapping, and the words that everybody must know of it.

The mapping is as large as its bounds say, but exists only where it was written: an empty table costs a few pages. All
that workers write while others look is written so that a process killed between any two stores leaves nothing half
done: a single store of eight bytes (four for a count), or a copy beside the valid one and then the word that says which
of the two is valid. A place that is made anew is named last.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Final, NamedTuple

MAGIC: Final = int.from_bytes(b"HRSHARE1", "little")
#: Words of the head. EPOCH odd: several workers, who lock; even: one alone, who need not.
MAGIC_AT, GEOMETRY_AT, EPOCH_AT, COLUMNS_AT, SECRET_AT, CROWDED_AT = 0, 1, 16, 17, 18, 20
SECRET_BYTES: Final = 16
WINDOW: Final = 32  # slots in which a key may stand, from the one that its digest says
LIMIT_HEAD_WORDS: Final = 8  # which copy of the pace is valid, two copies of three numbers, the common bucket
RECORD_HEAD_WORDS: Final = 1
WINDOW_ROW_WORDS: Final = 16  # buckets of a key in a sliding window
PAGE_BYTES: Final = 4096

#: Bytes that are locked: their places in the file say what they guard, not what stands there.
NUM_STRIPES: Final = 64
LIMIT_LOCKS, PERMIT_LOCKS, PLACES_LOCK, ANSWERS_LOCK, BUDGETS_LOCK, JOURNAL_LOCK = 0, 64, 128, 129, 130, 131
RECORD_LOCKS: Final = 4096


class Geometry(NamedTuple):
    """The bounds of a table."""

    limits: int = 256  # at once: those of a reload beside those before it
    keys: int = 131072  # slots of each limit, a power of two: half as many keys find one in their windows
    permits: int = 65536  # slots for keys with open requests, a power of two
    records: int = 4096  # at once
    numbers: int = 64  # of a record
    tallies: int = 1024  # at once
    row: int = 96  # numbers that each worker has of a tally
    columns: int = 512  # processes attached at once: twice the most workers
    windows: int = 64  # limits by a sliding window, at once
    window_keys: int = 16384  # slots of each of them, a power of two
    answers: int = 65536  # slots of the index of kept answers, a power of two
    answer_bytes: int = 64 << 20  # for them; whole pages
    journal: int = 16384  # the same for answers that are on their way into a file
    journal_bytes: int = 40 << 20  # an eighth of it takes the largest that is kept, with its head


class AnswerArea:
    """Where one ring of answers stands, and its bounds. lock: the byte that guards it."""

    __slots__ = ("begin", "end", "lock", "num_slots", "ring", "ring_bytes", "slots")

    def __init__(self, begin: int, num_slots: int, ring_bytes: int, lock: int) -> None:
        self.begin = begin
        self.slots = begin + PAGE_BYTES
        self.num_slots = num_slots
        self.ring = self.slots + _pages(16 * (num_slots + WINDOW))
        self.ring_bytes = ring_bytes
        self.end = self.ring + ring_bytes
        self.lock = lock


class Layout:
    """Byte offsets for a geometry, each area from a page's begin."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        limits, keys, permits, records, numbers, tallies, row, columns, windows, window_keys, *_ = geometry
        self.num_places = limits + records + tallies + windows
        self.acks = PAGE_BYTES
        self.names = self.acks + _pages(8 * columns)
        self.marks = self.names + _pages(16 * self.num_places)
        self.marks_stride = _pages(self.num_places)
        self.permit_keys = self.marks + columns * self.marks_stride
        self.num_permits = permits + WINDOW  # the last one is common to the keys that find no room
        self.counts = self.permit_keys + _pages(8 * self.num_permits)
        self.counts_stride = _pages(4 * self.num_permits)
        self.records = self.counts + columns * self.counts_stride
        self.record_bytes = 8 * (RECORD_HEAD_WORDS + 2 * numbers)
        self.rows = self.records + _pages(records * self.record_bytes)
        self.row_bytes = 8 * row
        self.rows_stride = _pages(tallies * self.row_bytes)
        self.limits = self.rows + columns * self.rows_stride
        self.limit_values = 8 * (LIMIT_HEAD_WORDS + keys + WINDOW)  # within a limit
        self.limit_bytes = _pages(self.limit_values + 8 * (keys + WINDOW))
        self.windows = self.limits + limits * self.limit_bytes
        num_rows = window_keys + WINDOW  # and the common one
        self.window_bytes = _pages(8 * (num_rows + (num_rows + 1) * WINDOW_ROW_WORDS))
        answers_at = self.windows + windows * self.window_bytes
        self.answers = AnswerArea(answers_at, geometry.answers, geometry.answer_bytes, ANSWERS_LOCK)
        self.journal = AnswerArea(self.answers.end, geometry.journal, geometry.journal_bytes, JOURNAL_LOCK)
        self.num_bytes = self.journal.end


class Memory:
    """One process's view of a mapping: as bytes, words, doubles and 32-bit counts, all from its begin."""

    __slots__ = ("counts", "doubles", "layout", "map", "octets", "words")

    def __init__(self, fd: int, layout: Layout) -> None:
        self.layout = layout
        self.map = mmap.mmap(fd, layout.num_bytes)
        self.octets = memoryview(self.map)
        self.words = self.octets.cast("Q")
        self.doubles = self.octets.cast("d")
        self.counts = self.octets.cast("I")


def create(geometry: Geometry) -> tuple[int, Memory]:
    """(descriptor, view) of a new, empty table."""
    layout = Layout(geometry)
    fd = os.memfd_create("headrace-shared")
    os.ftruncate(fd, layout.num_bytes)
    memory = Memory(fd, layout)
    for i, bound in enumerate(geometry):
        memory.words[GEOMETRY_AT + i] = bound
    memory.octets[8 * SECRET_AT : 8 * SECRET_AT + SECRET_BYTES] = os.urandom(SECRET_BYTES)
    memory.words[COLUMNS_AT] = 1
    memory.words[MAGIC_AT] = MAGIC
    return fd, memory


def attach(fd: int) -> Memory:
    """The view of a table that somebody else has created. Raises ValueError if it is none."""
    with mmap.mmap(fd, PAGE_BYTES, prot=mmap.PROT_READ) as head:
        words = struct.unpack_from("@16Q", head)
    geometry = words[GEOMETRY_AT : GEOMETRY_AT + len(Geometry._fields)]
    if words[MAGIC_AT] != MAGIC or 0 in geometry:  # 0: a bound of which the release that made it does not know
        raise ValueError(f"descriptor {fd} is no shared table of this release")
    return Memory(fd, Layout(Geometry(*geometry)))


def byte_range(kind: int, start: int, length: int) -> bytes:
    """The kernel's struct flock, ready for fcntl(2): F_WRLCK or F_UNLCK of bytes of the file; length 0: to its end."""
    return struct.pack("@hhlli4x", kind, os.SEEK_SET, start, length, 0)


def locking(start: int, length: int = 1) -> bytes:
    """The order to lock these bytes."""
    return byte_range(fcntl.F_WRLCK, start, length)


def unlocking(start: int, length: int = 1) -> bytes:
    """The order to let these bytes go."""
    return byte_range(fcntl.F_UNLCK, start, length)


def _pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
