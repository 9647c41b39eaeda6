"""A peer of bench/batching.py and bench/classify.py: LitServe with its dynamic batching.

    python bench/peer_litserve.py PORT FOLDER THREADS WORKERS MAX_BATCH WAIT_MS

Each worker is a process with a session of its own. ``fast_queue``: over ZeroMQ, which its documentation advises.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import litserve
from fastapi import Body

from bench.peer_models import Answer, Model, model_of


class Served(litserve.LitAPI):  # type: ignore[misc]
    """The endpoint of a folder's model."""

    def __init__(self, folder: str, threads: int, **options: Any) -> None:
        super().__init__(api_path=model_of(folder).PATH, **options)
        self._folder, self._threads = folder, threads

    def setup(self, device: str) -> None:
        self._model: Model = model_of(self._folder)(self._folder, self._threads)

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # without a type it is JSON, not checked
        return request

    def batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return inputs

    def predict(self, bodies: Sequence[Any]) -> Sequence[Answer]:
        return self._model.answers(bodies)

    def unbatch(self, output: Sequence[Answer]) -> Sequence[Answer]:
        return output

    def encode_response(self, output):  # type: ignore[no-untyped-def]  # as above
        return output


class ServedFiles(Served):
    """The same where a body is a file as it is."""

    def decode_request(self, request: Annotated[bytes, Body()]) -> bytes:
        return request


if __name__ == "__main__":
    port, folder, threads, workers, max_batch, wait_ms = sys.argv[1:]
    kind = ServedFiles if model_of(folder).BODY is bytes else Served
    api = kind(folder, int(threads), max_batch_size=int(max_batch), batch_timeout=int(wait_ms) / 1000)
    litserve.LitServer(api, accelerator="cpu", workers_per_device=int(workers), fast_queue=True).run(
        host="127.0.0.1", port=int(port), generate_client_file=False, log_level="error", access_log=False
    )
