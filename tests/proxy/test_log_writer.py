"""Access-log lines on their way out."""

from __future__ import annotations

import os

from proxy.log_writer import MAX_BYTES, LineWriter


async def test_lines_arrive_in_order_and_whole() -> None:
    read, write = os.pipe()
    writer = LineWriter(write, lambda: None)
    for number in range(10):
        writer.emit(b"line %d" % number)
    writer.flush()
    writer.emit(b"last")
    await writer.close()
    os.close(write)
    with os.fdopen(read, "rb") as file:
        assert file.read().splitlines() == [*(b"line %d" % number for number in range(10)), b"last"]


async def test_what_nobody_takes_is_dropped_and_counted() -> None:
    dropped: list[None] = []
    writer = LineWriter(-1, lambda: dropped.append(None))
    line = b"x" * 65535
    for _ in range(2 * MAX_BYTES // len(line)):
        writer.emit(line)
    assert 0 < len(dropped) < 2 * MAX_BYTES // len(line)
    await writer.close()  # a descriptor that cannot be written: all are lost, none raises
    assert len(dropped) == 2 * MAX_BYTES // len(line)


async def test_without_a_descriptor_nothing_is_kept() -> None:
    writer = LineWriter(None, lambda: None)
    writer.emit(b"line")
    writer.flush()
    await writer.close()
