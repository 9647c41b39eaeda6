"""The bare loop: ONNX Runtime on a model folder, driven as fast as a plain loop can, without server or scheduler.

Owns the yardstick of bench/llm.py. It uses the engine's own decoder, so graph, weights, threads and session options are
the same on both sides and what differs is all that serving adds. A peer as bench/llm_peers.py has them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.report import versions
from engine import model_folder
from engine.llm.calibrate import measure_cost
from engine.llm.decoder import Decoder, RowWork, load_decoder

CONTEXT = 1024


class BareLoop:
    """A loaded decoder."""

    def __init__(self, folder: Path, *, slots: int, threads: int) -> None:
        read = model_folder.read(folder)
        self.versions = versions("onnxruntime")
        self._decoder = load_decoder(read, slots=slots, context=CONTEXT, threads=threads)
        measure_cost(self._decoder)

    def close(self) -> None:
        """Frees the session."""
        self._decoder.close()

    def decode(self, prompt: Sequence[int], num_streams: int, num_tokens: int) -> float:
        """Seconds for ``num_tokens`` of each of ``num_streams`` equal sequences, after their prompts are in."""
        decoder = self._decoder
        for slot in range(num_streams):
            for row in _pieces(decoder, prompt[:-1], slot=slot):
                decoder.run([row])
        tokens = [prompt[-1]] * num_streams
        begun_at = time.perf_counter()
        for past in range(len(prompt) - 1, len(prompt) - 1 + num_tokens):
            answers = decoder.run([RowWork(slot, [token], past, 1) for slot, token in enumerate(tokens)])
            tokens = [int(answer[0].ids[0]) for answer in answers]
        elapsed_s = time.perf_counter() - begun_at
        for slot in range(num_streams):
            decoder.release(slot)
        return elapsed_s

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to the logits after it."""
        begun_at = time.perf_counter()
        for row in _pieces(self._decoder, prompt, logits="last"):
            self._decoder.run([row])
        elapsed_s = time.perf_counter() - begun_at
        self._decoder.release(0)
        return elapsed_s

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The logits after each of ``tokens``: [len(tokens), V]."""
        rows = [
            logits.whole()
            for row in _pieces(self._decoder, tokens, logits="all")
            for logits in self._decoder.run([row])[0]
        ]
        self._decoder.release(0)
        return np.stack(rows)


def _pieces(decoder: Decoder, tokens: Sequence[int], *, slot: int = 0, logits: str = "none") -> Iterator[RowWork]:
    """The fewest rows that read ``tokens``. logits: wanted after "none", the "last" or "all" of them."""
    for start in range(0, len(tokens), decoder.max_chunk):
        piece = tokens[start : start + decoder.max_chunk]
        is_last = start + len(piece) == len(tokens)
        yield RowWork(slot, piece, start, {"none": 0, "last": int(is_last), "all": len(piece)}[logits])
