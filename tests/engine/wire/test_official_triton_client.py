"""The official Triton client for HTTP against the engine: everything of it that belongs to this protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from onnx import TensorProto

from tests.engine.tiny_tensors import WEIGHTS, identity, linear, write_folder
from tests.engine.wire.oip_box import Box, serve

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


@contextlib.asynccontextmanager
async def on_port(box: Box) -> AsyncIterator[str]:
    """HOST:PORT that leads to the engine's socket: the client knows no other sockets."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(box.socket_path)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Callable[[Callable[[Any], Any]], Any]]:
    """Runs a function with a client in a thread of its own."""
    folders = (
        write_folder(tmp_path / "m", linear()),
        write_folder(tmp_path / "text", identity(TensorProto.STRING, ["n", "k"])),
        write_folder(tmp_path / "half", identity(TensorProto.FLOAT16, ["n", 2])),
    )
    async with serve(tmp_path, *folders, max_batch=4) as box, on_port(box) as address:

        def work(function: Callable[[Any], Any]) -> Any:
            client = triton.InferenceServerClient(address, concurrency=4)
            try:
                return function(client)
            finally:
                client.close()

        yield lambda function: asyncio.to_thread(work, function)


def given(array: np.ndarray[Any, Any], datatype: str = "FP32", *, binary: bool = True) -> triton.InferInput:
    told = triton.InferInput("x", list(array.shape), datatype)
    told.set_data_from_numpy(array, binary_data=binary)
    return told


async def test_server_and_models_are_told(ask: Any) -> None:
    def talk(client: Any) -> None:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
        assert client.is_model_ready("m")
        assert client.is_model_ready("m", "1")
        assert not client.is_model_ready("other")
        told = client.get_model_metadata("m")
        assert (told["name"], told["versions"]) == ("m", ["1"])
        assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
        assert client.get_inference_statistics("m")["model_stats"][0]["name"] == "m"
        assert len(client.get_inference_statistics()["model_stats"]) == 3
        assert told["outputs"][1] == {"name": "sum", "datatype": "FP32", "shape": [-1]}

    await ask(talk)


@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("binary_out", [None, False, True])
async def test_tensors_go_and_come_in_each_form(ask: Any, binary_in: bool, binary_out: bool | None) -> None:
    def talk(client: Any) -> None:
        asked = None
        if binary_out is not None:
            asked = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("sum", "y")]
        answer = client.infer(
            "m", [given(ROWS, binary=binary_in)], outputs=asked, request_id="r1", priority=1, timeout=60_000_000
        )
        np.testing.assert_allclose(answer.as_numpy("y"), ROWS @ WEIGHTS, rtol=1e-6)
        np.testing.assert_array_equal(answer.as_numpy("sum"), ROWS.sum(1))
        assert answer.as_numpy("y").dtype == np.float32
        assert answer.get_response()["id"] == "r1"

    await ask(talk)


@pytest.mark.parametrize("binary", [False, True])
async def test_text_and_halves(ask: Any, binary: bool) -> None:
    def talk(client: Any) -> None:
        texts = np.array([["é".encode(), b""]], object)
        asked = [triton.InferRequestedOutput("y", binary_data=binary)]
        answer = client.infer("text", [given(texts, "BYTES", binary=binary)], outputs=asked)
        found = [text.encode() if isinstance(text, str) else text for text in answer.as_numpy("y").reshape(-1)]
        assert found == ["é".encode(), b""]
        halves = np.array([[0.1, -2]], np.float16)
        answer = client.infer("half", [given(halves, "FP16", binary=binary)], outputs=asked)
        assert answer.as_numpy("y").tobytes() == halves.tobytes()

    await ask(talk)


async def test_many_at_once(ask: Any) -> None:
    def talk(client: Any) -> None:
        waiting = [client.async_infer("m", [given(ROWS + n)]) for n in range(20)]
        for n, each in enumerate(waiting):
            np.testing.assert_allclose(each.get_result().as_numpy("y"), (ROWS + n) @ WEIGHTS, rtol=1e-6)

    await ask(talk)


async def test_errors_are_the_clients_own_with_our_words(ask: Any) -> None:
    def talk(client: Any) -> None:
        for wrong, status, says in (
            (lambda: client.infer("m", [given(ROWS[:, :3])]), "400", "'x' is of shape [2, 3]"),
            (lambda: client.infer("other", [given(ROWS)]), "404", "there is no such model"),
            (lambda: client.infer("m", [given(ROWS)], timeout=1), "408", "deadline"),
            (lambda: client.infer("m", [given(ROWS)], sequence_id=3), "400", "sequence_id is not supported"),
            (lambda: client.get_model_metadata("m", "7"), "404", "no such version"),
        ):
            with pytest.raises(triton.InferenceServerException) as caught:
                wrong()
            assert (caught.value.status(), says in caught.value.message()) == (status, True)

    await ask(talk)
