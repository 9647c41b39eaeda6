"""How much of the device each API key has used, so that whoever has used the least comes next.

Pure. These are virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a prompt
token counts 1, an answer's 2, which is about what they take of a device. A sequence is paid for when it gets its slot,
with the length that its answer will probably have, so that a key cannot take all free slots at once; the account is
settled as the answer turns out. A key that comes back after a rest is lifted to the lowest of those that stayed: rest
earns no credit, and what a key has used is remembered as long as somebody else is there.
"""

from __future__ import annotations

from engine.llm.sequence import Sequence

_PROMPT_WEIGHT = 1
_ANSWER_WEIGHT = 2
_MAX_ABSENT = 1024  # keys that are not inside and are remembered for what they have used


class Ledger:
    """A counter per key, for the keys inside and for those that have left a debt."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        self._inside: dict[str, int] = {}  # how many sequences each key has inside

    def used(self, key: str) -> int:
        """The counter of a key that is inside: weighted tokens."""
        return self._used[key]

    def enter(self, key: str) -> None:
        """One more sequence of this key is inside."""
        if key not in self._inside:
            lowest = min((self._used[each] for each in self._inside), default=0)
            self._used[key] = max(self._used.get(key, 0), lowest)
        self._inside[key] = self._inside.get(key, 0) + 1

    def prepay(self, sequence: Sequence, answer_tokens: int) -> None:
        """Charge its key for a sequence that got a slot; one that had one before was paid for then.

        What the slot holds of it already costs nothing.
        """
        if sequence.num_prepaid is None:
            sequence.num_prepaid = answer_tokens
            self._used[sequence.key] += _PROMPT_WEIGHT * sequence.num_unread + _ANSWER_WEIGHT * answer_tokens

    def settle(self, sequence: Sequence, *, ended: bool) -> None:
        """Charge for what the answer has beyond its prepaid length; once it has ended, give back the rest."""
        if sequence.num_prepaid is None:
            return
        over = sequence.num_output_tokens - sequence.num_prepaid
        if over > 0 or ended:
            self._used[sequence.key] += _ANSWER_WEIGHT * over
            sequence.num_prepaid += over

    def leave(self, key: str) -> None:
        """One of the key's sequences has ended."""
        self._inside[key] -= 1
        if not self._inside[key]:
            del self._inside[key]
            self._forget()

    def _forget(self) -> None:
        """Drop what is of no use: everything when nobody is left, else, from time to time, what absent keys owe."""
        if not self._inside:
            self._used.clear()
        elif len(self._used) - len(self._inside) > _MAX_ABSENT:
            lowest = min(self._used[each] for each in self._inside)
            owing = sorted((used, key) for key, used in self._used.items() if key not in self._inside and used > lowest)
            kept = {key for _, key in owing[-_MAX_ABSENT // 2 :]} | self._inside.keys()
            self._used = {key: self._used[key] for key in kept}
