"""The language model beside its peers: fidelity, tokens per second of 1 to 32 streams, and prefill, in one run.

    python bench/llm.py [--quick] [--json FILE]

Greedy decoding of the default model by a bare ONNX Runtime loop, the engine alone, the whole appliance over TLS, and
the peers that ``bench/llm_peers.sh`` has made; each peer's own logits are compared with float32. Then the time to the
first token of a 64-token prompt while seven other streams decode.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import uvloop

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import first_token, prompts, serving
from bench.bare import BareLoop
from bench.fidelity import Fidelity, compare
from bench.llm_peers import KINDS, REFERENCE, Peer, loaded
from bench.memory import memory_mib
from bench.report import Report, Row, arguments, ratio, versions
from bench.rounds import tabulate
from bench.sse_client import Server, Stream, complete, device_figures

PROMPT_TOKENS = 64
PREFILL_TOKENS = 256
TEXT_TOKENS = 600
STREAMS = (1, 8, 16, 32)
NAMES = {"1": "one_stream", "8": "eight_streams", "prefill": "prefill"}
BARE, ENGINE, APPLIANCE = "bare loop", "engine alone", "appliance over TLS"
KL_TOLERANCE = 0.01  # a peer whose answers are further from float32 than ours by more is no peer


class Served:
    """A server, asked as a peer is, over HTTP."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._generator = random.Random(0)

    def decode(self, prompt: Sequence[int], num_streams: int, num_tokens: int) -> float:
        """Seconds for ``num_tokens`` of each stream at the pace from when the last has begun until the first ends."""
        return uvloop.run(self._decode(prompt, num_streams, num_tokens))

    async def _decode(self, prompt: Sequence[int], num_streams: int, num_tokens: int) -> float:
        more = 2 * num_streams  # the first already decode while the last are still read
        body = prompts.body(serving.CHAT, prompt, num_tokens + more)
        streams = await asyncio.gather(*(complete(self.server, body) for _ in range(num_streams)))
        return num_streams * num_tokens / _together(streams)

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from asking an idle server to the first token, for as many tokens as ``prompt`` has, all of them new
        to the server."""
        body = prompts.body(serving.CHAT, prompts.fresh(self._generator, len(prompt)), 1)
        return uvloop.run(complete(self.server, body)).first_token_s


def _together(streams: list[Stream]) -> float:
    """Tokens per second of all streams, while all of them decode."""
    begin = max(stream.token_at[0] for stream in streams)
    end = min(stream.token_at[-1] for stream in streams)
    if end <= begin:
        raise SystemExit("the first stream ended before the last began: the figures would not compare")
    tokens = sum(sum(begin < at <= end for at in stream.token_at) * stream.tokens_per_event for stream in streams)
    return tokens / (end - begin)


def rates(peer: Peer | Served, text: Sequence[int], num_tokens: Mapping[int, int]) -> dict[str, Callable[[], float]]:
    """What to measure of a peer: tokens per second, by the table's column. What it makes when it is first asked is made
    before."""
    prompt, long = text[:PROMPT_TOKENS], text[:PREFILL_TOKENS]

    def decode(num_streams: int) -> float:
        return num_streams * num_tokens[num_streams] / peer.decode(prompt, num_streams, num_tokens[num_streams])

    def prefill() -> float:
        return len(long) / peer.prefill(long)

    for n in num_tokens:
        peer.decode(prompt, n, 2)
    prefill()
    return {**{str(n): partial(decode, n) for n in num_tokens}, "prefill": prefill}


def best_peer(rows: Sequence[Row], figure: str, ours: Fidelity | None) -> float | None:
    """The fastest of the peers that are as faithful as ours; None where that is not known."""
    if ours is None:
        return None
    speeds = [row[figure] for row in rows if row["who"] in KINDS and row["kl"] <= ours.kl + KL_TOLERANCE]
    return max(speeds, default=None)


def measure_fidelity(
    peers: Mapping[str, Peer], text: Sequence[int], threads: int
) -> tuple[dict[str, Fidelity], list[str]]:
    """Each peer's, and notes; empty where there is no reference."""
    with loaded({"transformers in float32": REFERENCE}, threads=threads) as (references, notes):
        for reference in references.values():
            true = reference.logits(text)
            return {name: compare(true, peer.logits(text)) for name, peer in peers.items()}, notes
    return {}, notes


