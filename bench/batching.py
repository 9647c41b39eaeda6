"""Embeddings: dynamic batching beside a bare ONNX Runtime loop and other servers, in one run.

    python bench/batching.py [--quick] [--json FILE]

Texts of 16 tokens, one a request. Each server is asked by one client and by 64, each sending its next text when it has
the last one's vector; then by MLPerf's LoadGen at random: a tenth of what the bare loop does, and as much as it answers
with a p99 of 100 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
import orjson

from bench import batching_peers, peers, serving
from bench.memory import memory_mib
from bench.posts import post, render
from bench.report import Report, Row, arguments, ratio, versions
from bench.rounds import Figures, interleave, repeated
from engine import model_folder
from engine.adapters.text import load_text_adapter
from engine.encoder import Encoder, load_encoder

WORDS = ["The", "water", "of", "the", "river", "turns", "the", "wheel", "of", "the", "old", "mill", "every", "day"]
TEXT_TOKENS = 16
BATCHES = (1, 4, 8, 16, 32, 64)
CLIENTS = 64
IDLE_LOAD = 0.1
P99_MS = 100.0
OUR_GRAPH = "mosec, Headrace's graph"

Serving = Callable[[], AbstractContextManager[int | str]]


class Plan(NamedTuple):
    """How long each part of a round takes. steps: of the search for a rate; 0: LoadGen is not there."""

    seconds: float
    steps: int
    idle_per_s: float


def texts() -> list[str]:
    """As many as there are words, all of the same tokens in another order."""
    return [" ".join(WORDS[first:] + WORDS[:first]) for first in range(len(WORDS))]


def requests() -> list[bytes]:
    """What is sent, to ours and to the peers."""
    bodies = ({"model": serving.EMBEDDING, "input": text, "encoding_format": "base64"} for text in texts())
    return [render("/v1/embeddings", orjson.dumps(body)) for body in bodies]


def bare(encoder: Encoder, num_rows: int, seconds: float) -> Figures:
    """{per_s, one_p50_ms (of a run)} of a loop that runs ``num_rows`` rows of 16 tokens at a time."""
    token_ids = np.full((num_rows, TEXT_TOKENS), 1000, np.int32)
    lengths = np.full(num_rows, TEXT_TOKENS, np.int32)
    return repeated(partial(encoder.run, token_ids, lengths), num_rows, seconds)


def highest_rate(p99_ms: Callable[[float], float], capacity_per_s: float, num_steps: int) -> float:
    """The highest rate per second, to ``capacity_per_s / 2**num_steps``, at which ``p99_ms(rate)`` is good enough."""
    good, bad = 0.0, capacity_per_s
    for _ in range(num_steps):
        middle = (good + bad) / 2
        if p99_ms(middle) <= P99_MS:
            good = middle
        else:
            bad = middle
    return good


def served(serve: Serving, plan: Plan) -> Figures:
    """One round with one server: {per_s, p99_ms, one_p50_ms} in a closed loop, {idle_p50_ms, rate_at_p99} at random."""
    with serve() as where:
        one = post(where, requests(), connections=1, seconds=plan.seconds)
        many = post(where, requests(), connections=CLIENTS, seconds=plan.seconds)
        found = {"per_s": many["requests_per_s"], "p99_ms": many["ms"]["p99"], "one_p50_ms": one["ms"]["p50"]}
        if isinstance(where, str) or not plan.steps:  # LoadGen's client knows ports alone
            return found
        with batching_peers.loadgen(where, requests()[0]) as asking:

            def offer(per_s: float) -> dict[str, float]:
                told: dict[str, float] = asking.ask("offer", per_s=per_s, seconds=plan.seconds)
                return told

            def p99_ms(per_s: float) -> float:
                told = offer(per_s)
                return float("inf") if told["num_failed"] else told["p99_ms"]

            found["idle_p50_ms"] = offer(plan.idle_per_s)["p50_ms"]
            found["rate_at_p99"] = highest_rate(p99_ms, found["per_s"], plan.steps)
        return found


@contextmanager
def engine_alone(folder: Path) -> Iterator[str]:
    with serving.engine_alone(folder) as (server, _):
        yield server.socket_path


@contextmanager
def appliance(options: str, memory: list[float]) -> Iterator[int]:
    """The whole of Headrace without TLS, as the peers are; ``memory`` takes what its engine had resident at most."""
    with serving.appliance(serving.EMBEDDING, options, tls=False) as (server, engine_pid):
        yield server.port
        memory.append(memory_mib(engine_pid))


def main() -> None:
    options = arguments(__doc__)
    num_rounds, seconds = options.rounds or options.pick(5, 1, 1), options.pick(6.0, 3.0, 0.3)
    folder, cores = serving.model_folder(serving.EMBEDDING), serving.num_cores()
    read = model_folder.read(folder)
    adapter = load_text_adapter(read)
    if {len(adapter.encode(text)) for text in texts()} != {TEXT_TOKENS}:
        raise SystemExit(f"the texts do not all have {TEXT_TOKENS} tokens")
    encoder = load_encoder(read, threads=cores)
    for num_rows in BATCHES:
        bare(encoder, num_rows, 0.1)
    capacity_per_s = max(bare(encoder, num_rows, seconds / 4)["per_s"] for num_rows in BATCHES)

    known, memory = batching_peers.peers(cores), list[float]()
    present = {name: peer for name, peer in known.items() if peer.exists}
    notes = [f"{name} is not there and left out: {batching_peers.MAKE}" for name in known if name not in present]
    if not batching_peers.loadgen_exists():
        notes.append(f"LoadGen is not there, so nothing is asked at random: {batching_peers.MAKE}")
    plan = Plan(seconds, options.pick(6, 4, 1) if batching_peers.loadgen_exists() else 0, IDLE_LOAD * capacity_per_s)
    exported = batching_peers.EXPORTED if batching_peers.EXPORTED.exists() else folder
    if exported == folder:
        notes.append(f"no exported graph is there: the peers serve the graph of Headrace; {batching_peers.MAKE}")
    servers: dict[str, Serving] = {
        "Headrace": partial(appliance, "", memory),
        "Headrace, policy: rate": partial(appliance, "batching: {policy: rate}", memory),
        "its engine alone": partial(engine_alone, folder),
        **{name: partial(batching_peers.running, peer, exported, requests()[0]) for name, peer in present.items()},
    }
    if exported != folder and "mosec" in present:
        servers[OUR_GRAPH] = partial(batching_peers.running, present["mosec"], folder, requests()[0])
    measures: dict[str, Callable[[], Figures]] = {name: partial(served, serve, plan) for name, serve in servers.items()}
    measures |= {f"bare loop, {num_rows} rows": partial(bare, encoder, num_rows, seconds / 2) for num_rows in BATCHES}
    rows = interleave(measures, num_rounds, label="who")

    Report(
        name="batching",
        method=(
            f"{serving.EMBEDDING}, float32, texts of {TEXT_TOKENS} tokens, one a request, HTTP without TLS; per_s and "
            f"p99_ms: {CLIENTS} clients in a closed loop; one_p50_ms: one client, or a run of the bare loop; "
            f"idle_p50_ms: Poisson at {plan.idle_per_s:.0f}/s, a tenth of the bare loop; rate_at_p99: the highest "
            f"Poisson rate with a p99 of {P99_MS:g} ms, {plan.steps} halvings of per_s; {num_rounds} rounds in turn, "
            f"{seconds:g} s for each figure, medians; clients, servers and models share {cores} cores; peers batch up "
            f"to {batching_peers.MAX_BATCH} texts and wait {batching_peers.WAIT_MS} ms, a worker of one thread per "
            "core; theirs is the graph that PyTorch exports, where nothing else is said"
        ),
        versions={
            **versions("headrace", "onnxruntime", "numpy", "tokenizers"),
            "request path": "compiled" if peers.is_compiled() else "interpreted",
            **{peer.environment: peer.version() for peer in present.values()},
        },
        rows=rows,
        ratios={**ratios(rows), "engine_memory_mib": max(memory)},
        notes=notes,
    ).finish(options.json)


def ratios(rows: list[Row]) -> dict[str, float | None]:
    """What acceptance is judged by, from the rows of a run; None where a peer or LoadGen was not there."""
    of = {str(row["who"]): row for row in rows}
    ours, single = of["Headrace"], of["bare loop, 1 rows"]
    loops = [row["per_s"] for name, row in of.items() if name.startswith("bare loop")]
    batching = [of[name] for name in ("mosec", "LitServe") if name in of]
    unbatched = of.get("FastAPI, unbatched", {})
    rates = [row["rate_at_p99"] for row in (*batching, unbatched) if "rate_at_p99" in row]
    by_rate = of["Headrace, policy: rate"]
    idle_p50_ms = ours.get("idle_p50_ms")
    return {
        "embed_vs_bare": ratio(ours["per_s"], max(loops)),
        "embed_vs_best_peer": ratio(ours["per_s"], max((row["per_s"] for row in batching), default=None)),
        "embed_vs_unbatched": ratio(ours["per_s"], unbatched.get("per_s")),
        "embed_rate_at_p99_100ms_vs_best_peer": ratio(ours.get("rate_at_p99"), max(rates, default=None)),
        "idle_p50_excess_ms": None if idle_p50_ms is None else idle_p50_ms - 1.10 * single["one_p50_ms"],
        "adaptive_vs_rate": ratio(ours["per_s"], by_rate["per_s"]),
        "adaptive_rate_at_p99_vs_rate": ratio(ours.get("rate_at_p99"), by_rate.get("rate_at_p99")),
        "batching_gain_of_bare": ratio(max(loops), single["per_s"]),
    }


if __name__ == "__main__":
    main()
