"""Keys and values in arrays of the runtime's own, as on a GPU; here they lie on the CPU, bound in the same way."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.llm.calibrate import measure_cost
from engine.llm.decoder import Decoder, RowWork
from engine.llm.device_kv import DeviceKvMemory
from engine.llm.kv import KvShape
from engine.model_folder import GRAPH, ModelError, ModelFolder
from engine.session import DeviceArray, device_of, open_session

PROMPT = [1, *range(40, 75)]


def test_a_decoder_with_its_memory_on_the_device_gives_the_same_logits(tiny_chat: ModelFolder) -> None:
    session = open_session(tiny_chat.file(GRAPH), threads=1)
    assert device_of(session) is None
    steps = [
        [RowWork(0, PROMPT, 0, 1)],
        [RowWork(0, [7], 36, 1), RowWork(2, PROMPT[:9], 0, 1)],
        [RowWork(0, [9], 37, 1), RowWork(2, [5], 9, 1)],
        [RowWork(0, [3], 38, 1), RowWork(2, [4], 10, 1)],  # the sizes of the last step: what is bound must be read anew
    ]
    answers = []
    for device in (None, ("cpu", 0)):
        decoder = Decoder(session, tiny_chat.chat, slots=3, context=64, device=device)
        measure_cost(decoder)
        answers.append([row.whole() for rows in steps for answer in decoder.run(rows) for row in answer])
        assert decoder.kv_bytes_committed > 0
        decoder.release(0)
        decoder.close()
    np.testing.assert_array_equal(*answers)


def test_it_is_allocated_whole_and_says_when_it_cannot_be(tiny_chat: ModelFolder) -> None:
    shape = KvShape(layers=2, slots=3, kv_heads=2, length=1024, head_dim=4)
    memory = DeviceKvMemory(shape, "cpu")
    assert memory.committed_bytes == 4 * shape.array_bytes
    memory.touch(0, 9)
    memory.trim(0, 0)
    assert memory.committed_bytes == 4 * shape.array_bytes
    assert len({memory.address_of(number) for number in range(4)}) == 4
    with pytest.raises(NotImplementedError, match="prefix_ttl"):
        memory.copy(0, 1, 1)
    too_large = (1 << 20, 1 << 20, 1 << 10)
    with pytest.raises(ModelError, match=rf"cpu 0 has no {math.prod(too_large) >> 18} MiB more .*; set fewer slots"):
        DeviceArray(too_large, "cpu", 0)
