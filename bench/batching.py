"""Embeddings: dynamic batching beside a bare ONNX Runtime loop, in one run.

    python bench/batching.py [--quick] [--json FILE]

Texts of 16 tokens. The loop runs one row and sixteen rows at a time; the engine alone and the whole appliance over TLS
are asked by one client and by 64, each sending its next text when it has the last one's vector.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvloop

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from bench import serving
from bench.json_client import JsonClient
from bench.memory import memory_mib
from bench.report import Report, arguments, ratio, versions
from bench.rounds import Figures, column, interleave
from bench.sse_client import Server
from engine import model_folder
from engine.adapters.text import load_text_adapter
from engine.encoder import Encoder, load_encoder

TEXT = "The water of the river turns the wheel of the old mill every day"
TEXT_TOKENS = 16
BATCH = 16
CLIENTS = 64


def bare(encoder: Encoder, num_rows: int, seconds: float) -> Figures:
    """{texts_per_s} of a loop that runs ``num_rows`` rows of 16 tokens at a time."""
    token_ids = np.full((num_rows, TEXT_TOKENS), 1000, np.int32)
    lengths = np.full(num_rows, TEXT_TOKENS, np.int32)
    num_done, begun_at = 0, time.perf_counter()
    while time.perf_counter() < begun_at + seconds:
        encoder.run(token_ids, lengths)
        num_done += num_rows
    return {"texts_per_s": num_done / (time.perf_counter() - begun_at)}


def served(server: Server, num_clients: int, seconds: float) -> Figures:
    """{texts_per_s} of ``num_clients`` that each keep one text in flight."""
    return {"texts_per_s": uvloop.run(_served(server, num_clients, seconds))}


async def _served(server: Server, num_clients: int, seconds: float) -> float:
    clients = await asyncio.gather(*(JsonClient.connect(server) for _ in range(num_clients)))
    begun_at = time.perf_counter()
    counts = await asyncio.gather(*(_ask_until(client, begun_at + seconds) for client in clients))
    elapsed_s = time.perf_counter() - begun_at
    for client in clients:
        client.close()
    return sum(counts) / elapsed_s


async def _ask_until(client: JsonClient, end_at: float) -> int:
    body = {"model": serving.EMBEDDING, "input": TEXT, "encoding_format": "base64"}
    num_done = 0
    while time.perf_counter() < end_at:
        await client.post("/v1/embeddings", body)
        num_done += 1
    return num_done


def main() -> None:
    options = arguments(__doc__)
    num_rounds, seconds = options.rounds or (3 if options.quick else 7), 2.0 if options.quick else 5.0
    folder, cores = serving.model_folder(serving.EMBEDDING), serving.num_cores()
    read = model_folder.read(folder)
    num_text_tokens = len(load_text_adapter(read).encode(TEXT))
    if num_text_tokens != TEXT_TOKENS:
        raise SystemExit(f"the text has {num_text_tokens} tokens, not {TEXT_TOKENS}")
    encoder = load_encoder(read, threads=cores)
    with serving.engine_alone(folder) as (engine, _), serving.appliance(serving.EMBEDDING) as (edge, engine_pid):
        measures: dict[str, Callable[[], Figures]] = {
            "bare loop, 1 row": partial(bare, encoder, 1, seconds),
            f"bare loop, {BATCH} rows": partial(bare, encoder, BATCH, seconds),
            "engine alone, 1 client": partial(served, engine, 1, seconds),
            f"engine alone, {CLIENTS} clients": partial(served, engine, CLIENTS, seconds),
            "appliance over TLS, 1 client": partial(served, edge, 1, seconds),
            f"appliance over TLS, {CLIENTS} clients": partial(served, edge, CLIENTS, seconds),
        }
        rows = interleave(measures, num_rounds, label="who")
        memory = memory_mib(engine_pid)

    speed = column(rows, "texts_per_s", label="who")
    many = speed[f"appliance over TLS, {CLIENTS} clients"]
    Report(
        name="batching",
        method=(
            f"{serving.EMBEDDING}, float32, texts of {TEXT_TOKENS} tokens, one text a request, closed loop; "
            f"{num_rounds} interleaved rounds of {seconds:g} s, medians; all processes share {cores} cores"
        ),
        versions=versions("headrace", "onnxruntime", "numpy", "tokenizers"),
        rows=rows,
        ratios={
            "batched_vs_bare": ratio(many, speed[f"bare loop, {BATCH} rows"]),
            "batched_vs_one_client": ratio(many, speed["appliance over TLS, 1 client"]),
            "engine_memory_mib": memory,
        },
    ).finish(options.json)


if __name__ == "__main__":
    main()
