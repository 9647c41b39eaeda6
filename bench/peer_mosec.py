"""A peer of bench/batching.py and bench/classify.py: mosec with its dynamic batching.

    python bench/peer_mosec.py PORT FOLDER THREADS WORKERS MAX_BATCH WAIT_MS

Its server is a program of Rust; each worker is a process with a session of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import mosec

from bench.peer_models import Answer, Model, model_of

FOLDER, THREADS = "PEER_FOLDER", "PEER_THREADS"  # in the environment of the workers, which are started anew


class Served(mosec.Worker):  # type: ignore[misc]
    """The endpoint's only stage; it reads and writes JSON, as mosec's workers do unless they are told."""

    def __init__(self) -> None:
        super().__init__()
        self._model: Model = model_of(os.environ[FOLDER])(os.environ[FOLDER], int(os.environ[THREADS]))

    def forward(self, data: Sequence[Any]) -> Sequence[Answer]:
        return self._model.answers(data)


class ServedFiles(Served):
    """The same where a body is a file as it is."""

    def deserialize(self, data: bytes) -> bytes:
        return data


if __name__ == "__main__":
    port, folder, threads, workers, max_batch, wait_ms = sys.argv[1:]
    os.environ.update({FOLDER: folder, THREADS: threads, "PYTHONPATH": sys.path[0]})
    os.environ.update({"MOSEC_PORT": port, "MOSEC_ADDRESS": "127.0.0.1", "MOSEC_LOG_LEVEL": "error"})
    kind = model_of(folder)
    server = mosec.Server()
    server.append_worker(
        ServedFiles if kind.BODY is bytes else Served,
        num=int(workers),
        max_batch_size=int(max_batch),
        max_wait_time=int(wait_ms),
        route=kind.PATH,
    )
    server.run()
