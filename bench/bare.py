"""The bare loop: ONNX Runtime on a model folder, driven as fast as a plain loop can, without server or scheduler.

Owns the yardstick of bench/llm.py. It uses the engine's own decoder, so graph, weights, threads and session options are
the same on both sides and what differs is all that serving adds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from bench.rounds import Figures
from engine import model_folder
from engine.llm.decoder import Decoder, RowWork, load_decoder

CHUNK = 64


class BareLoop:
    """A loaded decoder and one prompt."""

    def __init__(self, folder: Path, *, slots: int, threads: int) -> None:
        read = model_folder.read(folder)
        self._decoder = load_decoder(read, slots=slots, context=1024, threads=threads)
        self._decoder.warm()

    def close(self) -> None:
        """Frees the session."""
        self._decoder.close()

    def measure(self, prompt: Sequence[int], num_streams: int, num_tokens: int) -> Figures:
        """{tokens_per_s}, greedy, of ``num_streams`` equal sequences together, after their prompts are in."""
        decoder = self._decoder
        for slot in range(num_streams):
            _prefill(decoder, slot, prompt)
        tokens = [prompt[-1]] * num_streams
        begun_at = time.perf_counter()
        for step in range(num_tokens):
            past = len(prompt) - 1 + step
            rows = decoder.run([RowWork(slot, [token], past, 1) for slot, token in enumerate(tokens)])
            tokens = [int(row.ids[0]) for (row,) in rows]
        elapsed_s = time.perf_counter() - begun_at
        for slot in range(num_streams):
            decoder.release(slot)
        return {"tokens_per_s": num_streams * num_tokens / elapsed_s}


def _prefill(decoder: Decoder, slot: int, prompt: Sequence[int]) -> None:
    """All of the prompt but its last token, which is the first decode step's."""
    for start in range(0, len(prompt) - 1, CHUNK):
        chunk = prompt[start : min(start + CHUNK, len(prompt) - 1)]
        decoder.run([RowWork(slot, chunk, start, 0)])
