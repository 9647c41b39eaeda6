"""onnxruntime-genai on a folder of its own model builder: static batches, greedy. A peer of bench/llm.py.

python bench/peer_genai.py FOLDER THREADS       (bench/peer_process.py speaks to it)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
import onnxruntime_genai as og

from bench.peer_process import serve

CONTEXT = 1024


class Genai:
    """A loaded model; a generator for each measurement."""

    def __init__(self, folder: str, threads: str) -> None:
        self.versions = {name: metadata.version(name) for name in ("onnxruntime-genai", "onnxruntime")}
        config = og.Config(folder)
        config.overlay(f'{{"model": {{"decoder": {{"session_options": {{"intra_op_num_threads": {threads}}}}}}}}}')
        self._model = og.Model(config)

    def decode(self, prompt: Sequence[int], num_streams: int, num_tokens: int) -> float:
        """Seconds for ``num_tokens`` of each of ``num_streams`` equal sequences, after their prompts are in."""
        generator = self._generator(num_streams)
        generator.append_tokens(np.tile(np.array(prompt, np.int32), (num_streams, 1)))
        generator.generate_next_token()
        begun_at = time.perf_counter()
        for _ in range(num_tokens):
            if generator.is_done():
                raise SystemExit("a sequence of onnxruntime-genai ended early")
            generator.generate_next_token()
        return time.perf_counter() - begun_at

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to the token after it."""
        generator = self._generator(1)
        begun_at = time.perf_counter()
        generator.append_tokens(np.array([prompt], np.int32))
        generator.generate_next_token()
        return time.perf_counter() - begun_at

    def logits(self, tokens: Sequence[int], file: str) -> None:
        """Writes the logits after each of ``tokens``: float32 [len(tokens), V]."""
        generator = self._generator(1)
        generator.append_tokens(np.array([tokens], np.int32))
        np.save(file, generator.get_output("logits")[0].astype(np.float32))

    def _generator(self, num_streams: int) -> Any:
        parameters = og.GeneratorParams(self._model)
        parameters.set_search_options(
            do_sample=False, batch_size=num_streams, max_length=CONTEXT, min_length=CONTEXT, repetition_penalty=1.0
        )
        return og.Generator(self._model, parameters)


if __name__ == "__main__":
    serve(Genai)
