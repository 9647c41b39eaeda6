"""A peer of bench/batching.py: FastAPI and ONNX Runtime without batching, each request a run, as most begin.

    python bench/peer_fastapi.py PORT FOLDER THREADS

A plain function, so FastAPI runs it in its pool and the loop goes on; one process, uvicorn with uvloop and httptools.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import uvicorn
from fastapi import FastAPI

from bench import peer_encoder


def make(folder: str, threads: int) -> FastAPI:
    app, encoder = FastAPI(), peer_encoder.Encoder(folder, threads)

    def embed(body: dict[str, Any]) -> Mapping[str, Any]:
        return peer_encoder.answer(body["model"], encoder.encode([body["input"]])[0])

    app.post(peer_encoder.PATH)(embed)
    return app


if __name__ == "__main__":
    uvicorn.run(
        make(sys.argv[2], int(sys.argv[3])),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        access_log=False,
        log_level="error",
    )
