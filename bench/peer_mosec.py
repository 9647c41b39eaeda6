"""A peer of bench/batching.py: mosec with its dynamic batching.

    python bench/peer_mosec.py PORT FOLDER THREADS WORKERS MAX_BATCH WAIT_MS

Its server is a program of Rust; each worker is a process with a session of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import mosec

from bench import peer_encoder

FOLDER, THREADS = "PEER_FOLDER", "PEER_THREADS"  # in the environment of the workers, which are started anew


class Embeddings(mosec.Worker):  # type: ignore[misc]
    """The endpoint's only stage; it reads and writes JSON, as mosec's workers do unless they are told."""

    def __init__(self) -> None:
        super().__init__()
        self._encoder = peer_encoder.Encoder(os.environ[FOLDER], int(os.environ[THREADS]))

    def forward(self, data: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        vectors = self._encoder.encode([request["input"] for request in data])
        return [peer_encoder.answer(request["model"], vector) for request, vector in zip(data, vectors, strict=True)]


if __name__ == "__main__":
    port, folder, threads, workers, max_batch, wait_ms = sys.argv[1:]
    os.environ.update({FOLDER: folder, THREADS: threads, "PYTHONPATH": sys.path[0]})
    os.environ.update({"MOSEC_PORT": port, "MOSEC_ADDRESS": "127.0.0.1", "MOSEC_LOG_LEVEL": "error"})
    server = mosec.Server()
    server.append_worker(
        Embeddings, num=int(workers), max_batch_size=int(max_batch), max_wait_time=int(wait_ms), route=peer_encoder.PATH
    )
    server.run()
