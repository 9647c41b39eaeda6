"""What a decoder's slots hold can be copied, cut and given back, and the box gives no more memory than is counted."""

import mmap
from collections.abc import Iterator

import numpy as np
import pytest

from engine.llm.decoder import Decoder, RowWork, load_decoder
from engine.model_folder import ModelFolder

SYSTEM = [1, *range(40, 90)]
QUESTION = [7, *range(120, 140)]
OTHER = [8, *range(20, 60)]


@pytest.fixture
def decoder(tiny_chat: ModelFolder) -> Iterator[Decoder]:
    decoder = load_decoder(tiny_chat, slots=4, context=192, threads=1)
    yield decoder
    decoder.close()


def logits(decoder: Decoder, *rows: RowWork) -> list[np.ndarray]:
    """All logits after every row's last token, copied."""
    return [answer[-1].whole() for answer in decoder.run(rows)]


def resident_bytes(decoder: Decoder) -> int:
    """What the box has given of the decoder's key/value memory; see proc_pid_pagemap(5), bit 63."""
    first = decoder._memory.address // mmap.PAGESIZE
    num_pages = 2 * decoder._shape.layers * decoder._shape.array_bytes // mmap.PAGESIZE
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(8 * first)
        entries = np.frombuffer(pagemap.read(8 * num_pages), np.uint64)
    return int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE


def test_a_copied_beginning_gives_the_logits_of_a_cold_read(decoder: Decoder) -> None:
    (cold,) = logits(decoder, RowWork(0, SYSTEM + QUESTION, 0, 1))
    decoder.run([RowWork(1, SYSTEM + OTHER, 0, 0)])
    decoder.copy(1, 3, len(SYSTEM))
    decoder.release(1)
    (warm,) = logits(decoder, RowWork(3, QUESTION, len(SYSTEM), 1))
    np.testing.assert_allclose(warm, cold, atol=0.02)


def test_a_beginning_in_place_gives_the_logits_of_a_cold_read(decoder: Decoder) -> None:
    (cold,) = logits(decoder, RowWork(0, SYSTEM + QUESTION, 0, 1))
    decoder.run([RowWork(1, SYSTEM + OTHER, 0, 0)])
    decoder.trim(1, len(SYSTEM))
    (warm,) = logits(decoder, RowWork(1, QUESTION, len(SYSTEM), 1))
    np.testing.assert_allclose(warm, cold, atol=0.02)


def test_a_copy_leaves_its_source_as_it_was(decoder: Decoder) -> None:
    decoder.run([RowWork(1, SYSTEM, 0, 0)])
    (expected,) = logits(decoder, RowWork(1, [9, 9], len(SYSTEM), 1))
    decoder.copy(1, 2, len(SYSTEM))
    decoder.run([RowWork(2, OTHER, len(SYSTEM), 0)])
    (kept,) = logits(decoder, RowWork(1, [9, 9], len(SYSTEM), 1))
    np.testing.assert_array_equal(kept, expected)


def test_the_box_gives_exactly_the_memory_that_is_counted(decoder: Decoder) -> None:
    def check(*lengths: int) -> None:
        counted = sum(map(decoder.kv_bytes_for, lengths))
        assert decoder.kv_bytes_committed == counted
        assert resident_bytes(decoder) == counted

    check()
    decoder.run([RowWork(0, SYSTEM, 0, 0)])
    check(51)
    decoder.run([RowWork(0, [9], 51, 1), RowWork(1, [9] * 150, 0, 0)])  # the long row pads the short one
    check(52, 150)
    decoder.copy(1, 3, 100)
    check(52, 150, 100)
    decoder.trim(3, 33)
    check(52, 150, 33)
    decoder.release(1)
    check(52, 33)


def test_outputs_of_a_run_with_many_logits_go_with_it_and_the_usual_ones_are_bound_again(decoder: Decoder) -> None:
    rows = [RowWork(0, SYSTEM, 0, 1), RowWork(0, SYSTEM, 0, len(SYSTEM)), RowWork(0, SYSTEM, 0, 20)]
    (expected,) = logits(decoder, rows[0])
    for row in [*rows, *rows]:
        (found,) = logits(decoder, row)
        np.testing.assert_allclose(found, expected, atol=0.02)
    assert len(decoder._step._outputs.logits) == 20
    decoder.run(rows[:1])
    assert len(decoder._step._outputs.logits) == decoder.slots
