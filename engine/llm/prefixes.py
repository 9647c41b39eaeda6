"""Which slots hold the beginning of a text: found by a hash of its first tokens, compared token by token.

Pure. Keys and values of a token depend only on the tokens before it, so two texts that begin alike can share what was
computed for the beginning. A hash alone is never believed: what is shared are exactly the tokens that are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

MIN_TOKENS = 32  # a shorter beginning is read as fast as it is found
LEFT_TO_READ = 2  # of a text: the last token's logits are wanted, and a token that is read alone meets other kernels


class Text(Protocol):
    """What a slot holds: the first ``num_cached`` of ``tokens``."""

    @property
    def key(self) -> str: ...  # whose it is

    @property
    def tokens(self) -> list[int]: ...

    @property
    def num_cached(self) -> int: ...


class Match(NamedTuple):
    """A slot whose first ``num_tokens`` tokens are also the first of the text asked for."""

    slot: int
    num_tokens: int


class Prefixes:
    """The texts in the slots, those being written included. by_key: only texts of one key may share."""

    def __init__(self, *, by_key: bool) -> None:
        self._by_key = by_key
        self._texts: dict[int, Text] = {}
        self._slots: dict[tuple[str, tuple[int, ...]], list[int]] = {}

    def put(self, slot: int, text: Text) -> None:
        """The slot holds this text from now on, and not what it held."""
        self.discard(slot)
        if len(text.tokens) >= MIN_TOKENS:
            self._texts[slot] = text
            self._slots.setdefault(self._address(text), []).append(slot)

    def discard(self, slot: int) -> None:
        """The slot holds nothing that could be shared."""
        text = self._texts.pop(slot, None)
        if text is None:
            return
        address = self._address(text)
        self._slots[address].remove(slot)
        if not self._slots[address]:
            del self._slots[address]

    def matches(self, text: Text, most: int) -> Iterator[Match]:
        """The other slots that hold a beginning of this text worth sharing, of at most ``most`` tokens."""
        if most < MIN_TOKENS:
            return
        for slot in self._slots.get(self._address(text), ()):
            held = self._texts[slot]
            if held is not text and held.num_cached >= MIN_TOKENS:
                yield Match(slot, common_length(held.tokens, text.tokens, min(held.num_cached, most)))

    def common(self, one: Text, other: Text, most: int) -> int:
        """How many of the first tokens, of at most ``most``, two texts could share once they are in slots."""
        if len(other.tokens) < MIN_TOKENS or self._address(one) != self._address(other):
            return 0
        return common_length(one.tokens, other.tokens, min(most, len(other.tokens)))

    def _address(self, text: Text) -> tuple[str, tuple[int, ...]]:
        return (text.key if self._by_key else "", tuple(text.tokens[:MIN_TOKENS]))


def common_length(one: Sequence[int], other: Sequence[int], most: int) -> int:
    """How many of the first ``most`` tokens are equal up to the first that differs. Both have at least so many."""
    length = 0
    while length < most and one[length : length + 64] == other[length : length + 64]:
        length += 64
    length = min(length, most)
    while length < most and one[length] == other[length]:
        length += 1
    return length
