"""What a step of the language model will take, from what steps have taken.

Pure: durations are handed in. A step takes the time of decoding its n rows, a curve over n, and what its prompt tokens
add, each nearly the same from 8 tokens up (here seven decodes take 40 ms alone, and 55, 74, 95, 110, 189 ms with 8, 16,
24, 32, 64 tokens). Both grow with the tokens before them, which are attended to: after 2000 tokens eight decodes take
four times as long as at the beginning, and a prompt token twice.

Steps of one size differ, more on a machine that others use, and a reader is promised the longest and not the middle
one. So it is learned how much longer than thought the one in a hundred takes that takes longest, a quantile found by
small steps up and down (Robbins and Monro, 1951), and so much shorter is reading planned. In a simulation with the
noise of a shared machine a third to a fifth as many gaps were too long as with four mean deviations of reading kept
free, and the 99th of a hundred first tokens came 6 to 17 % later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SMALLEST_CHUNK = 3  # can give up one token to what is left of the prompt and is still not a single token
_SMOOTHING = 0.2  # weight of the newest step
_TELLING_TOKENS = 16  # a smaller chunk is mostly noise, so it counts for less
_FORGETTING = 0.01  # weight of what a draft token should cost, for each step that does not show it
_JUMP = 2.0  # one step changes an estimate at most as if it had been this factor off
_KEPT = 0.99  # of steps beside which is read, that end in time
_LONGER_STEP = 0.05  # how far one step moves what is thought of the longest
_MOST_LONGER = 3.0  # or so rare a step would be remembered for too long
_LEAST_PLANNED = 1 / 3  # of an allowance, however much steps differ: what is read in smaller pieces costs more in all
_UNIT_TOKENS = 1024  # tokens before, in units in which their effect is about as large as the constant one


class StepCost:
    """Estimates for up to ``slots`` rows, begun from two measured decode steps and a measured chunk, all with nothing
    before them; how much the tokens before them matter is learned from steps."""

    def __init__(self, slots: int, *, one_row_s: float, all_rows_s: float, token_s: float) -> None:
        slope_s = (all_rows_s - one_row_s) / max(1, slots - 1)
        self._decode_s = [one_row_s + slope_s * (rows - 1) for rows in range(1, slots + 1)]
        self._decode_unit_s = 0.0  # what a unit of tokens in all decoding rows together adds to a step
        self._token_s = token_s  # one more prompt token in a step
        self._token_unit_s = 0.0  # what a unit of tokens before it adds to that
        self.draft_s = token_s  # one draft token: it is read like a prompt's, and has logits
        self._longer = 1.0  # by what factor the longest of a hundred steps with reading and decodes is underestimated

    def decode_s(self, num_rows: int, num_before: int = 0) -> float:
        """Seconds of a step that only decodes ``num_rows`` rows, which hold ``num_before`` tokens together.

        For no row: of one, which is what reading the weights takes, whatever else the step does.
        """
        return self._decode_s[max(num_rows, 1) - 1] + self._decode_unit_s * num_before / _UNIT_TOKENS

    def read_s(self, num_tokens: int, num_before: int = 0) -> float:
        """Seconds that reading a prompt's next tokens adds to steps, when ``num_before`` of it have been read."""
        return num_tokens * (self._token_s + self._token_unit_s * (num_before + num_tokens / 2) / _UNIT_TOKENS)

    def planned_s(self, allowance_s: float, num_rows: int, num_before: int = 0) -> float:
        """How much reading to plan beside such decodes so that hardly any step takes longer than they and the
        allowance."""
        decode_s = self.decode_s(num_rows, num_before)
        return max(_LEAST_PLANNED * allowance_s, (decode_s + allowance_s) / self._longer - decode_s)

    def chunk_tokens(self, allowance_s: float, num_before: int = 0) -> int:
        """The most tokens for which ``read_s`` is within the allowance."""
        unit_s = self._token_unit_s / _UNIT_TOKENS
        first_s = self._token_s + unit_s * num_before
        return int(2 * allowance_s / (first_s + math.sqrt(first_s * first_s + 2 * unit_s * allowance_s)))

    def observe(
        self, decodes: Sequence[int], chunks: Sequence[tuple[int, int]], took_s: float, *, num_drafted: int = 0
    ) -> None:
        """Learn from a step. decodes: for each decoding row the tokens before; chunks: for each chunk of a prompt its
        tokens and those before; num_drafted: draft tokens, in a step without chunks."""
        if num_tokens := sum(num for num, _ in chunks):
            decode_s = self.decode_s(len(decodes), sum(decodes))
            if decodes:
                self._compare(took_s, decode_s + sum(self.read_s(num, before) for num, before in chunks))
            read_s = took_s - decode_s
            share_s = read_s / num_tokens
            units = sum(num * (before + num / 2) for num, before in chunks) / num_tokens / _UNIT_TOKENS
            weight = _SMOOTHING * min(1.0, num_tokens / _TELLING_TOKENS)
            self._token_s, self._token_unit_s = _fit(self._token_s, self._token_unit_s, units, share_s, weight)
        elif num_drafted:
            share_s = (took_s - self.decode_s(len(decodes), sum(decodes))) / num_drafted
            weight = _SMOOTHING * min(1.0, num_drafted / _TELLING_TOKENS)
            self.draft_s, _ = _fit(self.draft_s, 0.0, 0.0, share_s, weight)
        elif decodes:
            self.draft_s += _FORGETTING * (self._token_s - self.draft_s)  # else one that is too dear stays so unseen
            rows = len(decodes) - 1
            units = sum(decodes) / _UNIT_TOKENS
            fitted = _fit(self._decode_s[rows], self._decode_unit_s, units, took_s, _SMOOTHING)
            self._decode_s[rows], self._decode_unit_s = fitted

    def _compare(self, took_s: float, estimate_s: float) -> None:
        """Learn how far the longest steps are underestimated. It is in balance when one in a hundred is longer."""
        share = _KEPT if took_s > estimate_s * self._longer else _KEPT - 1
        self._longer = min(max(self._longer * (1 + _LONGER_STEP * share), 1.0), _MOST_LONGER)


def _fit(constant: float, slope: float, x: float, y: float, weight: float) -> tuple[float, float]:
    """The line through what is known, moved towards a new point (x, y): normalised least mean squares."""
    estimate = constant + slope * x
    step = weight * (min(max(y, estimate / _JUMP), estimate * _JUMP) - estimate) / (1 + x * x)
    return max(constant + step, constant / _JUMP), max(slope + step * x, 0.0)
