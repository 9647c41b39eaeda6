"""How long people wait who come when they like: first tokens, time per token and stalls of the engine.

    python bench/arrivals.py [--quick] [--json FILE]

Poisson arrivals at 70 % of what the engine can do; short requests beside long prompts, with the scheduler and first
come, first served; a system prompt of 400 tokens that was read before, and one that was not.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from operator import sub
from pathlib import Path
from typing import Any

import uvloop

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import prompts, serving
from bench.first_token import percentile
from bench.processes import HERE
from bench.report import Report, Row, arguments, ratio, versions
from bench.sse_client import Server, Stream, complete

SLOTS = 16
LOAD = 0.7
MAX_STALL_S = 0.1  # the engine's default
LONG_TOKENS, SHORT_TOKENS, NUM_LONG = 1024, 32, 4
SYSTEM_TOKENS, QUESTION_TOKENS = 400, 16
SAME_STEP_S = 0.001  # events that come closer together are of one step
FIFO = ("--max-stall", "1000")  # seconds: a prompt is read whole


def mixed(generator: random.Random) -> dict[str, Any]:
    """A prompt of 32 to 512 tokens, an answer of 16 to 64."""
    tokens = prompts.fresh(generator, generator.randint(32, 512))
    return prompts.body(serving.CHAT, tokens, generator.randint(16, 64))


async def capacity(server: Server, generator: random.Random, seconds: float) -> float:
    """Requests per second of as many clients as there are slots, each asking again when it has its answer."""
    end_at, num_done = time.perf_counter() + seconds, 0

    async def client() -> None:
        nonlocal num_done
        while time.perf_counter() < end_at:
            await complete(server, mixed(generator))
            num_done += 1

    begun_at = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(SLOTS)))
    return num_done / (time.perf_counter() - begun_at)


async def poisson(server: Server, generator: random.Random, per_s: float, seconds: float) -> list[Stream]:
    """Requests that come at random, ``per_s`` on average, whatever is still running."""
    asked, next_at, end_at = [], time.perf_counter(), time.perf_counter() + seconds
    while (next_at := next_at + generator.expovariate(per_s)) < end_at:
        await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
        asked.append(asyncio.create_task(complete(server, mixed(generator))))
    return await asyncio.gather(*asked)


def steps(streams: Sequence[Stream]) -> list[float]:
    """Seconds between two steps, as the readers of their tokens see it."""
    return [gap for each in streams for gap in map(sub, each.token_at[1:], each.token_at) if gap > SAME_STEP_S]


async def step_s(server: Server, generator: random.Random) -> float:
    """The time of a step in which every slot decodes and no prompt is read: the median over a while. Steps, not tokens:
    where the text repeats itself a step brings several."""
    body = prompts.body(serving.CHAT, prompts.fresh(generator, SHORT_TOKENS), 48)
    streams = await asyncio.gather(*(complete(server, body) for _ in range(SLOTS)))
    return statistics.median(steps(streams))


async def short_beside_long(server: Server, generator: random.Random, num_samples: int) -> list[float]:
    """Seconds to the first token of short requests, one after another, while others keep asking long prompts."""
    begun = [asyncio.Event() for _ in range(NUM_LONG)]

    async def ask_long(event: asyncio.Event) -> None:
        while True:
            await complete(server, prompts.body(serving.CHAT, prompts.fresh(generator, LONG_TOKENS), 8), begun=event)

    others = [asyncio.create_task(ask_long(event)) for event in begun]
    await asyncio.gather(*(event.wait() for event in begun))
    samples = []
    for _ in range(num_samples):
        await asyncio.sleep(generator.uniform(0.0, 0.5))  # so that they come at any moment of the others
        stream = await complete(server, prompts.body(serving.CHAT, prompts.fresh(generator, SHORT_TOKENS), 4))
        samples.append(stream.first_token_s)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return samples


async def after_system_prompt(server: Server, generator: random.Random, num_samples: int, *, same: bool) -> list[float]:
    """Seconds to the first token of new questions behind a system prompt, the same one each time or a new one."""
    system = prompts.fresh(generator, SYSTEM_TOKENS)
    await complete(server, prompts.body(serving.CHAT, [*system, *prompts.fresh(generator, QUESTION_TOKENS)], 1))
    samples = []
    for _ in range(num_samples):
        begin = system if same else prompts.fresh(generator, SYSTEM_TOKENS)
        tokens = [*begin, *prompts.fresh(generator, QUESTION_TOKENS)]
        samples.append((await complete(server, prompts.body(serving.CHAT, tokens, 1))).first_token_s)
    return samples


def times(what: str, samples: Sequence[float]) -> Row:
    """A line of the table, in milliseconds."""
    return {"what": what, "n": len(samples), **{f"p{p}_ms": percentile(samples, p / 100) * 1000 for p in (50, 99)}}


def main() -> None:
    options = arguments(__doc__)
    seconds, num_rounds = options.pick(120.0, 25.0, 4.0), options.rounds or options.pick(5, 2, 1)
    num_samples = options.pick(10, 6, 2)
    generator = random.Random(0)
    folder = serving.model_folder(serving.CHAT)
    scheduled: list[float] = []
    fifo: list[float] = []
    cold: list[float] = []
    again: list[float] = []
    with serving.engine_alone(folder, "--slots", str(SLOTS)) as (server, _):
        full_step_s = uvloop.run(step_s(server, generator))
        per_s = uvloop.run(capacity(server, generator, seconds / 2))
        streams = uvloop.run(poisson(server, generator, LOAD * per_s, seconds))
        with serving.engine_alone(folder, "--slots", str(SLOTS), *FIFO, program=[str(HERE / "fifo_engine.py")]) as (
            first_come,
            _,
        ):
            for _ in range(num_rounds):
                scheduled += uvloop.run(short_beside_long(server, generator, num_samples))
                fifo += uvloop.run(short_beside_long(first_come, generator, num_samples))
        for _ in range(num_rounds):
            cold += uvloop.run(after_system_prompt(server, generator, num_samples, same=False))
            again += uvloop.run(after_system_prompt(server, generator, num_samples, same=True))

    gaps = steps(streams)
    rows = [
        times("first token, Poisson", [stream.first_token_s for stream in streams]),
        times("time per token, Poisson", [stream.token_s for stream in streams]),
        times("gap between steps, Poisson", gaps),
        times("first token, short beside long", scheduled),
        times("first token, short beside long, FIFO", fifo),
        times("first token, system prompt new", cold),
        times("first token, system prompt read before", again),
    ]
    median = {row["what"]: row["p50_ms"] for row in rows}
    Report(
        name="arrivals",
        method=(
            f"{serving.CHAT}, engine alone, {SLOTS} slots, prompts of random tokens; capacity: {SLOTS} clients in a "
            f"closed loop ({per_s:.2f}/s); Poisson at {LOAD:.0%} of it for {seconds:g} s, prompts of 32 to 512 tokens, "
            f"answers of 16 to 64; {SHORT_TOKENS} tokens beside {NUM_LONG} clients with {LONG_TOKENS}; FIFO: in order "
            f"of arrival, prompts read whole; system prompt of {SYSTEM_TOKENS} and {QUESTION_TOKENS} more, idle engine"
        ),
        versions=versions("headrace", "onnxruntime"),
        rows=rows,
        ratios={
            "poisson_ttft_p99_ms": rows[0]["p99_ms"],
            "poisson_tpot_p99_ms": rows[1]["p99_ms"],
            "longest_gap_ms": max(gaps) * 1000,
            "full_step_ms": full_step_s * 1000,
            "longest_gap_vs_step_and_max_stall": max(gaps) / (full_step_s + MAX_STALL_S),
            "short_ttft_gain": ratio(
                median["first token, short beside long, FIFO"], median["first token, short beside long"]
            ),
            "prefix_ttft_gain": ratio(
                median["first token, system prompt new"], median["first token, system prompt read before"]
            ),
        },
    ).finish(options.json)


if __name__ == "__main__":
    main()
