"""The engine's own metrics page, fetched over its unix socket; an engine that does not answer in time has none."""

from __future__ import annotations

import aiohttp

_TIMEOUT = aiohttp.ClientTimeout(total=1.0)


async def fetch(socket_path: str) -> bytes | None:
    """The page's bytes; None if the engine gives none within a second."""
    try:
        connector = aiohttp.UnixConnector(socket_path)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session,
            session.get("http://engine/metrics") as response,
        ):
            return await response.read() if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError):
        return None
