"""Speculation by prompt look-up against none: one greedy stream that quotes its prompt, one that chats.

    python bench/lookup.py [--quick] [--json FILE]

Owns the questions and the two lanes, in this process without server or proxy: only the steps differ.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import serving
from bench.report import Report, arguments, ratio, versions
from bench.rounds import Figures, column, interleave
from engine import model_folder
from engine.llm.chat import ChatModel
from engine.llm.recipe import Recipe
from engine.llm.sampling import Sampling
from engine.settings import ModelSettings

_PASSAGE = (
    "The mill stands where the valley narrows. Its wheel is older than the house, the channel that feeds it is older "
    "than the wheel. In spring the miller opens the upper gate by a hand's breadth; in summer he closes it at noon. "
    "Nobody has written down why, but whoever has seen the lower meadow under water does not ask."
)
QUOTING = (
    f"Repeat the following text word for word.\n\n{_PASSAGE}",
    f"Correct the spelling of this text and give back all of it.\n\n{_PASSAGE}",
)
CHATS = (
    "Explain how a bicycle stays upright.",
    "Write a short story about a fox who finds a mirror.",
    "What is the difference between TCP and UDP?",
)
_KV_BYTES = 1 << 30


def tokens_per_s(model: ChatModel, questions: Sequence[str], num_tokens: int) -> Figures:
    """Tokens per second of the answers, one after the other, after their prompts were read."""
    took_s = num_chosen = 0.0
    for question in questions:
        prompt = asyncio.run(model.prompts.of_messages([{"role": "user", "content": question}])).tokens
        job = model.sequence(prompt, Recipe(Sampling(temperature=0.0), max_tokens=num_tokens), 0, lambda event: None)
        model.lane.add(job)
        while not job.num_output_tokens:
            _step(model)
        begun_at, begun = time.perf_counter(), job.num_output_tokens
        while job.slot is not None:
            _step(model)
        took_s += time.perf_counter() - begun_at
        num_chosen += job.num_output_tokens - begun
    return {"tokens_per_s": num_chosen / took_s}


def main() -> None:
    options = arguments(__doc__)
    num_rounds, num_tokens = options.rounds or options.pick(7, 3, 1), options.pick(96, 64, 12)
    folder = model_folder.read(serving.model_folder(serving.CHAT))
    models = {}
    for speculation in (False, True):
        settings = ModelSettings(serving.CHAT, "", slots=1, speculation=speculation, prefix_ttl_s=0.0)
        models[speculation] = ChatModel.load(folder, settings, threads=serving.num_cores(), kv_bytes=_KV_BYTES)
    kinds = {"quoting": QUOTING, "chat": CHATS}
    measures = {
        f"{kind}, {'with' if speculation else 'without'}": partial(tokens_per_s, model, questions, num_tokens)
        for kind, questions in kinds.items()
        for speculation, model in models.items()
    }
    rows = interleave(measures, num_rounds, label="what")
    for model in models.values():
        model.close()
    speed = column(rows, "tokens_per_s", label="what")
    Report(
        name="lookup",
        method=(
            f"{serving.CHAT}, one greedy stream, {num_tokens} tokens of each answer after its prompt was read, in this "
            f"process; {num_rounds} interleaved rounds, medians"
        ),
        versions=versions("headrace", "onnxruntime", "numpy"),
        rows=rows,
        ratios={f"lookup_gain_{kind}": ratio(speed[f"{kind}, with"], speed[f"{kind}, without"]) for kind in kinds},
    ).finish(options.json)


def _step(model: ChatModel) -> None:
    planned = model.lane.plan(time.monotonic(), model.lane.max_stall_s)
    if planned is not None:
        planned.run()


if __name__ == "__main__":
    main()
