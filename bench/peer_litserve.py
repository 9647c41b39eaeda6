"""A peer of bench/batching.py: LitServe with its dynamic batching.

    python bench/peer_litserve.py PORT FOLDER THREADS WORKERS MAX_BATCH WAIT_MS

Each worker is a process with a session of its own. ``fast_queue``: over ZeroMQ, which its documentation advises.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import litserve
import numpy as np
from numpy.typing import NDArray

from bench import peer_encoder


class Embeddings(litserve.LitAPI):  # type: ignore[misc]
    """The endpoint."""

    def __init__(self, folder: str, threads: int, **options: Any) -> None:
        super().__init__(api_path=peer_encoder.PATH, **options)
        self._folder, self._threads = folder, threads

    def setup(self, device: str) -> None:
        self._encoder = peer_encoder.Encoder(self._folder, self._threads)

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # annotated, it would be checked by that type
        return str(request["input"])

    def batch(self, inputs: Sequence[str]) -> Sequence[str]:
        return inputs

    def predict(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._encoder.encode(texts)

    def unbatch(self, output: NDArray[np.float32]) -> Sequence[NDArray[np.float32]]:
        return list(output)

    def encode_response(self, output: NDArray[np.float32]):  # type: ignore[no-untyped-def]  # as above
        return peer_encoder.answer("peer", output)


if __name__ == "__main__":
    port, folder, threads, workers, max_batch, wait_ms = sys.argv[1:]
    api = Embeddings(folder, int(threads), max_batch_size=int(max_batch), batch_timeout=int(wait_ms) / 1000)
    litserve.LitServer(api, accelerator="cpu", workers_per_device=int(workers), fast_queue=True).run(
        host="127.0.0.1", port=int(port), generate_client_file=False, log_level="error", access_log=False
    )
