"""What the Open Inference Protocol costs: models that give back what they get, through the proxy and the engine.

    python bench/tensors.py [--quick] [--json FILE]

Small tensors beside an echo by aiohttp behind the same proxy; 1 MB beside bytes that are only copied over the same
kinds of sockets; a picture's 150 KB as bytes and as JSON.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":  # run as a file, this directory stands first, and `import proxy` would find bench/proxy.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np
import onnx
import orjson
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bench import peers, serving
from bench.posts import post, render
from bench.processes import HERE, free_port, server, unix_server
from bench.report import Report, arguments, ratio, versions
from bench.rounds import Figures, column, interleave

SMALL = np.arange(16, dtype=np.float32).reshape(1, 16)
LARGE = np.arange(1 << 18, dtype=np.float32).reshape(1, -1)  # 1 MiB
PIXELS = (np.arange(224 * 224 * 3) % 256).astype(np.uint8).reshape(1, -1)  # 150 KB
MANY, FEW = 64, 4


class Load(NamedTuple):
    """What is asked of whom, by how many clients."""

    where: int
    request: bytes
    clients: int

    def measure(self, seconds: float) -> Figures:
        figures = post(self.where, [self.request], connections=self.clients, seconds=seconds)
        return {"per_s": figures["requests_per_s"], "p50_ms": figures["ms"]["p50"], "p99_ms": figures["ms"]["p99"]}


def infer(model: str, tensor: NDArray[np.float32] | NDArray[np.uint8], *, binary: bool) -> bytes:
    """A request of the Open Inference Protocol whose answer has the same form."""
    x = {"name": "x", "shape": tensor.shape, "datatype": "FP32" if tensor.dtype == np.float32 else "UINT8"}
    path = f"/v2/models/{model}/infer"
    if not binary:
        body = {"inputs": [{**x, "data": tensor.reshape(-1)}]}
        return render(path, orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))
    head = orjson.dumps(
        {
            "inputs": [{**x, "parameters": {"binary_data_size": tensor.nbytes}}],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
    )
    length = f"Inference-Header-Content-Length: {len(head)}"
    return render(path, head + tensor.tobytes(), length, content_type="application/octet-stream")


def write_model(directory: Path, name: str, element: int) -> Path:
    """The folder of a model with y = x: [rows, length]."""
    shapes = [helper.make_tensor_value_info(tensor, element, ["n", "length"]) for tensor in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], name, shapes[:1], shapes[1:])
    file = directory / f"{name}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    command = [*peers.HEADRACE, "model", "import", str(file), "--dir", str(directory)]
    subprocess.run(command, check=True, capture_output=True)
    return directory / name


@contextmanager
def running() -> Iterator[tuple[int, int]]:
    """Headrace with both models and, at /echo, the echo; and the copy. Yields their ports."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        directory, copy_port = Path(name), free_port()
        models = {model: write_model(directory, model, element) for model, element in ELEMENTS.items()}
        echo = str(directory / "echo.sock")
        text = (
            f"models: {{{', '.join(f'{model}: {{path: {path}}}' for model, path in models.items())}}}\n"
            f"upstreams: {{echo: {{servers: ['unix:{echo}']}}}}\n"
            "routes: [{match: {path: /echo}, to: echo}, {to: engine}]\n"
        )
        with (
            unix_server([sys.executable, str(HERE / "echo.py"), "aiohttp", echo], path=echo),
            server([sys.executable, str(HERE / "echo.py"), "copy", str(copy_port)], port=copy_port),
            serving.edge(text) as (found, _),
        ):
            yield found.port, copy_port


ELEMENTS = {"identity": TensorProto.FLOAT, "pixels": TensorProto.UINT8}


def main() -> None:
    options = arguments(__doc__)
    num_rounds, seconds = options.rounds or options.pick(7, 3, 1), options.pick(4.0, 1.5, 1.0)
    with running() as (port, copy_port):
        small = infer("identity", SMALL, binary=True)
        loads = {
            "identity, one client": Load(port, small, 1),
            "identity": Load(port, small, MANY),
            "identity, JSON": Load(port, infer("identity", SMALL, binary=False), MANY),
            "echo, one client": Load(port, render("/echo", b"x" * SMALL.nbytes), 1),
            "echo": Load(port, render("/echo", b"x" * SMALL.nbytes), MANY),
            "1 MiB, binary": Load(port, infer("identity", LARGE, binary=True), FEW),
            "1 MiB, copied": Load(copy_port, render("/", LARGE.tobytes()), FEW),
            "1 MiB, echo": Load(port, render("/echo", LARGE.tobytes()), FEW),
            "150 KB, binary": Load(port, infer("pixels", PIXELS, binary=True), FEW),
            "150 KB, JSON": Load(port, infer("pixels", PIXELS, binary=False), FEW),
        }
        rows = interleave(
            {name: partial(load.measure, seconds) for name, load in loads.items()}, num_rounds, label="what"
        )

    per_s = column(rows, "per_s", label="what")
    Report(
        name="tensors",
        method=(
            f"identity models, HTTP without TLS, closed loop, {MANY} clients with {SMALL.nbytes} bytes and {FEW} with "
            "1 MiB or 150 KB, which go and come back; echo: aiohttp on uvloop behind the same proxy; copied: a relay "
            f"and an echo of blocking sockets; {num_rounds} interleaved rounds of {seconds:g} s, medians; all share "
            f"{serving.num_cores()} cores"
        ),
        versions={
            **versions("headrace", "onnxruntime", "aiohttp", "uvloop"),
            "request path": "compiled" if peers.is_compiled() else "interpreted",
        },
        rows=rows,
        ratios={
            "added_p50_ms": column(rows, "p50_ms", label="what")["identity, one client"],
            "identity_vs_echo": ratio(per_s["identity"], per_s["echo"]),
            "binary_vs_raw_copy": ratio(per_s["1 MiB, binary"], per_s["1 MiB, copied"]),
            "binary_vs_echo": ratio(per_s["1 MiB, binary"], per_s["1 MiB, echo"]),
            "binary_vs_json": ratio(per_s["150 KB, binary"], per_s["150 KB, JSON"]),
        },
    ).finish(options.json)


if __name__ == "__main__":
    main()
