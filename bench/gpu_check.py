"""Do models run on the GPU of this machine, do they answer as on the CPU, and how fast: for a machine that has one.

The engine's way to a GPU is written where there is none, so this is the one script that says what it does: each check
prints a line, one that fails does not stop the others. Without a GPU or onnxruntime-gpu it says so and what it would
do, and leaves with 0; ``--rehearse`` does all of it on the CPU. Under ten minutes: after ``--minutes`` none is begun.

    .venv/bin/python -m bench.gpu_check --models .headrace/models
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from engine import model_folder
from engine.encoder import load_encoder
from engine.llm.calibrate import measure_cost
from engine.llm.decoder import Decoder, RowWork, load_decoder
from engine.model_folder import GRAPH, ModelFolder
from engine.providers import ORT_NAMES, Placement, ProviderName
from engine.session import device_of, installed_providers

CHAT, EMBEDDING = "smollm2-135m-instruct", "all-minilm-l6-v2"
CONTEXT, SLOTS = 1024, 16  # tokens; fewer where the model has fewer
MAX_KL, MIN_COSINE = 0.01, 0.999
Check = Callable[[ModelFolder, Placement], str]


def check_vectors(folder: ModelFolder, placement: Placement) -> str:
    """An embedding model gives the CPU's vectors."""
    num_tokens = min(32, folder.embedding.max_tokens)
    ids = np.random.default_rng(1).integers(1, 15, (16, num_tokens)).astype(np.int32)
    lengths = np.full(16, num_tokens, np.int32)
    expected = load_encoder(folder, threads=0).run(ids, lengths)
    encoder = load_encoder(folder, threads=0, placement=placement)
    cosine = float((encoder.run(ids, lengths) * expected).sum(axis=1).min())
    took_s = _median_s(lambda: encoder.run(ids, lengths))
    _demand(cosine >= MIN_COSINE, f"cosine {cosine:.5f}, wanted {MIN_COSINE}")
    return f"least cosine to the CPU {cosine:.5f}; {16 / took_s:.0f} texts of {num_tokens} tokens per second"


def check_logits(folder: ModelFolder, placement: Placement) -> str:
    """A chat model gives the CPU's distributions, in a prompt and in the steps after it."""
    tokens = _prompt(folder, 64)
    expected = _log_probabilities(_load(folder, Placement(), slots=2), tokens)
    decoder = _load(folder, placement, slots=2)
    found = _log_probabilities(decoder, tokens)
    decoder.close()
    kl = float((np.exp(expected) * (expected - found)).sum(axis=1).mean())
    agreed = float((expected.argmax(axis=1) == found.argmax(axis=1)).mean())
    _demand(kl <= MAX_KL, f"mean KL {kl:.4f}, wanted at most {MAX_KL}")
    return f"mean KL to the CPU {kl:.5f}, top-1 agreement {agreed:.1%}"


def check_nodes(folder: ModelFolder, placement: Placement) -> str:
    """Which operators a step leaves to other providers: each costs a way to the CPU and back."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as directory:
        options.profile_file_prefix = f"{directory}/step"
        providers = placement.provider_list(placement.provider, folder.path)
        session = onnxruntime.InferenceSession(str(folder.file(GRAPH)), options, providers=providers, enable_fallback=0)
        decoder = Decoder(session, folder.chat, slots=2, context=_context(folder), device=device_of(session))
        decoder.run([RowWork(0, [1], 0, 1)])
        profile = session.end_profiling()
        events = [event.get("args", {}) for event in json.loads(Path(profile).read_text())]
    decoder.close()
    elsewhere = Counter(
        f"{args['op_name']} on {args['provider']}"
        for args in events
        if "provider" in args and args["provider"] != ORT_NAMES[placement.provider]
    )
    _demand("GroupQueryAttention" not in str(elsewhere), f"attention is not run there: {dict(elsewhere)}")
    _demand(any("provider" in args for args in events), "the profile names no provider")
    return f"elsewhere: {', '.join(f'{count} {what}' for what, count in elsewhere.most_common()) or 'nothing'}"


def check_speed(folder: ModelFolder, placement: Placement) -> str:
    """Milliseconds of a decode step and tokens per second of a prompt."""
    decoder = _load(folder, placement, slots=SLOTS)
    measure_cost(decoder)
    chunk = _prompt(folder, min(256, decoder.max_chunk, decoder.context // 2))
    prefill_s = _median_s(lambda: decoder.run([RowWork(0, chunk, 0, 1)]))
    steps = []
    for num_rows in (1, 8, 16):
        rows = [RowWork(slot, [chunk[0]], len(chunk), 1) for slot in range(num_rows)]
        for row in rows:
            decoder.run([RowWork(row.slot, chunk, 0, 0)])
        steps.append(f"{num_rows} rows {_median_s(partial(decoder.run, rows)) * 1e3:.2f} ms")
    decoder.close()
    return f"decode {', '.join(steps)}; prompt of {len(chunk)}: {len(chunk) / prefill_s:.0f} tokens per second"


def check_cache(folder: ModelFolder, placement: Placement) -> str:
    """TensorRT builds its engines once: the second load takes them from the model's folder."""
    took_s = []
    for _ in range(2):
        begun_at = time.perf_counter()
        decoder = _load(folder, placement, slots=2)
        measure_cost(decoder)
        took_s.append(time.perf_counter() - begun_at)
        decoder.close()
    return f"loaded and warm after {took_s[0]:.1f} s, and again after {took_s[1]:.1f} s"


