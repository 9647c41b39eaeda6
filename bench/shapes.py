"""A hundred thousand requests of shapes that never come twice in a row: does the engine's memory stay flat?

    python bench/shapes.py [--quick] [--requests N] [--allocator FILE] [--json FILE]

Most are tensors of 1 to 8 rows and 1 to 16,384 columns for a graph that keeps several of that size, so that the runtime
sees new sizes all the time; one in twenty is texts of 3 to 120 tokens for the embedding model. Once with the system's
allocator, and once with jemalloc where it is installed or FILE is one.
"""

from __future__ import annotations

import asyncio
import ctypes.util
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import aiohttp
import numpy as np
import onnx
import orjson
import uvloop
from onnx import TensorProto, helper

from bench import serving
from bench.memory import fit, memory_mib, resident_kib
from bench.processes import unix_server
from bench.report import Report, Row, arguments, versions
from engine.catalog import import_model

CLIENTS = 8
MAX_ROWS, MAX_COLUMNS, MAX_TOKENS = 8, 1 << 14, 120
TEXT_EVERY = 20
WARMUP_SHARE = 0.2  # of the requests
NUM_SAMPLES = 200


class Figures(NamedTuple):
    """samples: thousands of requests and KiB. failures: what was answered instead."""

    samples: list[tuple[float, float]]
    failures: list[str]
    peak_mib: float


def write_graph(path: Path) -> None:
    """softmax(exp(-(2x + 1)^2)), row by row: five tensors of the input's size."""
    rows, two, one = ["n", "m"], helper.make_tensor("two", 1, [], [2.0]), helper.make_tensor("one", 1, [], [1.0])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, rows) for name in "xy")
    steps = [("Mul", "x two", "a"), ("Add", "a one", "b"), ("Mul", "b b", "c"), ("Neg", "c", "d"), ("Exp", "d", "e")]
    nodes = [helper.make_node(kind, inputs.split(), [output]) for kind, inputs, output in steps]
    nodes.append(helper.make_node("Softmax", ["e"], ["y"], axis=-1))
    graph = helper.make_graph(nodes, "shapes", [x], [y], [two, one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@contextmanager
def engine(allocator: str | None) -> Iterator[tuple[str, int]]:
    """An engine with both models. Yields its socket and its process."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as name:
        directory = Path(name)
        write_graph(directory / "shapes.onnx")
        folder = import_model(directory / "shapes.onnx", directory, lambda file, done, total: None)
        path = str(directory / "engine.sock")
        models = [f"shapes={folder.path}", f"texts={serving.model_folder(serving.EMBEDDING)}"]
        preload = ["env", f"LD_PRELOAD={allocator}"] if allocator else []
        flags = [word for model in models for word in ("--model", model)]
        with unix_server([*preload, sys.executable, "-P", "-m", "engine", "--socket", path, *flags], path=path) as it:
            yield path, it.pid


def tensor(generator: random.Random, numbers: bytes) -> tuple[str, bytes, dict[str, str]]:
    """Path, body and headers of an inference request in binary form."""
    rows, columns = generator.randint(1, MAX_ROWS), int(MAX_COLUMNS ** generator.random())
    size = 4 * rows * columns
    table = {"name": "x", "shape": [rows, columns], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    head = orjson.dumps({"inputs": [table], "parameters": {"binary_data_output": True}})
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    return "/v2/models/shapes/infer", head + numbers[:size], headers


def texts(generator: random.Random) -> tuple[str, bytes, dict[str, str]]:
    rows = [
        [generator.randint(2000, 20000) for _ in range(generator.randint(3, MAX_TOKENS))]
        for _ in range(generator.randint(1, 4))
    ]
    body = orjson.dumps({"model": "texts", "input": rows})
    return "/v1/embeddings", body, {"Content-Type": "application/json"}


async def load(socket_path: str, pid: int, num_requests: int) -> Figures:
    """Keeps the clients asking until so many were answered."""
    numbers = np.random.default_rng(0).random(MAX_ROWS * MAX_COLUMNS, np.float32).tobytes()
    samples: list[tuple[float, float]] = []
    failures: list[str] = []
    begun = 0

    async def ask(session: aiohttp.ClientSession, generator: random.Random) -> None:
        nonlocal begun
        while begun < num_requests:
            begun += 1
            if begun % max(1, num_requests // NUM_SAMPLES) == 0:
                samples.append((begun / 1000, resident_kib(pid)))
            path, body, headers = texts(generator) if begun % TEXT_EVERY == 0 else tensor(generator, numbers)
            async with session.post(f"http://engine{path}", data=body, headers=headers) as answer:
                content = await answer.read()
                if answer.status != 200:
                    failures.append(f"{answer.status}: {content[:200].decode(errors='replace')}")

    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(socket_path)) as session:
        await asyncio.gather(*[ask(session, random.Random(number)) for number in range(CLIENTS)])
    return Figures(samples, failures, memory_mib(pid))


def main() -> None:
    options = arguments(
        __doc__,
        lambda parser: (
            parser.add_argument("--requests", type=int, metavar="N", help="instead of 100,000"),
            parser.add_argument("--allocator", metavar="FILE", help="a library to be preloaded, instead of jemalloc"),
        ),
    )
    num_requests = options.requests or options.pick(100_000, 10_000, 400)
    jemalloc = options.allocator or ctypes.util.find_library("jemalloc")
    rows: list[Row] = []
    ratios: dict[str, float | None] = {}
    notes = [] if jemalloc else ["jemalloc is not installed"]
    for name, library in [("glibc", None), *([("jemalloc", jemalloc)] if jemalloc else [])]:
        with engine(library) as (socket_path, pid):
            figures = uvloop.run(load(socket_path, pid, num_requests))
        warm = figures.samples[int(len(figures.samples) * WARMUP_SHARE) :]
        line, last = fit(warm), fit(warm[len(warm) // 2 :])
        rows.append(
            {
                "allocator": name,
                "first_mib": warm[0][1] / 1024,
                "last_mib": warm[-1][1] / 1024,
                "peak_mib": figures.peak_mib,
                "kib_per_1000": line.slope,
                "error": line.error,
                "last_half_kib_per_1000": last.slope,
                "failures": len(figures.failures),
            }
        )
        ratios[f"shapes_{name}_kib_per_1000_requests"] = line.slope
        ratios[f"shapes_{name}_last_half_kib_per_1000_requests"] = last.slope
        ratios[f"shapes_{name}_failures"] = float(len(figures.failures))
        notes += figures.failures[:3]
    Report(
        name="shapes",
        method=(
            f"{num_requests} requests by {CLIENTS} clients, engine alone; resident memory without the first "
            f"{WARMUP_SHARE:.0%} of the requests; slope by least squares, with its standard error; last half: of those "
            "alone"
        ),
        versions=versions("headrace", "onnxruntime"),
        rows=rows,
        ratios=ratios,
        notes=notes,
    ).finish(options.json)


if __name__ == "__main__":
    main()
