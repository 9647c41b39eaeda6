"""The time to the first token on a busy engine.

Owns keeping a number of other streams in their decode, and asking new questions one after another meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from bench.questions import Questions
from bench.sse_client import Server, chat


async def busy_ms(server: Server, questions: Questions, *, num_others: int, num_samples: int) -> list[float]:
    """Milliseconds from asking to the first token, for each of ``num_samples`` questions."""
    begun = [asyncio.Event() for _ in range(num_others)]
    others = [asyncio.create_task(_keep_decoding(server, questions, event)) for event in begun]
    await asyncio.gather(*(event.wait() for event in begun))
    samples = []
    for number in range(num_samples):
        await asyncio.gather(*(event.wait() for event in begun))  # all others decode again
        stream = await chat(server, questions.body(max_tokens=1, number=number))
        samples.append(stream.first_token_s * 1000)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return samples


async def _keep_decoding(server: Server, questions: Questions, begun: asyncio.Event) -> None:
    """One stream after the other; ``begun`` is set while one decodes."""
    while True:
        await chat(server, questions.body(max_tokens=1000), begun=begun)
        begun.clear()


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The smallest sample that at least ``fraction`` of all do not exceed."""
    return sorted(samples)[max(0, math.ceil(fraction * len(samples)) - 1)]
