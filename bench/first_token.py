"""The time to the first token on a busy engine.

Owns keeping a number of other streams in their decode, and asking new prompts one after another meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from bench import prompts
from bench.sse_client import Server, complete


async def busy_ms(server: Server, model: str, *, prompt_tokens: int, num_others: int, num_samples: int) -> list[float]:
    """Milliseconds from asking to the first token, for each of ``num_samples`` prompts that are new to the server."""
    generator = random.Random(1)

    def ask(max_tokens: int) -> dict[str, Any]:
        return prompts.body(model, prompts.fresh(generator, prompt_tokens), max_tokens)

    begun = [asyncio.Event() for _ in range(num_others)]
    others = [asyncio.create_task(_keep_decoding(server, ask, event)) for event in begun]
    await asyncio.gather(*(event.wait() for event in begun))
    samples = []
    for _ in range(num_samples):
        await asyncio.gather(*(event.wait() for event in begun))  # all others decode again
        stream = await complete(server, ask(1))
        samples.append(stream.first_token_s * 1000)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return samples


async def _keep_decoding(server: Server, ask: Callable[[int], dict[str, Any]], begun: asyncio.Event) -> None:
    """One stream after the other; ``begun`` is set while one decodes."""
    while True:
        await complete(server, ask(800), begun=begun)
        begun.clear()


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The smallest sample that at least ``fraction`` of all do not exceed."""
    return sorted(samples)[max(0, math.ceil(fraction * len(samples)) - 1)]
