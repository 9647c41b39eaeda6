"""The usual way from a photograph to a class: Pillow decodes it whole, numpy makes floats of it, a graph takes these.

    python bench/unfused.py PORT FOLDER THREADS      serve it: POST a JPEG to /v1/classify

One request is one run, on a thread of its own, as most services begin. Also what the fused pipeline's results are held
against. Knows Open NSFW's preprocessing and nothing of Headrace's adapters.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
import onnxruntime
from aiohttp import web
from numpy.typing import NDArray
from PIL import Image

MEAN_BGR = np.array([104.0, 117.0, 123.0], np.float32)
Row = NDArray[np.float32]


def preprocess(data: bytes) -> Row:
    """float32[224, 224, 3]: the middle of a picture of 256 x 256, channels in the order blue, green, red."""
    picture = Image.open(BytesIO(data)).convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, dtype=np.float32)[16:240, 16:240]
    return pixels[:, :, ::-1] - MEAN_BGR


def session(folder: Path, threads: int) -> onnxruntime.InferenceSession:
    """The folder's graph as it is."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])


def serve(port: int, folder: Path, threads: int) -> None:
    """Until it is ended."""
    graph, pool = session(folder, threads), ThreadPoolExecutor(threads)
    name = graph.get_inputs()[0].name

    def classify(data: bytes) -> list[float]:
        scores: list[float] = graph.run(None, {name: preprocess(data)[np.newaxis]})[0][0].tolist()
        return scores

    async def answer(request: web.Request) -> web.Response:
        data = await request.read()
        return web.json_response(await asyncio.get_running_loop().run_in_executor(pool, classify, data))

    app = web.Application(client_max_size=64 << 20)
    app.add_routes([web.post("/v1/classify", answer)])
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
