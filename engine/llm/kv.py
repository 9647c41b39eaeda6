"""The memory of keys and values: one address range as long as all slots could need, of which only what is used exists.

Each layer has two arrays float32 or int8 [slots, kv_heads, length, head_dim], in one anonymous mapping. The kernel
gives a page when it is first written and takes it back on trim, so memory follows the tokens held and not the longest
context. Huge pages are refused: one of them would cost 2 MiB for a sequence of four tokens. Knows nothing of ONNX
Runtime.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from engine.manifest import ChatFacts

FLOAT_BYTES = 4
NUMBER_BYTES = {"float32": FLOAT_BYTES, "int8": 1}
_MAP_NORESERVE = 0x4000  # Linux; the mmap module of Python 3.11 does not name it


def page_aligned_length(tokens: int) -> int:
    """The least length of a slot, in tokens, that holds `tokens` and lets every slot and head begin on a page."""
    step = mmap.PAGESIZE // FLOAT_BYTES
    return -(-tokens // step) * step


@dataclass(frozen=True, slots=True)
class KvShape:
    """The sizes of the memory; `length` is in tokens and comes from `page_aligned_length`."""

    layers: int
    slots: int
    kv_heads: int
    length: int
    head_dim: int
    number_bytes: int = FLOAT_BYTES  # where it is one, head_dim is a multiple of four, or no head would begin on a page

    @classmethod
    def of(cls, facts: ChatFacts, *, slots: int, context: int) -> KvShape:
        """The memory that `slots` sequences of up to `context` tokens of this model need."""
        length = page_aligned_length(context + facts.max_chunk)  # a row's padding must fit behind its tokens too
        return cls(facts.layers, slots, facts.kv_heads, length, facts.head_dim, NUMBER_BYTES[facts.kv_cache])

    @property
    def token_bytes(self) -> int:
        """What one token of one head takes in one array."""
        return self.head_dim * self.number_bytes

    @property
    def head_bytes(self) -> int:
        """The stretch of one head of one slot in one array."""
        return self.length * self.token_bytes

    @property
    def slot_bytes(self) -> int:
        """The stretch of one slot in one array."""
        return self.kv_heads * self.head_bytes

    @property
    def array_bytes(self) -> int:
        """One array: the keys or the values of one layer."""
        return self.slots * self.slot_bytes

    def committed_bytes(self, tokens: int) -> int:
        """What a slot that has held `tokens` tokens has taken from the box, in whole pages."""
        return _whole_pages(tokens * self.token_bytes) * self.kv_heads * 2 * self.layers

    def filled_bytes(self, tokens: int) -> int:
        """What the keys and values of `tokens` tokens fill: 2 · layers · kv_heads · head_dim · tokens · bytes."""
        return 2 * self.layers * self.kv_heads * self.token_bytes * tokens


class KvMemory:
    """The mapping, its arrays, and how many tokens each slot has touched."""

    device = "cpu"  # where it lies, as ONNX Runtime calls it
    device_id = 0

    def __init__(self, shape: KvShape) -> None:
        """Reserve the address range. Raises OSError where the system counts reserved memory and has too little."""
        self._shape = shape
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._mapping = mmap.mmap(-1, 2 * shape.layers * shape.array_bytes, flags=flags)
        self._mapping.madvise(mmap.MADV_NOHUGEPAGE)
        self._touched_tokens = [0] * shape.slots

    @property
    def committed_bytes(self) -> int:
        """Bytes taken from the box and not yet given back."""
        return sum(map(self._shape.committed_bytes, self._touched_tokens))

    @property
    def address(self) -> int:
        """Where the mapping begins; array `2·layer` holds a layer's keys, the next one its values."""
        return int(np.frombuffer(self._mapping, np.uint8, 1).ctypes.data)

    def address_of(self, number: int) -> int:
        """Where an array begins."""
        return self.address + number * self._shape.array_bytes

    def touch(self, slot: int, tokens: int) -> None:
        """Count that the slot holds up to `tokens` tokens."""
        self._touched_tokens[slot] = max(self._touched_tokens[slot], tokens)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Write the first `tokens` tokens of one slot over those of another."""
        shape = self._shape
        slots = np.frombuffer(self._mapping, np.uint8).reshape(-1, shape.slots, shape.kv_heads, shape.head_bytes)
        end = tokens * shape.token_bytes
        slots[:, target, :, :end] = slots[:, source, :, :end]
        self.touch(target, tokens)

    def trim(self, slot: int, tokens: int) -> None:
        """Give back the pages that hold none of the slot's first `tokens` tokens; they read as zeros until written."""
        shape = self._shape
        held = shape.committed_bytes(self._touched_tokens[slot])
        self._touched_tokens[slot] = min(self._touched_tokens[slot], tokens)
        if shape.committed_bytes(tokens) >= held:
            return
        kept = _whole_pages(tokens * shape.token_bytes)
        stretch = shape.head_bytes if tokens else shape.slot_bytes  # an empty slot's heads go in one call
        for number in range(2 * shape.layers):
            begin = number * shape.array_bytes + slot * shape.slot_bytes
            for start in range(begin, begin + shape.slot_bytes, stretch):
                self._mapping.madvise(mmap.MADV_DONTNEED, start + kept, stretch - kept)


def _whole_pages(size: int) -> int:
    """The least multiple of a page that holds `size` bytes."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
