"""What tensors are compared with gives back what it gets, and the requests are what the protocol says."""

from __future__ import annotations

import http.client
import sys
from contextlib import closing

import numpy as np
import orjson
import pytest

from bench.processes import HERE, free_port, server
from bench.tensors import PIXELS, SMALL, infer


@pytest.mark.parametrize("length", [0, 5, 3_000_000])
def test_the_copy_gives_back_every_byte(length: int) -> None:
    body = bytes(range(256)) * (length // 256) + b"x" * (length % 256)
    port = free_port()
    with (
        server([sys.executable, str(HERE / "echo.py"), "copy", str(port)], port=port),
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection,
    ):
        for _ in range(2):
            connection.request("POST", "/", body)
            assert connection.getresponse().read() == body


def test_a_tensor_goes_as_bytes_or_as_json() -> None:
    head, _, body = infer("m", PIXELS, binary=True).partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"inference-header-content-length: ")[2].split(b"\r\n")[0])
    told = orjson.loads(body[:length])
    assert head.startswith(b"POST /v2/models/m/infer HTTP/1.1\r\n")
    assert told["inputs"][0] == {
        "name": "x",
        "shape": [1, 150528],
        "datatype": "UINT8",
        "parameters": {"binary_data_size": 150528},
    }
    assert body[length:] == PIXELS.tobytes()
    body = infer("m", SMALL, binary=False).partition(b"\r\n\r\n")[2]
    assert orjson.loads(body) == {
        "inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": np.arange(16.0).tolist()}]
    }
