"""The slots that no sequence has: empty ones, and those that keep a text for one that begins like it.

Pure: ``now`` is an argument. A text is kept for a while since it was last of use, unless its memory is wanted; then the
one that was not used for longest goes first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.llm.prefixes import Prefixes, Text
from engine.llm.slot_memory import SlotMemory


@dataclass(frozen=True, slots=True)
class Kept:
    """What a slot keeps, and until when; see ``engine.llm.prefixes.Text``."""

    key: str
    tokens: list[int]
    num_cached: int
    until: float


class FreeSlots:
    """All slots of the memory at first, and empty. keep_s: how long a text is kept."""

    def __init__(self, memory: SlotMemory, prefixes: Prefixes, num_slots: int, keep_s: float) -> None:
        self.kept: dict[int, Kept] = {}  # the one that was not used for longest comes first
        self.empty = set(range(num_slots))
        self.kept_bytes = 0  # counted along: a step must not take longer for slots that have no part in it
        self.num_evictions = 0  # texts given up before their time; only grows
        self._memory = memory
        self._prefixes = prefixes
        self._keep_s = keep_s

    def put(self, slot: int, text: Text, now: float) -> None:
        """A sequence has left; its text is kept."""
        self._memory.trim(slot, text.num_cached)
        kept = self.kept[slot] = Kept(text.key, text.tokens, text.num_cached, now + self._keep_s)
        self.kept_bytes += self._memory.bytes_of(slot)
        self._prefixes.put(slot, kept)

    def put_empty(self, slot: int) -> None:
        """A sequence has left, and nothing of it is kept."""
        self._memory.trim(slot, 0)
        self.empty.add(slot)

    def take(self, slot: int) -> None:
        """A sequence gets it, and what it keeps."""
        if slot in self.empty:
            self.empty.remove(slot)
        else:
            del self.kept[slot]
            self.kept_bytes -= self._memory.bytes_of(slot)
            self._prefixes.discard(slot)

    def renew(self, slot: int, now: float) -> None:
        """If it keeps a text, that was of use just now."""
        if kept := self.kept.pop(slot, None):
            kept = self.kept[slot] = replace(kept, until=now + self._keep_s)
            self._prefixes.put(slot, kept)

    def expire(self, now: float) -> None:
        """Forget the texts whose time is over."""
        while (until := self.next_until()) is not None and until <= now:
            self._forget(next(iter(self.kept)))

    def next_until(self) -> float | None:
        """When the time of a text will be over next."""
        return next((kept.until for kept in self.kept.values()), None)

    def evict(self, slot: int) -> None:
        """Forget a text before its time: its slot or its memory is wanted."""
        self.num_evictions += 1
        self._forget(slot)

    def give_up(self, num_bytes: float) -> None:
        """Evict texts until so much is given back."""
        while num_bytes > 0 and self.kept:
            slot = next(iter(self.kept))
            num_bytes -= self._memory.bytes_of(slot)
            self.evict(slot)

    def forget_doubles(self) -> bool:
        """Forget the texts that another slot holds as well; whether there were any."""
        num_before = len(self.kept)
        for slot, kept in list(self.kept.items()):
            if any(match.num_tokens == kept.num_cached for match in self._prefixes.matches(kept, kept.num_cached)):
                self._forget(slot)
        return len(self.kept) < num_before

    def _forget(self, slot: int) -> None:
        self.take(slot)
        self.put_empty(slot)
