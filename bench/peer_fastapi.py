"""A peer of bench/batching.py and bench/classify.py: FastAPI and ONNX Runtime without batching, as most begin.

    python bench/peer_fastapi.py PORT FOLDER THREADS

Each request is a run, in a plain function, so FastAPI runs it in its pool and the loop goes on; one process, uvicorn
with uvloop and httptools.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import uvicorn
from fastapi import Body, FastAPI

from bench.peer_models import Answer, model_of


def make(folder: str, threads: int) -> FastAPI:
    kind = model_of(folder)
    app, model = FastAPI(), kind(folder, threads)

    def answer(body: Any) -> Answer:
        return model.answers([body])[0]

    answer.__annotations__["body"] = Annotated[kind.BODY, Body()]  # bytes are taken as they come, a dict is JSON
    app.post(kind.PATH)(answer)
    return app


if __name__ == "__main__":
    uvicorn.run(
        make(sys.argv[2], int(sys.argv[3])),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        access_log=False,
        log_level="error",
    )
