"""How many texts of which length fit into the memory that a chat model's weights leave.

Pure. A text takes its keys and values: 2 · layers · kv_heads · head_dim · bytes of a number, for each of its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from engine.llm.kv import KvShape
from engine.manifest import ChatFacts

_SHORTEST_TOKENS = 512


class Fit(NamedTuple):
    """So many slots can be full with texts of ``context`` tokens at once; each takes ``slot_bytes``."""

    context: int
    slot_bytes: int
    slots: int


def fits(facts: ChatFacts, kv_bytes: int) -> Iterator[Fit]:
    """For the context that the model was trained for and its halves. kv_bytes: what keys and values may take."""
    shape = KvShape.of(facts, slots=1, context=facts.context)
    context = facts.context
    while True:
        slot_bytes = shape.committed_bytes(context)
        yield Fit(context, slot_bytes, max(0, kv_bytes) // slot_bytes)
        if context <= _SHORTEST_TOKENS:
            return
        context = max(context // 2, _SHORTEST_TOKENS)


def longest_context(facts: ChatFacts, kv_bytes: int) -> int:
    """Tokens of the longest text that fits alone; 0: none does. At most what the model was trained for."""
    shape = KvShape.of(facts, slots=1, context=facts.context)
    low, high = 0, facts.context
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if shape.committed_bytes(middle) <= kv_bytes else (low, middle - 1)
    return low
