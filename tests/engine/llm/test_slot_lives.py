"""Slots through random lives: no slot has two owners, every page is counted, and what is reused is what was read."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.llm.prefixes import LEFT_TO_READ, MIN_TOKENS
from engine.llm.sequence import Sequence
from engine.llm.slots import EVICT_ABOVE
from tests.engine.llm.slot_box import KEEP_S, PROMPT, SHAPE, Box, sequence


class Life(RuleBasedStateMachine):
    """Sequences come, are read, take drafts back, end and are forgotten in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.box = Box(pages=14)
        self.now = 0.0
        self.running: list[Sequence] = []

    @rule(
        shared=st.sampled_from([0, 20, 32, 45, 90]),
        own=st.lists(st.integers(0, 2), min_size=1, max_size=40),
        max_tokens=st.integers(1, 30),
        key=st.sampled_from(["", "a"]),
    )
    def arrive(self, shared: int, own: list[int], max_tokens: int, key: str) -> None:
        new = sequence([*PROMPT[:shared], *own], max_tokens, key)
        if self.box.place(new, self.now):
            self.running.append(new)
            assert new.num_unread >= LEFT_TO_READ or not new.num_cached
            assert new.num_cached == 0 or new.num_cached >= MIN_TOKENS

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num_tokens=st.integers(1, 60), rejected=st.integers(0, 5))
    def read(self, data: st.DataObject, num_tokens: int, rejected: int) -> None:
        each = data.draw(st.sampled_from(self.running))
        if each.num_unread:
            rejected = min(rejected, each.most_tokens - len(each.tokens)) if each.num_unread <= num_tokens else 0
            written = min(num_tokens, each.num_unread) + rejected
            while missing := self.box.slots.shortage([(each, written)]):
                assert not self.box.slots.free.kept
                assert missing > 0
                self.send_back(next(other for other in self.running if other is not each))
            self.box.obey()
            self.box.read(each, num_tokens, rejected)
        elif each.num_output_tokens < each.max_tokens:
            each.tokens.append(data.draw(st.integers(0, 2)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(self.running))
        num_cached = each.num_cached
        ahead = [other for other in self.running if other is not each]
        if self.box.join(each, *ahead, now=self.now):
            assert each.num_cached == num_cached or each.num_cached >= num_cached + MIN_TOKENS
        else:
            assert each.num_cached == num_cached
        assert not each.num_unread or each.num_unread >= LEFT_TO_READ or each.num_cached == num_cached

    def send_back(self, each: Sequence) -> None:
        self.running.remove(each)
        self.box.end(each, self.now)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), keep=st.booleans())
    def end(self, data: st.DataObject, keep: bool) -> None:
        each = data.draw(st.sampled_from(self.running))
        self.running.remove(each)
        self.box.end(each, self.now, keep=keep)

    @rule(passed_s=st.floats(0, KEEP_S))
    def rest(self, passed_s: float) -> None:
        self.now += passed_s
        self.box.slots.tidy(self.now)
        self.box.obey()
        assert all(kept.until > self.now for kept in self.box.slots.free.kept.values())
        if self.box.slots.free.kept:
            assert self.box.slots.unused_bytes <= EVICT_ABOVE * self.box.slots.budget_bytes

    @invariant()
    def every_slot_has_one_owner(self) -> None:
        slots = self.box.slots
        assert {each.slot for each in self.running} == set(slots.running)
        assert len(slots.running) == len(self.running)
        assert sorted([*slots.running, *slots.free.kept, *slots.free.empty]) == list(range(SHAPE.slots))
        for slot, held in [*slots.running.items(), *slots.free.kept.items()]:
            assert self.box.memory[slot][: held.num_cached] == held.tokens[: held.num_cached]
            assert len(self.box.memory[slot]) >= held.num_cached

    @invariant()
    def every_page_is_counted(self) -> None:
        slots = self.box.slots
        committed_bytes = sum(map(SHAPE.committed_bytes, self.box.touched.values()))
        assert slots.memory.committed_bytes == committed_bytes <= slots.budget_bytes
        assert slots.free.kept_bytes == sum(map(slots.memory.bytes_of, slots.free.kept))
        assert 0 <= slots.unused_bytes <= committed_bytes
        assert 0 <= slots.statistics()["kv_fragmentation_ratio"] <= 1


Life.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestLife = Life.TestCase
