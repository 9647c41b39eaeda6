"""A proxy between a raw client and a raw upstream that records what it received: bytes in, bytes out, no HTTP library.

All three run on one event loop, over loopback sockets. Nothing sleeps to see time pass; every wait has a limit.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

from proxy.config_routes import ProxyConfig
from proxy.shared.table import SharedTable
from proxy.worker import ProxyWorker

WAIT_S = 10.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class UpstreamSide:
    """One connection as the upstream's script sees it."""

    def __init__(self, sock: socket.socket, upstream: RawUpstream) -> None:
        self._sock = sock
        self._upstream = upstream
        self._buffer = b""

    async def receive(self) -> bytes:
        """Some bytes, recorded; b"" when the proxy closed or reset the connection."""
        try:
            data = await asyncio.get_running_loop().sock_recv(self._sock, 65536)
        except ConnectionError:
            data = b""
        if self._upstream.records:
            self._upstream.received += data
        return data

    async def head(self) -> bytes | None:
        """The next request's head, None when the connection ends first."""
        while b"\r\n\r\n" not in self._buffer:
            data = await self.receive()
            if not data:
                return None
            self._buffer += data
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        self._upstream.heads.append(head + b"\r\n\r\n")
        return head

    async def request(self) -> bytes | None:
        """The next request's body (with its chunk frames), None when the connection ends first."""
        head = await self.head()
        if head is None:
            return None
        lowered = head.lower()
        if b"transfer-encoding: chunked" in lowered:
            while not self._buffer.endswith(b"0\r\n\r\n"):
                data = await self.receive()
                if not data:
                    return None
                self._buffer += data
            body, self._buffer = self._buffer, b""
            return body
        length = int(lowered.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        while len(self._buffer) < length:
            data = await self.receive()
            if not data:
                return None
            self._buffer += data
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return body

    async def send(self, data: bytes) -> None:
        """Send, and record nothing: the test knows what it sent. Ends quietly when the proxy is gone."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, data)
        except ConnectionError:
            self._upstream.broken.set()

    def buffered(self) -> bytes:
        """What was received behind the head or body that was read last."""
        data, self._buffer = self._buffer, b""
        return data

    def send_no_more(self) -> None:
        """FIN, while the connection stays."""
        self._sock.shutdown(socket.SHUT_WR)

    async def gone(self) -> None:
        """Return when the proxy has closed the connection; what it sends meanwhile is recorded."""
        while await self.receive():
            pass
        self._upstream.left.set()

    def close(self) -> None:
        """FIN."""
        self._sock.close()

    def reset(self) -> None:
        """RST."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()


Script = Callable[[UpstreamSide], Awaitable[None]]


def answering(answer: bytes) -> Script:
    """Give every request this answer."""

    async def script(side: UpstreamSide) -> None:
        while await side.request() is not None:
            await side.send(answer)

    return script


@dataclass
class RawUpstream:
    """Listens on loopback and plays a script on every connection. records: keeps what it receives. left: some script
    saw the proxy leave."""

    script: Script
    port: int = 0
    records: bool = True
    received: bytes = b""
    heads: list[bytes] = field(default_factory=list)
    num_connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, listening: socket.socket) -> None:
        """Accept for ever."""
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(listening)
            if sock.family == socket.AF_INET:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.num_connections += 1
            task = loop.create_task(self._play(sock))
            self.tasks.add(task)

    async def _play(self, sock: socket.socket) -> None:
        try:
            await self.script(UpstreamSide(sock, self))
        finally:
            sock.close()


@asynccontextmanager
async def raw_upstream(script: Script, listening: socket.socket | None = None) -> AsyncIterator[RawUpstream]:
    """An upstream on a free port, or on ``listening``; a script that failed fails the test."""
    listening = listening or listen()
    upstream = RawUpstream(script)
    if listening.family == socket.AF_INET:
        upstream.port = listening.getsockname()[1]
    server = asyncio.get_running_loop().create_task(upstream.serve(listening))
    try:
        yield upstream
    finally:
        for task in (server, *upstream.tasks):
            task.cancel()
        results = await asyncio.gather(server, *upstream.tasks, return_exceptions=True)
        listening.close()
        for result in results:
            if isinstance(result, Exception):
                raise result


def listen() -> socket.socket:
    """A socket that listens on a free port of loopback and does not block."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    listening.setblocking(False)
    return listening


@dataclass
class Answer:
    """One answer as a client sees it. ending: "kept" (complete, connection open), "fin" or "rst"."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes
    raw: bytes
    ending: str = "kept"

    def get(self, name: str) -> str | None:
        """The only value of a field; None if it is absent."""
        values = [value for key, value in self.fields if key.lower() == name.lower()]
        assert len(values) < 2, values
        return values[0] if values else None


