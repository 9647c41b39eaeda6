"""llama.cpp by llama-cpp-python, on a GGUF file: its batch API for several sequences, greedy. A peer of bench/llm.py.

python bench/peer_llama_cpp.py FILE.gguf THREADS       (bench/peer_process.py speaks to it)
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

import llama_cpp
import numpy as np

from bench.peer_process import serve

CONTEXT = 1024
BATCH = 512


class LlamaCpp:
    """A loaded model, with one context for each number of sequences that is asked for."""

    def __init__(self, file: str, threads: str) -> None:
        llama_cpp.llama_backend_init()
        self.versions = {"llama-cpp-python": metadata.version("llama-cpp-python")}
        self._threads = int(threads)
        self._model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._contexts: dict[int, Any] = {}
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def decode(self, prompt: Sequence[int], num_streams: int, num_tokens: int) -> float:
        """Seconds for ``num_tokens`` of each of ``num_streams`` equal sequences, after their prompts are in."""
        context = self._emptied(num_streams)
        for sequence in range(num_streams):
            self._run(context, [(token, at, sequence, False) for at, token in enumerate(prompt[:-1])])
        tokens = [prompt[-1]] * num_streams
        begun_at = time.perf_counter()
        for past in range(len(prompt) - 1, len(prompt) - 1 + num_tokens):
            self._run(context, [(token, past, sequence, True) for sequence, token in enumerate(tokens)])
            tokens = [int(self._logits(context, row).argmax()) for row in range(num_streams)]
        return time.perf_counter() - begun_at

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to the logits after it."""
        context = self._emptied(1)
        begun_at = time.perf_counter()
        self._run(context, [(token, at, 0, at == len(prompt) - 1) for at, token in enumerate(prompt)])
        self._logits(context, len(prompt) - 1)
        return time.perf_counter() - begun_at

    def logits(self, tokens: Sequence[int], file: str) -> None:
        """Writes the logits after each of ``tokens``: float32 [len(tokens), V]."""
        context, rows = self._emptied(1), []
        for start in range(0, len(tokens), BATCH):
            piece = list(enumerate(tokens))[start : start + BATCH]
            self._run(context, [(token, at, 0, True) for at, token in piece])
            rows += [self._logits(context, row).copy() for row in range(len(piece))]
        np.save(file, np.stack(rows))

    def _emptied(self, num_streams: int) -> Any:
        if num_streams not in self._contexts:
            parameters = llama_cpp.llama_context_default_params()
            parameters.n_ctx, parameters.n_seq_max = CONTEXT * num_streams, num_streams
            parameters.n_batch = parameters.n_ubatch = BATCH
            parameters.n_threads = parameters.n_threads_batch = self._threads
            self._contexts[num_streams] = llama_cpp.llama_init_from_model(self._model, parameters)
        context = self._contexts[num_streams]
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        return context

    def _run(self, context: Any, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, logits
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if llama_cpp.llama_decode(context, batch):
            raise SystemExit("llama.cpp refused a batch")

    def _logits(self, context: Any, row: int) -> Any:
        address = llama_cpp.llama_get_logits_ith(context, row)
        return np.ctypeslib.as_array(address, shape=(self._vocab_size,))


if __name__ == "__main__":
    serve(LlamaCpp)
