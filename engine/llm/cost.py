"""What a step of the language model will take, from what steps have taken.

Pure: durations are handed in. Two measured curves are enough on the devices at hand: the time of a step that decodes
n rows, and what each further prompt token in the same step adds, which is nearly constant from 8 tokens up (here seven
decodes take 40 ms alone, and 55, 74, 95, 110, 189 ms with 8, 16, 24, 32, 64 tokens).
"""

from __future__ import annotations

SMALLEST_CHUNK = 3  # can give up one token to what is left of the prompt and is still not a single token
_SMOOTHING = 0.2  # weight of the newest step
_TELLING_TOKENS = 16  # a smaller chunk is mostly noise, so it counts for less
_JUMP = 2.0  # one step changes an estimate at most as if it had been this factor off


class StepCost:
    """Estimates for up to ``slots`` rows, begun from two measured decode steps and a measured chunk."""

    def __init__(self, slots: int, *, one_row_s: float, all_rows_s: float, token_s: float) -> None:
        slope_s = (all_rows_s - one_row_s) / max(1, slots - 1)
        self._decode_s = [one_row_s + slope_s * (rows - 1) for rows in range(1, slots + 1)]
        self.token_s = token_s  # one more prompt token in a step

    def decode_s(self, num_rows: int) -> float:
        """Seconds of a step that only decodes ``num_rows`` rows.

        For none: of one row, which is what reading the weights takes, whatever else the step does.
        """
        return self._decode_s[max(num_rows, 1) - 1]

    def chunk_tokens(self, allowance_s: float) -> int:
        """Prompt tokens that add at most ``allowance_s`` to a step, but always enough to go on with a prompt."""
        return max(SMALLEST_CHUNK, int(allowance_s / self.token_s))

    def observe(self, num_decodes: int, num_chunk_tokens: int, took_s: float) -> None:
        """Learn from a step that decoded ``num_decodes`` rows and read ``num_chunk_tokens`` of prompts."""
        if num_chunk_tokens:
            added_s = (took_s - self.decode_s(num_decodes)) / num_chunk_tokens
            weight = _SMOOTHING * min(1.0, num_chunk_tokens / _TELLING_TOKENS)
            self.token_s = _blend(self.token_s, added_s, weight)
        elif num_decodes:
            self._decode_s[num_decodes - 1] = _blend(self._decode_s[num_decodes - 1], took_s, _SMOOTHING)


def _blend(old: float, new: float, weight: float) -> float:
    return old + weight * (min(max(new, old / _JUMP), old * _JUMP) - old)
