"""TLS clients and servers for tests, and the certificates that both know."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

from tests.wire.certificates import certificate
from tests.wire.harness import WAIT_S, Edge, app, listen

Pair = tuple[bytes, bytes]
PAIRS: dict[str, Pair] = {"a": certificate("a.example", "127.0.0.1"), "b": certificate("*.b.example")}
TLS: dict[str, Any] = {"tls": {"certificates": [{"cert": f"/{name}.pem", "key": f"/{name}.key"} for name in PAIRS]}}
GET = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
CLOSE = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"


def materials(**pairs: Pair) -> dict[str, bytes]:
    """The files that TLS names, with other pairs for some names."""
    known = {**PAIRS, **pairs}
    return {
        f"/{name}.{kind}": pem for name, pair in known.items() for kind, pem in zip(("pem", "key"), pair, strict=True)
    }


MATERIALS = materials()


def client_context(*pairs: Pair) -> ssl.SSLContext:
    """A context that trusts these certificates; none: those of MATERIALS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for cert, _ in pairs or PAIRS.values():
        context.load_verify_locations(cadata=cert.decode())
    return context


class TlsClient:
    """One connection to an edge over TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def connection(self) -> ssl.SSLObject:
        found: ssl.SSLObject = self.writer.get_extra_info("ssl_object")
        return found

    @property
    def shown(self) -> bytes:
        """The server's certificate, DER."""
        return self.connection.getpeercert(binary_form=True) or b""

    async def ask(self, request: bytes = GET) -> bytes:
        """An answer with two bytes of body."""
        self.writer.write(request)
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_S)
        return head + await asyncio.wait_for(self.reader.readexactly(2), WAIT_S)

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()


@asynccontextmanager
async def tls_client(
    running: Edge, name: str | None = "a.example", context: ssl.SSLContext | None = None
) -> AsyncIterator[TlsClient]:
    """A client that asks for a name; None: for none, and it takes every certificate."""
    context = context or client_context()
    if name is None:
        context.check_hostname = False
    reader, writer = await asyncio.wait_for(
        asyncio.open_connection("127.0.0.1", running.port, ssl=context, server_hostname=name or ""), WAIT_S
    )
    client = TlsClient(reader, writer)
    try:
        yield client
    finally:
        await client.close()


def der(pair: Pair) -> bytes:
    """The certificate as ``TlsClient.shown`` has it."""
    return ssl.PEM_cert_to_DER_cert(pair[0].decode())


class MemoryFiles:
    """A pair of PEM texts as paths."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def __enter__(self) -> list[str]:
        self._descriptors = [os.memfd_create("pem") for _ in self._pair]
        for descriptor, pem in zip(self._descriptors, self._pair, strict=True):
            os.write(descriptor, pem)
        return [f"/proc/self/fd/{descriptor}" for descriptor in self._descriptors]

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


def server_context(pair: Pair) -> ssl.SSLContext:
    """The context of a server that shows this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with MemoryFiles(pair) as (cert, key):
        context.load_cert_chain(cert, key)
    return context


Play = Callable[[ssl.SSLSocket], None]


@asynccontextmanager
async def tls_upstream(context: ssl.SSLContext, play: Play) -> AsyncIterator[int]:
    """A TLS server in a thread, which plays every connection after its handshake, one after the other."""
    listening = listen()
    listening.settimeout(WAIT_S)

    def serve() -> None:
        with suppress(OSError):
            while True:
                sock, _ = listening.accept()
                sock.settimeout(WAIT_S)
                with suppress(ssl.SSLError, OSError), closing(context.wrap_socket(sock, server_side=True)) as tls:
                    play(tls)

    thread = asyncio.get_running_loop().run_in_executor(None, serve)
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        await thread


def read_head(tls: ssl.SSLSocket) -> bytes:
    """A request without a body, in however many records it comes; b"" when the connection ends first."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        if not (data := tls.recv(65536)):
            return b""
        head += data
    return head


def once(answer: bytes, *, notify: bool) -> Play:
    """Answer one request, and end the connection with or without close_notify."""

    def play(tls: ssl.SSLSocket) -> None:
        read_head(tls)
        tls.sendall(answer)
        if notify:
            tls.settimeout(0.0)
            with suppress(ssl.SSLWantReadError):  # which is the other side's close_notify
                tls.unwrap()

    return play


def secure_app(port: int, **tls: Any) -> dict[str, Any]:
    """A route for everything to a TLS server."""
    config = app(port, tls=tls)
    config["upstreams"]["app"]["servers"] = [f"https://127.0.0.1:{port}"]
    return config