#: What is checked: its model, its function, and the only provider that it is for.
CHECKS: tuple[tuple[str, Check, ProviderName | None], ...] = (
    (EMBEDDING, check_vectors, None),
    (CHAT, check_nodes, None),
    (CHAT, check_logits, None),
    (CHAT, check_speed, None),
    (CHAT, check_cache, "tensorrt"),
)


def main(arguments: list[str]) -> int:
    """0: all that was checked is as it should be, or there is nothing to check on; 1: something is not."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_check", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", type=Path, default=Path(".headrace/models"), help="where the default models lie")
    parser.add_argument("--minutes", type=float, default=9.0, help="after them no check is begun")
    parser.add_argument("--rehearse", action="store_true", help="do all of it on the CPU")
    chosen = parser.parse_args(arguments)
    providers: list[ProviderName] = ["cpu"] if chosen.rehearse else list(_providers_here())
    if not providers:
        _say_plan()
        return 0
    until = time.monotonic() + 60 * chosen.minutes
    num_failed = 0
    for provider in providers:
        for name, check, only in CHECKS:
            if only in (None, provider):
                num_failed += not _try(provider, chosen.models / name, check, until)
    return int(num_failed > 0)


def _providers_here() -> Iterator[ProviderName]:
    """The GPU's providers that this onnxruntime has, if there is a GPU."""
    if os.path.exists("/dev/nvidiactl"):
        names: tuple[ProviderName, ...] = ("cuda", "tensorrt")
        yield from (name for name in names if ORT_NAMES[name] in installed_providers())


def _say_plan() -> None:
    print(f"skipped: no NVIDIA GPU here, or no onnxruntime-gpu (this one has {', '.join(installed_providers())})")
    print("with one, for each of cuda and tensorrt that is installed, it would check that:")
    for name, check, only in CHECKS:
        purpose = (check.__doc__ or "").split("\n")[0]
        print(f"  {name}: {purpose}" + f" ({only} alone)" * bool(only))


def _try(provider: ProviderName, path: Path, check: Check, until: float) -> bool:
    label = f"{provider:8} {check.__name__.removeprefix('check_'):8}"
    if time.monotonic() > until:
        print(f"{label} NOT BEGUN: the time is over", flush=True)
        return False
    begun_at = time.perf_counter()
    try:
        said, well = check(model_folder.read(path), Placement(provider)), True
    except Exception as error:
        said, well = f"FAILED: {type(error).__name__}: {error}", False
    print(f"{label} {said} ({time.perf_counter() - begun_at:.1f} s)", flush=True)
    return well


def _load(folder: ModelFolder, placement: Placement, *, slots: int) -> Decoder:
    return load_decoder(folder, slots=slots, context=_context(folder), threads=0, placement=placement)


def _context(folder: ModelFolder) -> int:
    return min(CONTEXT, folder.chat.context)


def _log_probabilities(decoder: Decoder, tokens: list[int]) -> NDArray[np.float64]:
    """[len(tokens), V]: after each token of a prompt, the second half of which comes one by one beside another row."""
    half = len(tokens) // 2
    rows = decoder.run([RowWork(0, tokens[:half], 0, half)])[0]
    found = [row.whole() - row.logsumexp for row in rows]
    for past in range(half, len(tokens)):
        work = [RowWork(0, tokens[past : past + 1], past, 1), RowWork(1, tokens[past : past + 1], past - half, 0)]
        (row,) = decoder.run(work)[0]
        found.append(row.whole() - row.logsumexp)
    return np.array(found, np.float64)


def _prompt(folder: ModelFolder, num_tokens: int) -> list[int]:
    """Tokens of no meaning, the same every time."""
    size = folder.chat.vocab_size
    tokens: list[int] = np.random.default_rng(2).integers(size // 4, size // 2, num_tokens).tolist()
    return tokens


def _median_s(work: Callable[[], object], *, num_runs: int = 20) -> float:
    took_s = []
    for _ in range(num_runs):
        begun_at = time.perf_counter()
        work()
        took_s.append(time.perf_counter() - begun_at)
    return float(np.median(took_s))


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
