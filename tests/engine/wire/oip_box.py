"""A served engine with tensor models, as tests of the Open Inference Protocol ask it: raw bytes out, raw bytes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.batching.settings import BatchingSettings
from engine.model_folder import ModelFolder
from engine.settings import EngineSettings, ModelSettings
from engine.worker import EngineWorker

HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Answer:
    """A whole answer, its header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The JSON of the body, or of its part before binary data."""
        return json.loads(self.body[: int(self.headers.get(HEADER_LENGTH.lower(), len(self.body)))])

    @property
    def binary(self) -> bytes:
        return self.body[int(self.headers[HEADER_LENGTH.lower()]) :]

    @property
    def error(self) -> str:
        """The text of an error in the protocol's form, and nothing else."""
        assert self.status >= 400
        assert self.headers["content-type"] == "application/json"
        ((key, text),) = self.json.items()
        assert key == "error"
        assert isinstance(text, str)
        return text

    def array(self, name: str) -> Any:
        """An output that was sent as JSON."""
        (output,) = (each for each in self.json["outputs"] if each["name"] == name)
        return np.array(output["data"]).reshape(output["shape"])


@dataclass
class Box:
    """A running engine."""

    worker: EngineWorker
    socket_path: str

    async def send(self, request: bytes) -> Answer:
        """The answer to these bytes."""
        reader, writer = await asyncio.open_unix_connection(self.socket_path, limit=1 << 24)
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode().split("\r\n")[:-2]
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            body = await reader.readexactly(int(headers["content-length"]))
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        return Answer(int(lines[0].split()[1]), headers, body)

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        fields = {"Host": "engine", "Connection": "close", "Content-Length": str(len(body)), **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        return await self.send(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def get(self, path: str) -> Answer:
        return await self.ask("GET", path)

    async def infer(self, request: Mapping[str, Any], binary: bytes | None = None, model: str = "m") -> Answer:
        """A request in the protocol's form. binary: what follows the JSON; None: no header says how long that is."""
        content = json.dumps(request).encode()
        headers = {} if binary is None else {HEADER_LENGTH: str(len(content))}
        return await self.ask("POST", f"/v2/models/{model}/infer", content + (binary or b""), **headers)


def tensor(array: np.ndarray[Any, Any], datatype: str = "FP32", name: str = "x") -> dict[str, Any]:
    """An input as JSON."""
    return {"name": name, "shape": array.shape, "datatype": datatype, "data": array.reshape(-1).tolist()}


@contextlib.asynccontextmanager
async def serve(directory: Path, *folders: ModelFolder, **settings: Any) -> AsyncIterator[Box]:
    """Serve model folders by their manifests' names. settings: of every model."""
    batching = BatchingSettings(settings.pop("max_batch", None))
    models = tuple(ModelSettings(each.manifest.name, str(each.path), batching=batching, **settings) for each in folders)
    path = str(directory / "e.sock")
    worker = EngineWorker(EngineSettings(path, models, control="clients", threads=1))
    await worker.start(lambda what: None)
    try:
        yield Box(worker, path)
    finally:
        await worker.drain(10)
