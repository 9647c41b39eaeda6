"""An embedding model as a request sees it: texts in, vectors out, awaited on the event loop.

Owns a request's way through the model: the tokens it adds to the backlog, the encoding of its texts (off the loop when
they are long), its job on the device, and that whatever ends it gives everything back. Knows no HTTP and no runtime.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from engine.adapters.text import Text, TextAdapter, load_text_adapter
from engine.admission import Admission
from engine.batching.backlog import Backlog
from engine.batching.item import Item
from engine.batching.lane import BatchLane
from engine.batching.request import Runner, run_on
from engine.batching.settings import BatchingSettings
from engine.batching.waiting import NORMAL
from engine.embedding_run import EmbeddingRun
from engine.encoder import load_encoder
from engine.errors import Kind, RequestError
from engine.model import ModelKind
from engine.model_folder import ModelFolder
from engine.pool import Pool
from engine.settings import ModelSettings

_BATCHING = BatchingSettings(cost="tokens")  # unless the operator says something else
_INLINE_CHARACTERS = 4096  # about 2 ms of the event loop
_WARM_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The answer to one request."""

    vectors: NDArray[np.float32]  # [texts, dimensions], in the order of the texts
    num_tokens: int  # real ones, special tokens included, padding not


def load_embedder(folder: ModelFolder, settings: ModelSettings, *, threads: int) -> Embedder:
    """Load a model and run it once. threads: of one run; 0: one per usable core. Blocking; raises ModelError."""
    adapter = load_text_adapter(folder)
    encoder = load_encoder(folder, threads=threads, placement=settings.placement)
    created = int(datetime.fromisoformat(folder.manifest.created).timestamp())
    shorter = folder.embedding.matryoshka_dimensions
    embedder = Embedder(settings, EmbeddingRun(adapter, encoder), created=created, shorter_dimensions=shorter)
    encoder.warm(embedder.lane.max_batch, _WARM_TOKENS)
    return embedder


class Embedder:
    """One embedding model, ready to serve (engine.model.Model)."""

    kind: ClassVar[ModelKind] = "embedding"

    def __init__(
        self,
        settings: ModelSettings,
        runnable: EmbeddingRun,
        *,
        created: int = 0,
        shorter_dimensions: Sequence[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """created: seconds since the epoch. shorter_dimensions: to which its vectors may be cut. Of the settings
        max_queue bounds the requests that may wait beside a running batch, and their tokens counted as if each were
        one text of full length."""
        self.name = settings.name
        self.created = created
        self.adapter = runnable.adapter
        self.dimensions = runnable.encoder.dimensions
        self.shorter_dimensions = frozenset(shorter_dimensions)
        self.lane = BatchLane(self.name, runnable, settings.batching.over(_BATCHING), clock=clock)
        self.backlog = Backlog(self.lane.pace, max_tokens=settings.max_queue * self.adapter.max_tokens)
        self.admission = Admission(running=self.lane.max_batch, queue=settings.max_queue, work_s=self.backlog.work_s)
        self.num_texts = 0
        self.num_tokens = 0
        self._clock = clock

    async def embed(
        self,
        runner: Runner,
        pool: Pool,
        texts: Sequence[Text],
        *,
        level: int = NORMAL,
        deadline_at: float | None = None,
    ) -> Embeddings:
        """The vectors of one or more texts, or of arrays of the model's own token ids. pool: where long texts are
        turned into tokens.

        level: 0 high, 1 normal, 2 low. deadline_at: by the clock, in seconds.
        Raises RequestError: 400 or 422 for a text, 503 with retry_after_s when too much waits, 500 when the model
        fails on a text. Cancelling the call takes the job out of the queue.
        """
        if (retry_after_s := self.backlog.full_for_s()) is not None:
            raise RequestError(
                Kind.OVERLOADED,
                f"the model {self.name!r} has {self.backlog.num_tokens} tokens waiting (at most"
                f" {self.backlog.max_tokens}); try again in {math.ceil(retry_after_s)} s",
                retry_after_s=retry_after_s,
            )
        rows = await _encode(pool, self.adapter, texts)
        num_tokens = sum(map(len, rows))
        self.backlog.enter(num_tokens)
        try:
            items = [Item(row, size=len(row)) for row in rows]
            vectors = await run_on(
                runner, self.lane, items, level=level, deadline_at=deadline_at, noun="input", clock=self._clock
            )
        finally:
            self.backlog.leave(num_tokens)
        self.num_texts += len(rows)
        self.num_tokens += num_tokens
        return Embeddings(np.stack(vectors) if len(vectors) > 1 else vectors[0][np.newaxis], num_tokens)

    def allot(self, num_bytes: int) -> None:
        """It keeps no keys and values."""

    def statistics(self) -> dict[str, float]:
        """Texts and tokens embedded, tokens per second while the device is at it, and the lane's numbers."""
        return {
            "embedded_texts_total": self.num_texts,
            "embedded_tokens_total": self.num_tokens,
            "embedding_tokens_inside": self.backlog.num_tokens,
            "embedding_tokens_per_second": 1 / self.lane.pace.seconds_per_unit,
            **self.lane.statistics(),
        }

    def close(self) -> None:
        """End the lane's thread; the session goes with its last reference."""
        self.lane.close()


async def _encode(pool: Pool, adapter: TextAdapter, texts: Sequence[Text]) -> list[list[int]]:
    """The ids of each text; a refusal names the text by its place in the request."""
    wanted = True

    def encode_all() -> list[list[int]]:
        rows = []
        for index, text in enumerate(texts):
            if not wanted:
                break
            rows.append(adapter.encode(text, f"input[{index}]"))
        return rows

    if sum(map(len, texts)) <= _INLINE_CHARACTERS:
        return encode_all()
    try:
        return await pool.run(encode_all)
    finally:
        wanted = False