class RawClient:
    """One connection to the proxy."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = b""

    async def send(self, data: bytes) -> None:
        """Send; a proxy that has closed already is what the answer will tell."""
        try:
            await asyncio.get_running_loop().sock_sendall(self.sock, data)
        except ConnectionError:
            return

    async def receive(self) -> bytes | None:
        """Some bytes; b"" for FIN, None for RST."""
        try:
            loop = asyncio.get_running_loop()
            return await asyncio.wait_for(loop.sock_recv(self.sock, 65536), WAIT_S)
        except ConnectionError:
            return None

    async def until(self, mark: bytes) -> bytes:
        """Everything up to and including ``mark``."""
        while mark not in self._buffer:
            data = await self.receive()
            assert data, f"the connection ended before {mark!r}: {self._buffer!r}"
            self._buffer += data
        found, mark, self._buffer = self._buffer.partition(mark)
        return found + mark

    async def rest(self) -> tuple[bytes, str]:
        """Everything until the connection ends, and whether by "fin" or "rst"."""
        while data := await self.receive():
            self._buffer += data
        found, self._buffer = self._buffer, b""
        return found, "rst" if data is None else "fin"

    async def answer(self, *, head_request: bool = False) -> Answer:
        """The next answer, read as its framing says; strict where a client would be confused."""
        raw = await self.until(b"\r\n\r\n")
        lines = raw[:-4].decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ")[1])
        fields = [(name, value) for name, _, value in (line.partition(": ") for line in lines[1:])]
        answer = Answer(status, fields, b"", raw)
        length, coding = answer.get("content-length"), answer.get("transfer-encoding")
        assert not (length and coding), raw
        if head_request or status in (204, 304) or status < 200:
            return answer
        if coding is not None:
            while size := int((line := await self.until(b"\r\n")), 16):
                chunk = await self.exactly(size + 2)
                answer.body += chunk[:-2]
                answer.raw += line + chunk
            answer.raw += line + await self.until(b"\r\n")
        elif length is not None:
            answer.body = await self.exactly(int(length))
            answer.raw += answer.body
        else:
            answer.body, answer.ending = await self.rest()
        return answer

    def taken(self) -> bytes:
        """What was received and not asked for yet."""
        found, self._buffer = self._buffer, b""
        return found

    async def exactly(self, size: int) -> bytes:
        """So many bytes."""
        while len(self._buffer) < size:
            data = await self.receive()
            assert data, f"the connection ended within a body: {self._buffer!r}"
            self._buffer += data
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def close(self) -> None:
        """FIN."""
        self.sock.close()

    def reset(self) -> None:
        """RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@dataclass
class Edge:
    """A running proxy worker with one listener."""

    worker: ProxyWorker
    port: int
    config: ProxyConfig
    clients: list[RawClient] = field(default_factory=list)

    async def connect(self, *, receive_buffer_bytes: int | None = None) -> RawClient:
        """A new client connection, closed with the edge."""
        sock = socket.socket()
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        client = RawClient(sock)
        self.clients.append(client)
        return client

    async def ask(self, raw: bytes, *, head_request: bool = False) -> Answer:
        """One request on a connection of its own."""
        client = await self.connect()
        await client.send(raw)
        return await client.answer(head_request=head_request)


@asynccontextmanager
async def edge(
    config: Mapping[str, Any],
    *,
    materials: Mapping[str, bytes] | None = None,
    access_log_fd: int | None = None,
    notify: Callable[[dict[str, Any]], None] | None = None,
    sweep_s: float = 0.02,
    shared: SharedTable | None = None,
) -> AsyncIterator[Edge]:
    """A worker with this configuration; its first listener gets a free port. sweep_s: between its sweeps. shared: with
    other workers."""
    with closing(listen()) as listening:
        port = listening.getsockname()[1]
        document = dict(config)
        document["listeners"] = [{**document.pop("listener", {}), "address": f"127.0.0.1:{port}"}]
        parsed = ProxyConfig.model_validate_json(json.dumps(document))
        worker = ProxyWorker(shared=shared, access_log_fd=access_log_fd, notify=notify, sweep_s=sweep_s)
        snapshot = await worker.build(parsed, materials or {}, {f"127.0.0.1:{port}": listening})
        await worker.commit(snapshot)
        running = Edge(worker, port, parsed)
        try:
            yield running
        finally:
            for client in running.clients:
                client.close()
            await worker.drain(0.0)


async def reload(running: Edge, config: Mapping[str, Any]) -> None:
    """Build and commit a configuration on the listener that is there."""
    document = {**config, "listeners": [{"address": f"127.0.0.1:{running.port}", **config.get("listener", {})}]}
    document.pop("listener", None)
    parsed = ProxyConfig.model_validate_json(json.dumps(document))
    await running.worker.commit(await running.worker.build(parsed, {}, {}))


def app(*ports: int, **upstream: Any) -> dict[str, Any]:
    """A configuration with one route for everything to servers on these ports."""
    servers = [f"http://127.0.0.1:{port}" for port in ports]
    return {"upstreams": {"app": {"servers": servers, **upstream}}, "routes": [{"to": "app"}]}


async def reached(event: asyncio.Event) -> None:
    """Wait for an event, with a limit."""
    await asyncio.wait_for(event.wait(), WAIT_S)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds, with a limit."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
