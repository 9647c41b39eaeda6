"""The decode graph as a call: rows of tokens in, the best logits of each row's last token out.

The only file of the language model that knows ONNX Runtime. It knows nothing of requests, sampling or scheduling, and is
driven by one thread. Placeholder signatures; see `engine/llm/kv.py` for the memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.model_folder import ModelFolder


@dataclass(frozen=True, slots=True)
class RowWork:
    """One slot's share of a step: `tokens` come after `past` tokens that the slot already holds."""

    slot: int
    tokens: Sequence[int]
    past: int
    logits: bool  # whether the logits of the last of `tokens` are wanted


@dataclass(frozen=True, slots=True)
class RowLogits:
    """The distribution of the token after a row's last one."""

    ids: NDArray[np.int64]  # [K], by descending logit
    logits: NDArray[np.float32]  # [K]
    logsumexp: float  # over the whole vocabulary, so that exp(logits - logsumexp) are true probabilities

    def whole(self) -> NDArray[np.float32]:
        """A copy of all logits [V]; only until the decoder's next run."""
        raise NotImplementedError


class Decoder:
    """A loaded model with `slots` independent sequences of up to `context` tokens."""

    slots: int
    context: int
    vocab_size: int

    def run(self, rows: Sequence[RowWork]) -> list[RowLogits | None]:
        """Advance every row in one run; the answer has an entry per row, None where logits were not asked for."""
        raise NotImplementedError

    def release(self, slot: int) -> None:
        """Give the slot's memory back; whatever it held is gone."""
        raise NotImplementedError

    def warm(self) -> None:
        """Run the shapes that serving meets first, so that the first request pays for no allocation."""
        raise NotImplementedError

    @property
    def kv_bytes_committed(self) -> int:
        """Bytes of key/value memory that sequences have touched and not given back."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the session and the key/value memory."""
        raise NotImplementedError


def load_decoder(folder: ModelFolder, *, slots: int, context: int | None = None, threads: int) -> Decoder:
    """Load a chat model; `context` None takes the model's own. Raises ModelError."""
    raise NotImplementedError
