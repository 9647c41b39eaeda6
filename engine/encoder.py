"""A text encoder as a call: padded token ids in, one vector per row out.

The only file of the embedding models that knows ONNX Runtime. Knows nothing of requests or batches; one thread drives
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine import session
from engine.model_folder import GRAPH, ModelError, ModelFolder
from engine.providers import Placement

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class Encoder:
    """A loaded embedding model."""

    def __init__(self, inference: InferenceSession, dimensions: int) -> None:
        self.dimensions = dimensions
        self._inference = inference

    def run(self, token_ids: NDArray[np.int32], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """float32[rows, dimensions] for int32[rows, tokens], padded on the right, and int32[rows]."""
        vectors: NDArray[np.float32] = self._inference.run(["embedding"], {"token_ids": token_ids, "lengths": lengths})[
            0
        ]
        return vectors

    def warm(self, max_batch: int, num_tokens: int) -> None:
        """Run a single row and a full batch, so that the first request pays for no allocation.

        Raises ModelError when the graph is not the one that the manifest speaks of.
        """
        try:
            for rows in (1, max_batch):
                vectors = self.run(np.zeros((rows, num_tokens), np.int32), np.full(rows, num_tokens, np.int32))
        except Exception as error:  # the module's exceptions share no class but Exception
            raise ModelError(f"the graph cannot run ({error}); import the model again") from error
        if vectors.shape != (max_batch, self.dimensions):
            raise ModelError(
                f"the graph gives vectors of shape {vectors.shape}, the manifest says {self.dimensions} dimensions;"
                " import the model again"
            )


def load_encoder(folder: ModelFolder, *, threads: int, placement: Placement = session.CPU_ALONE) -> Encoder:
    """Load an embedding model. threads: of one run; 0: one per usable core. Raises ModelError."""
    dimensions = folder.embedding.dimensions  # says at once when the folder is of another kind
    inference = session.open_session(folder.file(GRAPH), threads=threads, placement=placement)
    return Encoder(inference, dimensions)
