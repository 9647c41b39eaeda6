"""A peer: the reverse proxy that one writes with aiohttp alone, ClientSession behind web.Server, on uvloop.

Written as its documentation teaches, streaming both ways, with keep-alive to the upstream and without decompression,
and with aiohttp's own access log into a file, since the other peers write theirs.

    python plain_proxy.py PORT UPSTREAM_PORT ACCESS_LOG
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator

import uvloop
from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, hdrs, web
from yarl import URL

HOP_BY_HOP = frozenset({"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host"})
SESSION = web.AppKey("session", ClientSession)
UPSTREAM = web.AppKey("upstream", str)


async def relay(request: web.Request) -> web.StreamResponse:
    headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP]
    headers.append(("X-Forwarded-For", request.remote or ""))
    async with request.app[SESSION].request(
        request.method,
        URL(request.app[UPSTREAM] + request.raw_path, encoded=True),
        headers=headers,
        data=request.content if request.can_read_body else None,
        allow_redirects=False,
    ) as answer:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in HOP_BY_HOP:
                response.headers.add(name, value)
        response.headers[hdrs.VIA] = "1.1 plain"
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


async def session(app: web.Application) -> AsyncIterator[None]:
    async with ClientSession(
        connector=TCPConnector(limit=0),
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
        timeout=ClientTimeout(total=None),
    ) as opened:
        app[SESSION] = opened
        yield


def main(port: int, upstream_port: int, access_log: str) -> None:
    logging.basicConfig(filename=access_log, level=logging.INFO, format="%(message)s")
    app = web.Application()
    app[UPSTREAM] = f"http://127.0.0.1:{upstream_port}"
    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{path:.*}", relay)
    web.run_app(app, host="127.0.0.1", port=port, loop=uvloop.new_event_loop(), print=lambda *_: None)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
