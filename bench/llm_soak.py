"""Ten minutes of mixed requests to the engine, a quarter of which leave: is its memory flat, and is every place free?

    python bench/llm_soak.py [--quick] [--seconds N] [--json FILE]

More clients than slots, greedy and sampled answers, one choice and two, some behind one system prompt. A line is fitted
to the engine's anonymous memory, less what its keys and values take, once it has warmed up: weights are mapped, and a
word that was not met before brings a page of them in. In the end nothing may run, wait or be unanswered.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import prompts, serving
from bench.memory import anonymous_kib, fit
from bench.report import Report, arguments, versions
from bench.sse_client import Server, complete, model_figures

Samples = list[tuple[float, float]]  # minutes, KiB
CLIENTS, SLOTS = 12, 8
LEAVE_SHARE, SHARED_SHARE = 0.25, 0.3
WARMUP_SHARE = 0.3  # of the time, at most two minutes
END_TIMEOUT_S = 5.0


@dataclass
class Counts:
    """What became of the requests."""

    ended: int = 0
    left: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)


async def watch(server: Server, pid: int, taken: Samples, every_s: float) -> None:
    """Adds (minutes, KiB) again and again: anonymous memory, less the keys and values of texts that run or are kept."""
    begun_at = time.monotonic()
    while True:
        kv_bytes = (await model_figures(server))["kv_bytes"]
        taken.append(((time.monotonic() - begun_at) / 60, anonymous_kib(pid) - kv_bytes / 1024))
        await asyncio.sleep(every_s)


async def load(server: Server, pid: int, generator: random.Random, seconds: float) -> tuple[Counts, Samples]:
    """Keeps the clients asking; counts, and samples of the memory."""
    samples: Samples = []
    watching = asyncio.create_task(watch(server, pid, samples, max(0.2, seconds / 600)))
    counts, end_at = Counts(), time.monotonic() + seconds
    system = prompts.fresh(generator, 200)

    async def client() -> None:
        while time.monotonic() < end_at:
            asking = asyncio.create_task(complete(server, _request(generator, system)))
            if leaves := generator.random() < LEAVE_SHARE:
                asyncio.get_running_loop().call_later(generator.uniform(0.0, 3.0), asking.cancel)
            try:
                await asking
                counts.ended += 1
            except asyncio.CancelledError:
                if not leaves:
                    raise
                counts.left += 1
            except Exception as error:
                counts.failed += 1
                counts.problems.append(f"{type(error).__name__}: {error}"[:200])

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    watching.cancel()
    return counts, samples


def _request(generator: random.Random, system: list[int]) -> dict[str, Any]:
    own = prompts.fresh(generator, generator.randint(8, 300))
    tokens = [*system, *own[:50]] if generator.random() < SHARED_SHARE else own
    sampling = generator.choice(
        [{}, {"temperature": 0.8, "top_p": 0.9}, {"temperature": 1.0, "frequency_penalty": 0.5}]
    )
    return prompts.body(serving.CHAT, tokens, generator.randint(4, 64), **sampling, n=generator.choice([1, 1, 2]))


async def left_inside(server: Server) -> float:
    """Sequences that still run or wait, once there are none or five seconds have passed."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while True:
        figures = await model_figures(server)
        inside = figures["running"] + figures["waiting"]
        if not inside or time.monotonic() > deadline:
            return inside
        await asyncio.sleep(0.05)


def main() -> None:
    options = arguments(
        __doc__, lambda parser: parser.add_argument("--seconds", type=float, metavar="N", help="instead of ten minutes")
    )
    seconds = options.seconds or options.pick(600.0, 60.0, 5.0)
    folder = serving.model_folder(serving.CHAT)
    with serving.engine_alone(folder, "--slots", str(SLOTS), "--context", "2048") as (server, pid):
        counts, samples = uvloop.run(load(server, pid, random.Random(0), seconds))
        inside = uvloop.run(left_inside(server))
    warm_min = min(seconds * WARMUP_SHARE, 120.0) / 60
    warm = [(at, kib) for at, kib in samples if at >= warm_min]
    line, last = fit(warm), fit(warm[len(warm) // 2 :])
    Report(
        name="llm_soak",
        method=(
            f"{seconds:g} s of {CLIENTS} clients on {SLOTS} slots of {serving.CHAT}, engine alone; {LEAVE_SHARE:.0%} "
            f"leave within 3 s; anonymous memory less keys and values, without the first {warm_min * 60:.0f} s; slope "
            "by least squares, with its standard error, which takes samples as independent; last half: of those alone"
        ),
        versions=versions("headrace", "onnxruntime"),
        rows=[{"requests": name, "num": getattr(counts, name)} for name in ("ended", "left", "failed")],
        ratios={
            "llm_rss_slope_kib_per_min": line.slope,
            "llm_rss_slope_error_kib_per_min": line.error,
            "llm_rss_slope_last_half_kib_per_min": last.slope,
            "rss_first_mib": warm[0][1] / 1024,
            "rss_last_mib": warm[-1][1] / 1024,
            "left_inside": inside,
            "llm_soak_failures": float(counts.failed),
        },
        notes=counts.problems[:10],
    ).finish(options.json)


if __name__ == "__main__":
    main()
