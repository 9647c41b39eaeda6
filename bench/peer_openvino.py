"""OpenVINO GenAI: one sequence by LLMPipeline, several by its continuous batching, greedy. A peer of bench/llm.py.

    python bench/peer_openvino.py FILE.gguf|FOLDER THREADS       (bench/peer_process.py speaks to it)

The pipelines show no logits, so those are of the model in the folder; for a GGUF file, of the one that the pipeline
itself makes of it and saves beside it.
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
import openvino
import openvino_genai

from bench.peer_process import serve

MODEL = "openvino_model.xml"


class OpenVino:
    """A loaded model; the pipeline for several sequences is made when it is first asked for."""

    def __init__(self, weights: str, threads: str) -> None:
        self.versions = {"openvino-genai": metadata.version("openvino-genai")}
        self._options = {"INFERENCE_NUM_THREADS": int(threads)}
        self._folder = Path(weights) if Path(weights).is_dir() else Path(weights).parent
        if not (self._folder / MODEL).exists():
            openvino_genai.LLMPipeline(weights, "CPU", enable_save_ov_model=True)
        self._one = openvino_genai.LLMPipeline(str(self._folder), "CPU", ATTENTION_BACKEND="SDPA", **self._options)
        self._several: Any = None

    def decode(self, prompt: Sequence[int], num_streams: int, num_tokens: int) -> float:
        """Seconds for ``num_tokens`` of each of ``num_streams`` equal sequences, after their prompts are in."""
        if num_streams == 1:
            return self._decode_one(prompt, num_tokens)
        if self._several is None:
            self._several = openvino_genai.ContinuousBatchingPipeline(
                str(self._folder), _scheduler(), "CPU", self._options
            )
        config = _config(num_tokens + 1)
        handles = [
            self._several.add_request(number, openvino.Tensor(np.array([prompt], np.int64)), config)
            for number in range(num_streams)
        ]
        num_held = [0] * num_streams

        def step() -> None:
            self._several.step()
            for number, handle in enumerate(handles):
                while handle.can_read():
                    num_held[number] += sum(len(output.generated_ids) for output in handle.read().values())

        while min(num_held) < 1:
            step()
        begun_at, num_before = time.perf_counter(), sum(num_held)
        while self._several.has_non_finished_requests():
            step()
        elapsed_s = time.perf_counter() - begun_at
        return elapsed_s * num_streams * num_tokens / (sum(num_held) - num_before)

    def _decode_one(self, prompt: Sequence[int], num_tokens: int) -> float:
        token_at: list[float] = []

        class Clock(openvino_genai.StreamerBase):  # type: ignore[misc]
            def write(self, _: Any) -> Any:
                token_at.append(time.perf_counter())
                return openvino_genai.StreamingStatus.RUNNING

            def end(self) -> None:
                pass

        self._generate(prompt, num_tokens + 1, Clock())
        return (token_at[-1] - token_at[0]) * num_tokens / (len(token_at) - 1)

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt to the token after it."""
        begun_at = time.perf_counter()
        self._generate(prompt, 1, None)
        return time.perf_counter() - begun_at

    def logits(self, tokens: Sequence[int], file: str) -> None:
        """Writes the logits after each of ``tokens``: float32 [len(tokens), V]."""
        request = openvino.Core().compile_model(str(self._folder / MODEL), "CPU", self._options).create_infer_request()
        length = len(tokens)
        inputs = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, length), np.int64),
            "position_ids": np.arange(length, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        np.save(file, request.infer(inputs)["logits"][0].astype(np.float32))

    def _generate(self, prompt: Sequence[int], num_tokens: int, streamer: Any) -> None:
        ids = np.array([prompt], np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        self._one.generate(inputs, _config(num_tokens), *([] if streamer is None else [streamer]))


def _config(num_tokens: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = num_tokens
    config.ignore_eos, config.do_sample = True, False
    return config


def _scheduler() -> Any:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.enable_prefix_caching = 2, False  # GiB
    return scheduler


if __name__ == "__main__":
    serve(OpenVino)
