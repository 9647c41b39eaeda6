"""How far a model strays from its source in float32, along a text: KL divergence, agreement, perplexity.

The model reads the text token by token, as it does while it answers; the source in pieces, since float32 does not care.
Knows neither files nor the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.llm.decoder import Decoder, RowWork

MAX_TOKENS = 1024  # of a text; each costs a step of the model
PIECE_TOKENS = 16  # of which the source's logits are held at a time


class Quality(NamedTuple):
    """Means over the tokens of a text."""

    tokens: int
    kl_mean: float  # nats, of the model's next-token distributions from the source's (Kullback and Leibler, 1951)
    top_1: float  # share of tokens after which both think the same one likeliest
    perplexity: float  # exp of the mean negative log-likelihood of the text's own next token
    source_perplexity: float


def measure(model: Decoder, source: Decoder, tokens: Sequence[int]) -> Quality:
    """Compare both along `tokens`, at least two of them, in slot 0 of either; leaves both slots empty."""
    sums = np.zeros(4)
    for start in range(0, len(tokens), PIECE_TOKENS):
        piece = tokens[start : start + PIECE_TOKENS]
        (expected,) = source.run([RowWork(0, piece, start, len(piece))])
        for at, logits in enumerate(expected, start):
            ((actual,),) = model.run([RowWork(0, [tokens[at]], at, 1)])
            following = tokens[at + 1] if at + 1 < len(tokens) else None
            sums += _compare(_log_softmax(logits.vocabulary), _log_softmax(actual.vocabulary), following)
    model.release(0)
    source.release(0)
    count = len(tokens)
    kl_mean, top_1 = sums[:2] / count
    perplexity, source_perplexity = np.exp(sums[2:] / (count - 1))
    return Quality(count, float(kl_mean), float(top_1), float(perplexity), float(source_perplexity))


def _compare(source: NDArray[np.float64], model: NDArray[np.float64], following: int | None) -> tuple[float, ...]:
    """KL divergence, whether the best agree, and what each holds against the token that follows."""
    divergence = float(np.exp(source) @ (source - model))
    agrees = float(source.argmax() == model.argmax())
    if following is None:
        return divergence, agrees, 0.0, 0.0
    return divergence, agrees, -float(model[following]), -float(source[following])


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result
