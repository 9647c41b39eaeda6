"""What a step of the language model costs besides the model: choosing, text and events of 16 streams.

    python bench/host_work.py [--quick] [--json FILE]

Greedy answers and sampled ones. On the device's thread: the time between two runs while work waits. On the event loop:
its processor time. And whether slots that are idle make a step slower.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import prompts, serving
from bench.report import Report, arguments, ratio, versions
from bench.rounds import Figures, column, interleave
from bench.sse_client import Server, complete, device_figures

STREAMS = 16
PROMPT_TOKENS = 32
FEW_SLOTS, MANY_SLOTS = 2, 64
SAMPLED = {"temperature": 0.8, "top_p": 0.95}
PENALISED = {**SAMPLED, "frequency_penalty": 0.3}  # needs the whole vocabulary's logits at each step


def measure(
    server: Server,
    pid: int,
    generator: random.Random,
    num_streams: int,
    num_tokens: int,
    sampling: Mapping[str, Any],
) -> Figures:
    """{step_ms, device_host_ms, loop_ms, gap_share} per step of ``num_streams`` that decode together."""
    return uvloop.run(_measure(server, pid, generator, num_streams, num_tokens, sampling))


async def _measure(
    server: Server, pid: int, generator: random.Random, num_streams: int, num_tokens: int, sampling: Mapping[str, Any]
) -> Figures:
    before, loop_before_s = await device_figures(server), _loop_s(pid)
    bodies = [
        prompts.body(serving.CHAT, prompts.fresh(generator, PROMPT_TOKENS), num_tokens, **sampling)
        for _ in range(num_streams)
    ]
    await asyncio.gather(*(complete(server, body) for body in bodies))
    loop_s, after = _loop_s(pid) - loop_before_s, await device_figures(server)
    steps, run_s, host_s = (now - then for now, then in zip(after, before, strict=True))
    return {
        "step_ms": 1000 * (run_s + host_s) / steps,
        "device_host_ms": 1000 * host_s / steps,
        "loop_ms": 1000 * loop_s / steps,
        "gap_share": host_s / (run_s + host_s),
    }


def _loop_s(pid: int) -> float:
    """Processor time of the process's first thread, which is its event loop."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    options = arguments(__doc__)
    num_rounds, num_tokens = options.rounds or options.pick(9, 5, 1), options.pick(200, 60, 16)
    folder, generator = serving.model_folder(serving.CHAT), random.Random(0)
    with ExitStack() as stack:
        servers = {
            slots: stack.enter_context(serving.engine_alone(folder, "--slots", str(slots), "--context", "1024"))
            for slots in (FEW_SLOTS, STREAMS, MANY_SLOTS)
        }
        rows = interleave(
            {
                "16 streams, greedy": partial(measure, *servers[STREAMS], generator, STREAMS, num_tokens, {}),
                "16 streams, sampled": partial(measure, *servers[STREAMS], generator, STREAMS, num_tokens, SAMPLED),
                "16 streams, penalised": partial(measure, *servers[STREAMS], generator, STREAMS, num_tokens, PENALISED),
                "1 stream of 2 slots": partial(measure, *servers[FEW_SLOTS], generator, 1, num_tokens, {}),
                "1 stream of 64 slots": partial(measure, *servers[MANY_SLOTS], generator, 1, num_tokens, {}),
            },
            num_rounds,
            label="work",
        )
    step, host, loop = (column(rows, name, label="work") for name in ("step_ms", "device_host_ms", "loop_ms"))
    Report(
        name="host_work",
        method=(
            f"{serving.CHAT}, engine alone, prompts of {PROMPT_TOKENS} tokens, {num_tokens} decoded, per step of the "
            f"device; {num_rounds} interleaved rounds, medians; sampled: {SAMPLED}; penalised: {PENALISED}; "
            "loop: processor time of the event loop's thread, requests and events included"
        ),
        versions=versions("headrace", "onnxruntime", "numpy"),
        rows=rows,
        ratios={
            "greedy_device_host_ms": host["16 streams, greedy"],
            "sampled_device_host_ms": host["16 streams, sampled"],
            "penalised_device_host_ms": host["16 streams, penalised"],
            "greedy_loop_ms": loop["16 streams, greedy"],
            "sampled_loop_ms": loop["16 streams, sampled"],
            "idle_slots_cost": ratio(step["1 stream of 64 slots"], step["1 stream of 2 slots"]),
        },
    ).finish(options.json)


if __name__ == "__main__":
    main()
