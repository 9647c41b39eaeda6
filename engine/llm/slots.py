"""Which slot a sequence gets, what of it some slot holds already, and what all of them take of the memory.

Pure: ``now`` is an argument, and what is decided about the memory becomes commands (``engine.llm.slot_memory``). A slot
is

    running   a sequence's, of whose tokens the decoder has read some or all
    empty     nothing in it, no memory
    kept      for a while after its sequence: the beginning of a text that may come again

A text that goes on from a kept one gets its slot and reads on; one that only begins like another gets a copy, which
takes a small part of the time that reading takes. Kept texts make way for whatever running sequences want. A new
sequence gets a slot while all that have one could go on for a while; when they grow further and the memory is short,
``shortage`` says so, and the scheduler sends one of them back to wait.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.llm.free_slots import FreeSlots
from engine.llm.kv import KvShape
from engine.llm.prefixes import LEFT_TO_READ, MIN_TOKENS, Match, Prefixes, Text
from engine.llm.sequence import Sequence
from engine.llm.slot_memory import SlotMemory

GROWTH_TOKENS = 32  # beyond what they are now all sequences must have room for when one more gets a slot
KEEP_BELOW = 0.85  # of the budget: when more is committed, nothing more is kept
COMPACT_ABOVE = 0.35  # of the budget: committed, but used by no running sequence
EVICT_ABOVE = 0.60


class Slots:
    """The slots of one decoder. budget_bytes: what they may take together, enough for one sequence of the longest.

    keep_s: how long a text is kept after its sequence; 0: nothing is shared. by_key: only texts of one key share.
    """

    def __init__(self, shape: KvShape, budget_bytes: int, *, keep_s: float = 0.0, by_key: bool = True) -> None:
        self.budget_bytes = budget_bytes
        self.running: dict[int, Sequence] = {}
        self.num_reuses = 0  # sequences that found their beginning; this and the following only grow
        self.num_reused_tokens = 0
        self.num_copies = 0
        self.num_compactions = 0
        self.memory = SlotMemory(shape)
        self.num_slots = shape.slots
        self._keep_s = keep_s
        self._prefixes = Prefixes(by_key=by_key)
        self.free = FreeSlots(self.memory, self._prefixes, shape.slots, keep_s)
        self._unread: dict[int, bool] = {}  # running slots of whose sequence nothing was read; whether it is its first

    def fits(self, sequence: Sequence) -> bool:
        """Whether ``place`` would give it a slot."""
        has_slot = len(self.running) < self.num_slots
        return has_slot and self._foreseen_bytes(sequence) <= self.budget_bytes

    def place(self, sequence: Sequence, now: float) -> None:
        """Give it a slot, perhaps with its first tokens in it already. Raises ValueError when it does not fit."""
        if not self.fits(sequence):
            raise ValueError("there is no slot or no memory for this sequence: ask first")
        self.free.expire(now)
        match = self._best_match(sequence)
        slot = self._make_room(sequence, match)
        self.free.take(slot)
        if slot != match.slot:
            self._copy(match, slot, now)
        self.memory.trim(slot, match.num_tokens)
        sequence.slot, sequence.num_cached = slot, match.num_tokens
        self.running[slot] = sequence
        self._prefixes.put(slot, sequence)
        self._unread[slot] = sequence.num_reused is None
        self._count_reuse(sequence, 0)

    def join(self, sequence: Sequence, ahead: Iterable[Sequence], now: float) -> bool:
        """Whether to read a sequence in the next step, if nothing was read of it yet; else it is read anyway.

        Not if one of those ahead, which are read in that step, begins with more of the same than any slot holds now: it
        is worth a wait. What a slot holds by now is copied. So of many that begin alike and come at once, one is read.
        """
        slot = _slot_of(sequence)
        if slot not in self._unread or not self._keep_s:
            return True
        self.free.expire(now)
        match = self._best_match(sequence)
        held = max(match.num_tokens, sequence.num_cached)
        most = len(sequence.tokens) - LEFT_TO_READ
        if any(self._prefixes.common(sequence, other, most) >= held + MIN_TOKENS for other in ahead):
            return False
        more_bytes = self.memory.bytes_of(slot, match.num_tokens) - self.memory.bytes_of(slot)
        fits = self.memory.committed_bytes + more_bytes <= self.budget_bytes
        if fits and match.num_tokens >= sequence.num_cached + MIN_TOKENS:
            before = sequence.num_cached
            self._copy(match, slot, now)
            sequence.num_cached = match.num_tokens
            self._count_reuse(sequence, before)
        return True

    def grew(self, sequence: Sequence, num_written: int) -> None:
        """The decoder has written so many tokens in its slot, those included that were taken back."""
        slot = _slot_of(sequence)
        self.memory.grew(slot, num_written)
        self._unread.pop(slot, None)

    def shortage(self, shares: Iterable[tuple[Sequence, int]]) -> int:
        """Bytes by which the budget would be passed if so many tokens more of these sequences were read.

        Texts that are kept are given up for it. 0: the step may be run.
        """
        growth = {_slot_of(sequence): sequence.num_cached + num_tokens for sequence, num_tokens in shares}
        needed_bytes = sum(self.memory.bytes_of(slot, growth.get(slot, 0)) for slot in self.running)
        self.free.give_up(needed_bytes + self.free.kept_bytes - self.budget_bytes)
        return max(0, needed_bytes - self.budget_bytes)

    def give_back(self, sequence: Sequence, now: float, *, keep: bool) -> None:
        """It needs its slot no more. keep: what the slot holds is sound and may be of use again."""
        slot = _slot_of(sequence)
        del self.running[slot]
        self._unread.pop(slot, None)
        self._prefixes.discard(slot)
        room = self.memory.committed_bytes <= KEEP_BELOW * self.budget_bytes
        if keep and room and self._keep_s and sequence.num_cached >= MIN_TOKENS:
            self.free.put(slot, sequence, now)
        else:
            self.free.put_empty(slot)
        sequence.slot, sequence.num_cached = None, 0

    def resize(self, budget_bytes: int) -> None:
        """Change the budget; texts that are kept make way at once, running sequences by the next shortage."""
        self.budget_bytes = budget_bytes
        self.free.give_up(self.memory.committed_bytes - budget_bytes)

    def tidy(self, now: float) -> None:
        """Give back, while nothing runs, what is kept without need."""
        self.free.expire(now)
        if self.unused_bytes > COMPACT_ABOVE * self.budget_bytes:
            self._compact()
        self.free.give_up(self.unused_bytes - EVICT_ABOVE * self.budget_bytes)

    def tidy_at(self) -> float | None:
        """When there will be something to tidy up, if nothing happens before."""
        return self.free.next_until()

    @property
    def unused_bytes(self) -> int:
        """Memory in which no running sequence's tokens lie: waste, unless what is kept comes to use."""
        used_bytes = sum(self.memory.bytes_for(each.num_cached) for each in tuple(self.running.values()))
        return self.memory.committed_bytes - used_bytes

    def statistics(self) -> dict[str, float]:
        """Numbers for ``engine.model.Model.statistics``. Any thread: they may be a moment old."""
        committed_bytes = self.memory.committed_bytes
        held: tuple[Text, ...] = (*tuple(self.running.values()), *tuple(self.free.kept.values()))
        filled_bytes = self.memory.filled_bytes(sum(each.num_cached for each in held))
        return {
            "kv_budget_bytes": self.budget_bytes,
            "kv_bytes": committed_bytes,
            "kv_waste_ratio": self.unused_bytes / self.budget_bytes,
            "kv_fragmentation_ratio": 1 - filled_bytes / committed_bytes if committed_bytes else 0.0,
            "kv_compactions_total": self.num_compactions,
            "kv_evictions_total": self.free.num_evictions,
            "prefixes": len(self.free.kept),
            "prefix_hits_total": self.num_reuses,
            "prefix_copies_total": self.num_copies,
            "prefix_tokens_total": self.num_reused_tokens,
        }

    def _foreseen_bytes(self, newcomer: Sequence) -> int:
        """What running sequences and a new one take once they are read and have grown by a while."""
        everyone = [*self.running.values(), newcomer]
        return sum(self.memory.bytes_for(min(len(each.tokens) + GROWTH_TOKENS, each.most_tokens)) for each in everyone)

    def _best_match(self, sequence: Sequence) -> Match:
        """The longest beginning of it that a slot holds, rather in an idle slot than in a running one."""
        matches = self._prefixes.matches(sequence, len(sequence.tokens) - LEFT_TO_READ) if self._keep_s else ()
        return max(matches, key=lambda match: (match.num_tokens, match.slot in self.free.kept), default=Match(-1, 0))

    def _make_room(self, sequence: Sequence, match: Match) -> int:
        """The slot to take, the match's own or an empty one, when others have given up enough for it.

        In the match's own slot the rest of the text that is kept there is lost. So it is taken if that is next to
        nothing, or, where other texts would have to make way for a copy, if it is no more than half.
        """
        free = self.free
        needed_bytes = self._foreseen_bytes(sequence)
        roomy = bool(free.empty) and needed_bytes + free.kept_bytes <= self.budget_bytes
        kept = free.kept.get(match.slot)
        lost_tokens = 0 if kept is None else kept.num_cached - match.num_tokens
        in_place = kept is not None and lost_tokens < (MIN_TOKENS if roomy else match.num_tokens + 1)
        others = iter([slot for slot in free.kept if slot != match.slot])
        while True:
            own_bytes = self.memory.bytes_of(match.slot) if in_place else 0
            fits = needed_bytes + free.kept_bytes - own_bytes <= self.budget_bytes
            if fits and (in_place or free.empty):
                return match.slot if in_place else min(free.empty)  # a run covers all slots up to the highest
            if (other := next(others, None)) is not None:
                free.evict(other)
            else:
                in_place = True  # the match is all that is left, and there is no room for a copy beside it

    def _copy(self, match: Match, target: int, now: float) -> None:
        if match.num_tokens:
            self.memory.copy(match.slot, target, match.num_tokens)
            self.free.renew(match.slot, now)
            self.num_copies += 1

    def _count_reuse(self, sequence: Sequence, num_before: int) -> None:
        self.num_reuses += sequence.num_cached > 0 and not num_before
        self.num_reused_tokens += sequence.num_cached - num_before
        if self._unread[_slot_of(sequence)]:
            sequence.num_reused = sequence.num_cached

    def _compact(self) -> None:
        """Keep a text once where two slots hold it, and no memory that was written and taken back."""
        cut = [self.memory.trim(slot, sequence.num_cached) for slot, sequence in self.running.items()]
        self.num_compactions += self.free.forget_doubles() or any(cut)


def _slot_of(sequence: Sequence) -> int:
    if sequence.slot is None:
        raise ValueError("this sequence has no slot")
    return sequence.slot
