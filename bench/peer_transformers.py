"""transformers on torch, float32, greedy: a peer that loads the same weights, and the reference of fidelity.

    python bench/peer_transformers.py FOLDER THREADS       (bench/peer_process.py speaks to it)

FOLDER is what bench/peer_weights.py wrote, or a folder with one GGUF file, which transformers then makes numbers of.
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
import torch
from transformers import AutoModelForCausalLM

from bench.peer_process import serve


class Transformers:
    """A loaded model."""

    def __init__(self, folder: str, threads: str) -> None:
        self.versions = {name: metadata.version(name) for name in ("torch", "transformers")}
        torch.set_num_threads(int(threads))
        torch.set_grad_enabled(False)
        gguf = next((file.name for file in Path(folder).glob("*.gguf")), None)
        self._model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32).eval()

    def decode(self, prompt: Sequence[int], num_streams: int, num_tokens: int) -> float:
        """Seconds for ``num_tokens`` of each of ``num_streams`` equal sequences, after their prompts are in."""
        cache = None
        if len(prompt) > 1:
            cache = self._run(torch.tensor([prompt[:-1]] * num_streams), None).past_key_values
        tokens = torch.tensor([prompt[-1:]] * num_streams)
        begun_at = time.perf_counter()
        for _ in range(num_tokens):
            answer = self._run(tokens, cache)
            cache, tokens = answer.past_key_values, answer.logits[:, -1:].argmax(-1)
        return time.perf_counter() - begun_at

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to the logits after it."""
        begun_at = time.perf_counter()
        self._run(torch.tensor([prompt]), None)
        return time.perf_counter() - begun_at

    def logits(self, tokens: Sequence[int], file: str) -> None:
        """Writes the logits after each of ``tokens``: float32 [len(tokens), V]."""
        np.save(file, self._model(torch.tensor([tokens])).logits[0].numpy())

    def _run(self, tokens: Any, cache: Any) -> Any:
        return self._model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)


if __name__ == "__main__":
    serve(Transformers)
