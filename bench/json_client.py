"""A client that asks one JSON question after the other on one connection, as cheaply as Python can."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from bench.sse_client import Server, read_head, render_request


@dataclass(slots=True)
class JsonClient:
    """A kept connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls, server: Server) -> JsonClient:
        """Opens the connection."""
        return cls(*await server.connect())

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to one POST. Raises RuntimeError on a refusal."""
        self.writer.write(render_request(path, body))
        length = await read_head(self.reader)
        answer: dict[str, Any] = json.loads(await self.reader.readexactly(length or 0))
        return answer

    def close(self) -> None:
        """Closes the connection."""
        self.writer.close()