def main() -> None:
    options = arguments(
        __doc__, lambda parser: parser.add_argument("--streams", metavar="N,N", help="instead of 1,8,16,32")
    )
    streams = tuple(map(int, options.streams.split(","))) if options.streams else (1, 8) if options.smoke else STREAMS
    num_rounds = options.rounds or options.pick(5, 2, 1)
    num_tokens = {n: max(16, options.pick(96, 48, 16) // (1 + n // 8)) for n in streams}
    num_first = options.pick(100, 20, 2)
    folder, cores = serving.model_folder(serving.CHAT), serving.num_cores()
    text = prompts.reading(folder, TEXT_TOKENS)
    slots = max(streams)
    bare = BareLoop(folder, slots=slots, threads=cores)
    with (
        loaded(KINDS, threads=cores) as (peers, notes),
        serving.engine_alone(folder, "--slots", str(slots)) as (engine, _),
        serving.appliance(serving.CHAT, f"slots: {slots}") as (edge, engine_pid),
    ):
        fidelity, more = measure_fidelity({BARE: bare, **peers}, text, cores)
        before = uvloop.run(device_figures(engine))
        rows = tabulate(
            {
                BARE: rates(bare, text, num_tokens),
                ENGINE: rates(Served(engine), text, num_tokens),
                APPLIANCE: rates(Served(edge), text, num_tokens),
                **{name: rates(peer, text, num_tokens) for name, peer in peers.items()},
            },
            num_rounds,
            label="who",
        )
        _, run_s, host_s = (now - then for now, then in zip(uvloop.run(device_figures(engine)), before, strict=True))
        first_ms = uvloop.run(
            first_token.busy_ms(edge, serving.CHAT, prompt_tokens=PROMPT_TOKENS, num_others=7, num_samples=num_first)
        )
        memory = memory_mib(engine_pid)
        of_peers = {name: version for peer in peers.values() for name, version in peer.versions.items()}
    bare.close()

    ours = fidelity.get(BARE)
    for row in rows:
        known = ours if row["who"] in (ENGINE, APPLIANCE) else fidelity.get(row["who"])
        row.update({"kl": known and known.kl, "top1": known and known.top1})
    by_name = {row["who"]: row for row in rows}
    edge_row, engine_row, bare_row = (by_name[name] for name in (APPLIANCE, ENGINE, BARE))
    llama = by_name.get("llama.cpp", {})
    figures = {name: NAMES.get(name, f"{name}_streams") for name in (*map(str, streams), "prefill")}
    best = partial(best_peer, rows, ours=ours)
    Report(
        name="llm",
        method=(
            f"{serving.CHAT}, greedy, tokens per second of n streams together after prompts of {PROMPT_TOKENS} tokens "
            f"({', '.join(f'{tokens} each of {n}' for n, tokens in num_tokens.items())}), and of a prompt of "
            f"{PREFILL_TOKENS}; {num_rounds} interleaved rounds, medians; all processes and the client share {cores} "
            f"cores; kl, top1: {TEXT_TOKENS} tokens of text against transformers in float32; best peer: the fastest "
            f"whose kl is not worse by more than {KL_TOLERANCE}; first token: {num_first} prompts of {PROMPT_TOKENS} "
            "tokens, one after another, while 7 others decode"
        ),
        versions={**versions("headrace", "onnxruntime", "numpy"), **of_peers},
        rows=rows,
        ratios={
            "kl_mean": ours and ours.kl,
            "top1": ours and ours.top1,
            "host_gap_share": host_s / (run_s + host_s),
            **{f"{name}_vs_best_peer": ratio(engine_row[figure], best(figure)) for figure, name in figures.items()},
            **{
                f"{name}_vs_llama_cpp": ratio(engine_row[figure], llama.get(figure)) for figure, name in figures.items()
            },
            **{f"{name}_vs_bare": ratio(edge_row[figure], bare_row[figure]) for figure, name in figures.items()},
            "ttft_p50_ms_busy": first_token.percentile(first_ms, 0.50),
            "ttft_p99_ms_busy": first_token.percentile(first_ms, 0.99),
            "engine_memory_mib": memory,
        },
        notes=[*notes, *more],
    ).finish(options.json)


if __name__ == "__main__":
    main()
