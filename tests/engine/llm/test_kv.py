"""Key/value memory exists as it is touched and goes when it is released."""

import ctypes
import mmap
from pathlib import Path

from engine.llm.kv import KvMemory, KvShape, page_aligned_length

SHAPE = KvShape(layers=4, slots=8, kv_heads=2, length=page_aligned_length(100_000), head_dim=64)


def resident_bytes() -> int:
    """What the process has of anonymous memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def fill(memory: KvMemory, slot: int, tokens: int) -> None:
    """Write as a run does: every layer, keys and values, each head from the slot's beginning."""
    for number in range(2 * SHAPE.layers):
        for head in range(SHAPE.kv_heads):
            offset = number * SHAPE.array_bytes + slot * SHAPE.slot_bytes + head * SHAPE.length * SHAPE.token_bytes
            ctypes.memset(memory.address + offset, 1, tokens * SHAPE.token_bytes)
    memory.touch(slot, tokens)


def test_every_slot_and_head_begins_on_a_page() -> None:
    assert SHAPE.length >= 100_000
    assert SHAPE.length * SHAPE.token_bytes % mmap.PAGESIZE == 0
    assert page_aligned_length(page_aligned_length(1)) == page_aligned_length(1)


def test_only_what_is_touched_exists_and_release_gives_it_back() -> None:
    memory = KvMemory(SHAPE)
    before = resident_bytes()
    assert memory.committed_bytes == 0
    fill(memory, 5, 1600)
    expected = 1600 * SHAPE.token_bytes * SHAPE.kv_heads * 2 * SHAPE.layers
    assert memory.committed_bytes == expected
    assert expected * 0.9 < resident_bytes() - before < expected * 1.5
    memory.release(5)
    assert memory.committed_bytes == 0
    assert resident_bytes() - before < expected / 4
    assert ctypes.string_at(memory.address + 5 * SHAPE.slot_bytes, 8) == bytes(8)


def test_four_tokens_cost_pages_and_not_huge_pages() -> None:
    memory = KvMemory(SHAPE)
    before = resident_bytes()
    fill(memory, 0, 4)
    assert memory.committed_bytes == mmap.PAGESIZE * SHAPE.kv_heads * 2 * SHAPE.layers
    assert resident_bytes() - before < 1 << 20


def test_a_slots_count_is_its_greatest_length_until_release() -> None:
    memory = KvMemory(SHAPE)
    memory.touch(1, 160)
    memory.touch(1, 16)
    memory.touch(2, 16)
    assert memory.committed_bytes == SHAPE.committed_bytes(160) + SHAPE.committed_bytes(16)
    memory.release(1)
    assert memory.committed_bytes == SHAPE.committed_bytes(16)
