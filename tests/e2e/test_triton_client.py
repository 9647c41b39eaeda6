"""The official Triton client through the whole appliance, over TLS."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent.ssl
import numpy as np
import pytest
import tritonclient.http as triton
from onnx import TensorProto

from tests.e2e.appliance import Appliance
from tests.e2e.conftest import Start
from tests.engine.tiny_tensors import WEIGHTS, identity, linear, write_folder

CONFIGURATION = """
listeners:
  - address: 127.0.0.1:{{port}}
    tls: {{{{certificates: [{{{{cert: {{tls}}/localhost.pem, key: {{tls}}/localhost.key}}}}]}}}}
models:
  m: {{{{path: {m}}}}}
  same: {{{{path: {same}}}}}
routes:
  - {{{{match: {{{{path: /*}}}}, to: engine}}}}
  - {{{{match: {{{{path: /v2/models/limited/*}}}}, to: engine, policies: {{{{size_limit: {{{{body: 1KiB}}}}}}}}}}}}
"""
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def appliance(start: Start, tmp_path: Path) -> Appliance:
    """m: y = x @ WEIGHTS; same: y = x, of any bytes."""
    m = write_folder(tmp_path / "m", linear()).path
    same = write_folder(tmp_path / "same", identity(TensorProto.UINT8)).path
    return start(CONFIGURATION.format(m=m, same=same))


@pytest.fixture
def client(appliance: Appliance) -> Iterator[Any]:
    def trust() -> ssl.SSLContext:
        return gevent.ssl.create_default_context(cafile=str(appliance.tls / "ca.pem"))

    opened = triton.InferenceServerClient(
        f"127.0.0.1:{appliance.port}", ssl=True, ssl_context_factory=trust, network_timeout=60.0, concurrency=4
    )
    yield opened
    opened.close()


def given(array: np.ndarray[Any, Any], datatype: str, *, binary: bool) -> triton.InferInput:
    told = triton.InferInput("x", list(array.shape), datatype)
    told.set_data_from_numpy(array, binary_data=binary)
    return told


def test_the_official_client_over_tls(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    assert client.get_server_metadata()["name"] == "headrace"
    assert client.get_model_metadata("m")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    for binary in (False, True):
        asked = [triton.InferRequestedOutput("y", binary_data=binary)]
        answer = client.infer("m", [given(ROWS, "FP32", binary=binary)], outputs=asked, request_id="7", priority=2)
        np.testing.assert_allclose(answer.as_numpy("y"), ROWS @ WEIGHTS, rtol=1e-6)
        assert answer.get_response()["id"] == "7"


def test_megabytes_go_and_come_bit_by_bit_many_at_once(client: Any) -> None:
    arrays = [np.random.default_rng(n).integers(0, 256, (1, 3_000_000), np.uint8) for n in range(4)]
    waiting = [client.async_infer("same", [given(array, "UINT8", binary=True)]) for array in arrays]
    for array, each in zip(arrays, waiting, strict=True):
        np.testing.assert_array_equal(each.get_result().as_numpy("y"), array)


def test_errors_of_engine_and_edge_have_the_protocols_form(client: Any, appliance: Appliance) -> None:
    for wrong, status, says in (
        (lambda: client.infer("m", [given(ROWS[:, :3], "FP32", binary=True)]), "400", "'x' is of shape [2, 3]"),
        (lambda: client.infer("other", [given(ROWS, "FP32", binary=True)]), "404", "there is no such model"),
        (lambda: client.infer("limited", [given(ROWS.repeat(99, 0), "FP32", binary=True)]), "413", "larger than"),
    ):
        with pytest.raises(triton.InferenceServerException) as caught:
            wrong()
        assert (caught.value.status(), says in caught.value.message()) == (status, True), caught.value
    assert appliance.get("/v2/models/other/ready").json["error"].startswith("there is no such model")
