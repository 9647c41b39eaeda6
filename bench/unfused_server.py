"""The usual way from a photograph to a class as a service: what bench/preprocess.py asks beside ours.

    python bench/unfused_server.py PORT FOLDER THREADS      POST a JPEG to /v1/classify

One request is one run, on a thread of its own, as most services begin.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
from aiohttp import web

from bench import unfused


def serve(port: int, folder: Path, threads: int) -> None:
    """Until it is ended."""
    graph, pool = unfused.session(folder, threads), ThreadPoolExecutor(threads)
    name = graph.get_inputs()[0].name

    def classify(data: bytes) -> list[float]:
        scores: list[float] = graph.run(None, {name: unfused.preprocess(data)[np.newaxis]})[0][0].tolist()
        return scores

    async def answer(request: web.Request) -> web.Response:
        data = await request.read()
        return web.json_response(await asyncio.get_running_loop().run_in_executor(pool, classify, data))

    app = web.Application(client_max_size=64 << 20)
    app.add_routes([web.post("/v1/classify", answer)])
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
