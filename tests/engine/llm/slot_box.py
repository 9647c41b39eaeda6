"""Slots beside a box that carries their commands out and knows what every page holds."""

from __future__ import annotations

import pytest

from engine.llm.detokenize import TextStream
from engine.llm.kv import KvShape, page_aligned_length
from engine.llm.sampler import Sampler, Sampling
from engine.llm.sequence import Sequence
from engine.llm.slot_memory import Copy, Trim
from engine.llm.slots import Slots

SHAPE = KvShape(layers=1, slots=3, kv_heads=1, length=page_aligned_length(256), head_dim=64)  # 16 tokens to a page
PAGE = SHAPE.committed_bytes(1)
LONGEST = 160
KEEP_S = 10.0


def sequence(tokens: list[int], max_tokens: int = 8, key: str = "") -> Sequence:
    return Sequence(
        deliver=lambda event: None,
        arrived_at=0.0,
        tokens=tokens,
        max_tokens=max_tokens,
        sampler=Sampler(Sampling(), lambda: 0.0),
        text=TextStream(),
        end_ids=set(),
        key=key,
    )


class Box:
    """Slots, and a memory that holds what a decoder would: commands are carried out and sequences are read."""

    def __init__(self, pages: int = 1000, *, by_key: bool = True, keep_s: float = KEEP_S) -> None:
        self.slots = Slots(SHAPE, pages * PAGE, keep_s=keep_s, by_key=by_key)
        self.memory: dict[int, list[int]] = {slot: [] for slot in range(SHAPE.slots)}
        self.touched = dict.fromkeys(range(SHAPE.slots), 0)  # tokens written since the slot was cut last

    def obey(self) -> list[Copy | Trim]:
        commands = self.slots.memory.take_commands()
        for command in commands:
            if isinstance(command, Copy):
                self.memory[command.target] = self.memory[command.source][: command.tokens]
                assert len(self.memory[command.target]) == command.tokens
                self.touch(command.target)
            else:
                del self.memory[command.slot][command.tokens :]
                self.touched[command.slot] = min(self.touched[command.slot], command.tokens)
        return commands

    def place(self, new: Sequence, now: float = 0.0) -> bool:
        fits = self.slots.fits(new)
        if not fits:
            with pytest.raises(ValueError, match="ask first"):
                self.slots.place(new, now)
            return False
        self.slots.place(new, now)
        self.obey()
        assert new.slot is not None
        assert self.memory[new.slot] == new.tokens[: new.num_cached]
        return True

    def touch(self, slot: int) -> None:
        self.touched[slot] = max(self.touched[slot], len(self.memory[slot]))

    def read(self, each: Sequence, num_tokens: int | None = None, rejected: int = 0) -> None:
        """The model reads more of it, and perhaps a draft that is taken back."""
        num_tokens = each.num_unread if num_tokens is None else min(num_tokens, each.num_unread)
        assert each.slot is not None
        memory = self.memory[each.slot]
        memory[each.num_cached :] = [*each.tokens[each.num_cached : each.num_cached + num_tokens], *[-1] * rejected]
        self.touch(each.slot)
        self.slots.grew(each, len(memory))
        each.num_cached += num_tokens

    def join(self, each: Sequence, *ahead: Sequence, now: float = 0.0) -> bool:
        joined = self.slots.join(each, ahead, now)
        self.obey()
        assert self.memory[each.slot or 0][: each.num_cached] == each.tokens[: each.num_cached]
        return joined

    def end(self, each: Sequence, now: float = 0.0, *, keep: bool = True) -> None:
        self.slots.give_back(each, now, keep=keep)
        self.obey()

    def serve(self, tokens: list[int], key: str = "", now: float = 0.0) -> int:
        """One sequence from its beginning to its end; how many of its tokens were not read again."""
        each = sequence(tokens, key=key)
        assert self.place(each, now)
        reused = each.num_cached
        self.read(each)
        self.end(each, now)
        return reused


PROMPT = list(range(100))
