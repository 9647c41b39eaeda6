"""Measures, once after loading, what steps of a decoder take: the data that chunked prefill is planned with."""

from __future__ import annotations

import time
from collections.abc import Sequence

from engine.llm.cost import StepCost
from engine.llm.decoder import RowWork
from engine.llm.runner import Decodes

_CHUNK_TOKENS = 32
_REPEATS = 2  # a start: serving corrects the estimates, and every repeat is a tenth of a second of it


def measure_cost(decoder: Decodes) -> StepCost:
    """Times one decoding row, all rows, and a chunk, each as the best of a few; leaves every slot empty. Blocking."""
    slots = range(decoder.slots)
    one = [RowWork(slot=0, tokens=[0], past=0, num_logits=1)]
    every = [RowWork(slot=slot, tokens=[0], past=0, num_logits=1) for slot in slots]
    chunk = [RowWork(slot=0, tokens=[0] * _CHUNK_TOKENS, past=0, num_logits=1)]
    one_row_s, all_rows_s, chunk_s = (_best_s(decoder, rows) for rows in (one, every, chunk))
    for slot in slots:
        decoder.release(slot)
    token_s = max(chunk_s - one_row_s, chunk_s / 10) / _CHUNK_TOKENS  # a bound, should noise have swapped the two
    return StepCost(decoder.slots, one_row_s=one_row_s, all_rows_s=all_rows_s, token_s=token_s)


def _best_s(decoder: Decodes, rows: Sequence[RowWork]) -> float:
    times_s = []
    for _ in range(_REPEATS):
        began_at = time.perf_counter()
        decoder.run(rows)
        times_s.append(time.perf_counter() - began_at)
    return min(times_s)
