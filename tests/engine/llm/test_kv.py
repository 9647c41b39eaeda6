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
    memory.trim(5, 0)
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
    memory.trim(1, 0)
    assert memory.committed_bytes == SHAPE.committed_bytes(16)


def test_trim_gives_back_the_pages_behind_what_is_kept() -> None:
    memory = KvMemory(SHAPE)
    before = resident_bytes()
    fill(memory, 3, 1600)
    memory.trim(3, 33)
    assert memory.committed_bytes == SHAPE.committed_bytes(33) == SHAPE.committed_bytes(48)
    assert resident_bytes() - before < SHAPE.committed_bytes(33) * 2
    for number in range(2 * SHAPE.layers):
        for head in range(SHAPE.kv_heads):
            address = memory.address + number * SHAPE.array_bytes + 3 * SHAPE.slot_bytes + head * SHAPE.head_bytes
            assert ctypes.string_at(address, 49 * SHAPE.token_bytes).rstrip(b"\0") == b"\1" * 48 * SHAPE.token_bytes
    memory.trim(3, 40)
    assert memory.committed_bytes == SHAPE.committed_bytes(33)


def test_a_copy_is_the_tokens_asked_for_and_no_more() -> None:
    memory = KvMemory(SHAPE)
    fill(memory, 1, 100)
    memory.copy(1, 6, 64)
    assert memory.committed_bytes == SHAPE.committed_bytes(100) + SHAPE.committed_bytes(64)
    for number in range(2 * SHAPE.layers):
        for head in range(SHAPE.kv_heads):
            address = memory.address + number * SHAPE.array_bytes + 6 * SHAPE.slot_bytes + head * SHAPE.head_bytes
            assert ctypes.string_at(address, 65 * SHAPE.token_bytes).rstrip(b"\0") == b"\1" * 64 * SHAPE.token_bytes


def test_what_is_filled_is_a_part_of_what_is_committed() -> None:
    assert SHAPE.filled_bytes(16) == SHAPE.committed_bytes(16) == 2 * 4 * 2 * 64 * 16 * 4
    assert SHAPE.filled_bytes(17) < SHAPE.committed_bytes(17) == SHAPE.committed_bytes(32)
