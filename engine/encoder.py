"""A text encoder as a call: padded token ids in, one vector per row out.

The only file of the embedding models that knows ONNX Runtime. Knows nothing of requests or batches; one thread drives
it, or several that run beside each other.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine import session
from engine.model_folder import GRAPH, ModelError, ModelFolder
from engine.providers import Placement

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class Encoder:
    """A loaded embedding model: a session that has all cores and, on a CPU of several, one for runs that share them.

    Two runs of one thread each gave MiniLM on two cores 11 to 24 % more texts than runs of two threads, which wait for
    each other at every operator; a single text alone takes two thirds of the time on two.
    """

    def __init__(
        self,
        inference: InferenceSession,
        dimensions: int,
        *,
        sharing: InferenceSession | None = None,
        width: int = 1,
    ) -> None:
        """sharing: the session for runs beside each other, ``width`` at most; None: there are none."""
        self.dimensions = dimensions
        self.width = width
        self._inference = inference
        self._sharing = sharing or inference

    def run(self, token_ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """float32[rows, dimensions] for int32[rows, tokens], padded on the right, and int32[rows]."""
        return _run(self._inference, token_ids, lengths)

    def run_beside(self, token_ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """The same with a share of the cores, on any thread."""
        return _run(self._sharing, token_ids, lengths)

    def warm(self, max_batch: int, num_tokens: int) -> None:
        """Run a single row and a full batch, so that the first request pays for no allocation.

        Raises ModelError when the graph is not the one that the manifest speaks of.
        """
        try:
            for rows in (1, max_batch):
                token_ids, lengths = np.zeros((rows, num_tokens), np.int32), np.full(rows, num_tokens, np.int32)
                for run in (self.run, self.run_beside)[: self.width]:
                    vectors = run(token_ids, lengths)
        except Exception as error:  # the module's exceptions share no class but Exception
            raise ModelError(f"the graph cannot run ({error}); import the model again") from error
        if vectors.shape != (max_batch, self.dimensions):
            raise ModelError(
                f"the graph gives vectors of shape {vectors.shape}, the manifest says {self.dimensions} dimensions;"
                " import the model again"
            )


def _run(inference: InferenceSession, token_ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
    vectors: NDArray[np.float32] = inference.run(["embedding"], {"token_ids": token_ids, "lengths": lengths})[0]
    return vectors


def load_encoder(folder: ModelFolder, *, threads: int, placement: Placement = session.CPU_ALONE) -> Encoder:
    """Load an embedding model. threads: of one run; 0: one per usable core. Raises ModelError."""
    dimensions = folder.embedding.dimensions  # says at once when the folder is of another kind
    graph, threads = folder.file(GRAPH), threads or len(os.sched_getaffinity(0))
    inference = session.open_session(graph, threads=threads, placement=placement)
    if (width := session.num_beside(inference, threads)) == 1:
        return Encoder(inference, dimensions)
    sharing = session.open_session(graph, threads=threads // width, placement=placement)
    return Encoder(inference, dimensions, sharing=sharing, width=width)
