"""From starting a process to the first token: the engine, and transformers with the same weights.

    python bench/loading.py [--quick] [--json FILE]

Files are in the page cache for both. transformers loads float32 numbers that were made of the blocks beforehand, which
is the faster way for it, or the GGUF file itself; bench/llm_peers.sh makes its environment.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import uvloop

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import prompts, serving
from bench.llm_peers import REFERENCE, Kind, available
from bench.memory import memory_mib, resident_kib
from bench.report import Report, arguments, ratio, versions
from bench.rounds import Figures, column, interleave
from bench.sse_client import complete

ENGINE = "engine alone"
FLOAT32, FROM_GGUF = "transformers, float32", "transformers, GGUF"
PEERS = {FLOAT32: REFERENCE, FROM_GGUF: Kind("torch", "peer_transformers.py", "gguf")}
PROMPT_TOKENS = 16


def engine(folder: Path, prompt: list[int]) -> Figures:
    """{ready_s, peak_mib, steady_mib}: until its first token, and its memory at most until then and then."""
    begun_at = time.perf_counter()
    with serving.engine_alone(folder) as (server, pid):
        uvloop.run(complete(server, prompts.body(serving.CHAT, prompt, 1)))
        ready_s = time.perf_counter() - begun_at
        return {"ready_s": ready_s, "peak_mib": memory_mib(pid), "steady_mib": resident_kib(pid) / 1024}


def peer(kind: Kind, threads: int, prompt: list[int]) -> Figures:
    """As ``engine``."""
    begun_at = time.perf_counter()
    loaded = kind.load(threads)
    loaded.prefill(prompt)
    ready_s = time.perf_counter() - begun_at
    figures = {"ready_s": ready_s, "peak_mib": memory_mib(loaded.pid), "steady_mib": resident_kib(loaded.pid) / 1024}
    loaded.close()
    return figures


def main() -> None:
    options = arguments(__doc__)
    num_rounds, cores = options.rounds or options.pick(7, 3, 1), serving.num_cores()
    folder = serving.model_folder(serving.CHAT)
    prompt = prompts.reading(folder, PROMPT_TOKENS)
    kinds, notes = available(PEERS)
    if options.quick or options.smoke:  # it takes half a minute each time
        kinds.pop(FROM_GGUF, None)
    rows = interleave(
        {
            ENGINE: partial(engine, folder, prompt),
            **{name: partial(peer, kind, cores, prompt) for name, kind in kinds.items()},
        },
        num_rounds,
    )
    ready_s, peak, steady = (column(rows, name) for name in ("ready_s", "peak_mib", "steady_mib"))
    Report(
        name="loading",
        method=(
            f"{serving.CHAT}; from starting a process to the first token after {PROMPT_TOKENS}, its interpreter and "
            f"imports included; {num_rounds} interleaved rounds, medians; {cores} threads"
        ),
        versions=versions("headrace", "onnxruntime"),
        rows=rows,
        ratios={
            "ready_s": ready_s[ENGINE],
            "load_vs_transformers": ratio(ready_s.get(FLOAT32), ready_s[ENGINE]),
            "load_vs_transformers_gguf": ratio(ready_s.get(FROM_GGUF), ready_s[ENGINE]),
            "load_peak_vs_steady": peak[ENGINE] / steady[ENGINE],
        },
        notes=notes,
    ).finish(options.json)


if __name__ == "__main__":
    main()
