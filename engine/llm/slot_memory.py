"""What the slots take of the memory, and what the decoder is told to do with it.

Pure: a copy or a cut counts at once and becomes a command, which the decoder carries out before its next run.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.llm.kv import KvShape


class Copy(NamedTuple):
    """The first ``tokens`` tokens of one slot are wanted in another, too."""

    source: int
    target: int
    tokens: int


class Trim(NamedTuple):
    """What a slot holds beyond its first ``tokens`` tokens is not wanted any more."""

    slot: int
    tokens: int


class SlotMemory:
    """How many tokens each slot has memory for, as ``engine.llm.kv.KvMemory`` counts them, and the commands to come."""

    def __init__(self, shape: KvShape) -> None:
        self._shape = shape
        self._tokens = [0] * shape.slots
        self._commands: list[Copy | Trim] = []

    def take_commands(self) -> list[Copy | Trim]:
        """What is to be done, in order; each is said once."""
        commands, self._commands = self._commands, []
        return commands

    def bytes_for(self, tokens: int) -> int:
        """What a slot with so many tokens takes."""
        return self._shape.committed_bytes(tokens)

    def bytes_of(self, slot: int, tokens: int = 0) -> int:
        """What a slot takes, once it has been written up to ``tokens``."""
        return self._shape.committed_bytes(max(self._tokens[slot], tokens))

    @property
    def committed_bytes(self) -> int:
        """What all take."""
        return sum(map(self._shape.committed_bytes, self._tokens))

    def filled_bytes(self, tokens: int) -> int:
        """What so many tokens fill of it; the rest are ends of pages."""
        return self._shape.filled_bytes(tokens)

    def grew(self, slot: int, num_written: int) -> None:
        """The decoder has written up to so many tokens."""
        self._tokens[slot] = max(self._tokens[slot], num_written)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Let the target hold what the source begins with."""
        self._commands.append(Copy(source, target, tokens))
        self.grew(target, tokens)

    def trim(self, slot: int, tokens: int) -> bool:
        """Give back what lies behind the first ``tokens`` tokens; whether there was anything."""
        if self._tokens[slot] <= tokens:
            return False
        self._commands.append(Trim(slot, tokens))
        self._tokens[slot] = tokens
        return True
