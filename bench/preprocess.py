"""From photographs of twelve megapixels, and texts, to answers: the fused pipeline beside the usual one, in one run.

    python bench/preprocess.py [--quick] [--json FILE]

Preprocessing alone is what happens to sixteen photographs, or sixteen with a text each, before the model's own first
node. The whole is sixteen through the model within one process, and one at a time over HTTP to the engine alone and to
a service of the usual kind (bench/unfused_server.py), with as many clients.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tokenizers import Tokenizer

from bench import joined, serving, unfused
from bench.pictures import photographs
from bench.posts import post, render
from bench.processes import HERE, free_port, server
from bench.report import Report, arguments, ratio, versions
from bench.rounds import Figures, column, interleave
from engine import model_folder
from engine.batching.settings import BatchingSettings
from engine.device import Device
from engine.fusion import fuse
from engine.model_folder import GRAPH, ModelFolder
from engine.pool import Pool
from engine.session import open_session
from engine.settings import ModelSettings
from engine.tensors.load import load_tensor_model
from engine.tensors.model import TensorModel
from engine.tensors.raw_rows import infer_raw

BATCH, CLIENTS = 16, 16
TEXT = "A photograph of the old mill beside the river, with its wheel turning in the evening light of a late summer day"
Array = NDArray[Any]


class Fused:
    """Headrace's way, within this process: adapters in the pool, the rest in the graph."""

    def __init__(self, folder: ModelFolder, threads: int, loop: asyncio.AbstractEventLoop) -> None:
        settings = ModelSettings(folder.name, str(folder.path), batching=BatchingSettings(max_batch=BATCH))
        self.model: TensorModel = load_tensor_model(folder, settings, threads=threads)
        self.device = Device("cpu", [self.model.lane], loop)
        self.device.start()
        self.pool = Pool(threads)
        adapter = folder.manifest.adapter
        self._image = adapter.image if adapter else None
        assert self._image is not None
        shape: list[str | int] = ["n", *self._image.size[::-1], self._image.channels]
        names = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in (self._image.input, "rows")]
        nothing = helper.make_graph(
            [helper.make_node("Identity", [self._image.input], ["rows"])], "nothing", names[:1], names[1:]
        )
        alone = helper.make_model(nothing, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        graph = fuse(alone, folder.manifest.model_copy(update={"classify": None})).SerializeToString()
        self._front = open_session(folder.file(GRAPH), threads=threads, instead=graph)
        self._loop = loop

    def preprocess(self, rows: Sequence[dict[str, bytes | str]]) -> Array:
        """The floats that the model's own first node reads."""
        return self._loop.run_until_complete(self._preprocess(rows))

    async def _preprocess(self, rows: Sequence[dict[str, bytes | str]]) -> Array:
        work = [self.pool.run(self.model.adapters[name].prepare, raw, "") for row in rows for name, raw in row.items()]
        assert self._image is not None
        feed, plain = self._image.feed, self._image.input
        feeds = [each for each in await asyncio.gather(*work) if feed in each]
        pixels = np.concatenate([each[feed] for each in feeds])
        floats: Array = self._front.run(None, {feed: pixels, plain: feeds[0][plain]})[0]
        return floats

    def infer(self, rows: Sequence[dict[str, bytes | str]], output: str) -> Array:
        """One output of the whole model."""
        work = infer_raw(self.pool, self.device, self.model, rows, [""] * len(rows), outputs=[output])
        return np.concatenate([answer[output] for answer in self._loop.run_until_complete(work)])

    def close(self) -> None:
        self._loop.run_until_complete(self.device.stop(10))
        self.pool.close()
        self.model.close()


class Usual:
    """The usual way, within this process: Pillow, numpy and padding to the longest in as many threads, then a run."""

    def __init__(self, folder: ModelFolder, threads: int) -> None:
        self._graph = unfused.session(folder.path, threads)
        self._pool = ThreadPoolExecutor(threads)
        tokenizer = folder.manifest.tokenizer
        self._tokenizer: Any = None
        if tokenizer is not None:
            self._tokenizer = Tokenizer.from_file(str(folder.path / tokenizer.file))
            self._tokenizer.enable_truncation(joined.MAX_TOKENS)
            self._tokenizer.enable_padding(length=joined.MAX_TOKENS)

    def preprocess(self, rows: Sequence[dict[str, bytes | str]]) -> dict[str, Array]:
        """What the graph is fed."""
        name = self._graph.get_inputs()[0].name
        feeds = {name: np.stack(list(self._pool.map(unfused.preprocess, [row[name] for row in rows])))}
        if self._tokenizer is not None:
            texts = self._tokenizer.encode_batch([row[joined.IDS] for row in rows])
            feeds[joined.IDS] = np.array([text.ids for text in texts], np.int32)
            feeds[joined.MASK] = np.array([text.attention_mask for text in texts], np.int32)
        return feeds

    def infer(self, rows: Sequence[dict[str, bytes | str]], output: str) -> Array:
        """One output of the whole model."""
        result: Array = self._graph.run([output], self.preprocess(rows))[0]
        return result


def timed(work: Callable[[], object], seconds: float) -> Figures:
    """{images_per_s} of ``work``, which does a batch, repeated."""
    num_done, begun_at = 0, time.perf_counter()
    while not num_done or time.perf_counter() < begun_at + seconds:
        work()
        num_done += BATCH
    return {"images_per_s": num_done / (time.perf_counter() - begun_at)}


def asked(where: int | str, path: str, pictures: Sequence[bytes], seconds: float) -> Figures:
    """{images_per_s} over HTTP: longer, since answers come in as many as share a run."""
    requests = [render(path, picture, content_type="image/jpeg") for picture in pictures]
    return {"images_per_s": post(where, requests, connections=CLIENTS, seconds=max(2.0, 4 * seconds))["requests_per_s"]}


@contextmanager
def both(folder: ModelFolder, loop: asyncio.AbstractEventLoop) -> Iterator[tuple[Fused, Usual]]:
    fused = Fused(folder, serving.num_cores(), loop)
    try:
        yield fused, Usual(folder, serving.num_cores())
    finally:
        fused.close()


def main() -> None:
    options = arguments(__doc__)
    num_rounds = options.rounds or options.pick(5, 3, 1)
    seconds = options.pick(4.0, 2.0, 0.1)
    size = options.pick(1, 1, 10)
    pictures = photographs(options.pick(BATCH, BATCH, 2), width=4000 // size, height=3000 // size)
    image_folder = model_folder.read(serving.model_folder(serving.CLASSIFIER))
    text_folder = model_folder.read(serving.model_folder(serving.EMBEDDING))
    cores, port, loop = serving.num_cores(), free_port(), asyncio.new_event_loop()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        joined_folder = joined.join(image_folder, text_folder, Path(directory) / "joined")
        command = [sys.executable, str(HERE / "unfused_server.py"), str(port), str(image_folder.path), str(cores)]
        with (
            both(image_folder, loop) as (image, usual_image),
            both(joined_folder, loop) as (pair, usual_pair),
            serving.engine_alone(image_folder.path) as (engine, _),
            server(command, port=port),
        ):
            (name,) = image.model.adapters
            (scores,) = (tensor.name for tensor in image.model.facts.outputs)
            batch = [pictures[index % len(pictures)] for index in range(BATCH)]
            images: list[dict[str, bytes | str]] = [{name: picture} for picture in batch]
            pairs: list[dict[str, bytes | str]] = [{joined.IMAGE: each, joined.IDS: TEXT} for each in batch]
            path = f"/v1/classify?model={image_folder.path.name}"
            measures: dict[str, Callable[[], Figures]] = {
                "usual, images, preprocessing": partial(timed, partial(usual_image.preprocess, images), seconds),
                "fused, images, preprocessing": partial(timed, partial(image.preprocess, images), seconds),
                "usual, images with texts, preprocessing": partial(
                    timed, partial(usual_pair.preprocess, pairs), seconds
                ),
                "fused, images with texts, preprocessing": partial(timed, partial(pair.preprocess, pairs), seconds),
                "usual, images with texts": partial(timed, partial(usual_pair.infer, pairs, joined.VECTOR), seconds),
                "fused, images with texts": partial(timed, partial(pair.infer, pairs, joined.VECTOR), seconds),
                "usual, images over HTTP": partial(asked, port, path, pictures, seconds),
                "fused, images over HTTP": partial(asked, engine.socket_path, path, pictures, seconds),
            }
            rows = interleave(measures, num_rounds, label="who")
            fused_scores, usual_scores = (each.infer(images, scores) for each in (image, usual_image))
    mean_mb = sum(map(len, pictures)) / len(pictures) / 1e6
    speed = column(rows, "images_per_s", label="who")

    def gain(what: str) -> float | None:
        return ratio(speed[f"fused, {what}"], speed[f"usual, {what}"])

    Report(
        name="preprocess",
        method=(
            f"JPEGs of {4000 // size} x {3000 // size} pixels and {mean_mb:.2g} MB to"
            f" {serving.CLASSIFIER} (224 x 224, float32), texts of {len(TEXT)} characters to {serving.EMBEDDING};"
            f" batches of {BATCH}, {CLIENTS} clients over HTTP; {num_rounds} interleaved rounds of {seconds:g} s,"
            f" medians; both ways with {cores} threads on {cores} cores"
        ),
        versions=versions("headrace", "onnxruntime", "simplejpeg", "pillow", "numpy", "tokenizers"),
        rows=rows,
        ratios={
            "preprocess_vs_pillow": gain("images, preprocessing"),
            "image_end_to_end_vs_pillow": gain("images over HTTP"),
            "multimodal_preprocess_gain": gain("images with texts, preprocessing"),
            "multimodal_end_to_end_gain": gain("images with texts"),
            "same_top_1": float((fused_scores.argmax(1) == usual_scores.argmax(1)).mean()),
            "largest_score_difference": float(np.abs(fused_scores - usual_scores).max()),
        },
    ).finish(options.json)


if __name__ == "__main__":
    main()
