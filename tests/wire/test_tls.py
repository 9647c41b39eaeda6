"""TLS on both sides: what is spoken, which certificate is shown, and what an end without close_notify means."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest

from proxy.worker import BuildError
from tests.wire.certificates import certificate
from tests.wire.harness import OK, WAIT_S, Edge, answering, app, edge, listen, raw_upstream

PAIRS = {"a": certificate("a.example", "127.0.0.1"), "b": certificate("*.b.example")}
MATERIALS = {
    f"/{name}.{kind}": pem for name, pair in PAIRS.items() for kind, pem in zip(("pem", "key"), pair, strict=True)
}
TLS = {"tls": {"certificates": [{"cert": f"/{name}.pem", "key": f"/{name}.key"} for name in PAIRS]}}


def client_context(*names: str) -> ssl.SSLContext:
    """A context that trusts the test certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name in names or PAIRS:
        context.load_verify_locations(cadata=PAIRS[name][0].decode())
    return context


async def ask(running: Edge, name: str, request: bytes, context: ssl.SSLContext) -> tuple[bytes, ssl.SSLObject]:
    """(all that is answered, the TLS connection)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port, ssl=context, server_hostname=name)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), WAIT_S)
    connection = writer.get_extra_info("ssl_object")
    writer.close()
    with suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    return answer, connection


CLOSE = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("name", ["a.example", "x.b.example", "127.0.0.1"])
async def test_the_certificate_is_chosen_by_name_and_the_request_served(name: str) -> None:
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": TLS}, materials=MATERIALS) as running,
    ):
        context = client_context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        answer, connection = await ask(running, name, CLOSE, context)
        assert answer.endswith(b"\r\n\r\nok")
        assert connection.selected_alpn_protocol() == "http/1.1"
        assert b"X-Forwarded-Proto: https" in upstream.heads[0]


async def test_an_unknown_name_gets_the_first_certificate() -> None:
    async with edge({**app(1), "listener": TLS}, materials=MATERIALS) as running:
        with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'other\.example'"):
            await ask(running, "other.example", CLOSE, client_context())


async def test_old_versions_are_not_spoken() -> None:
    async with edge({**app(1), "listener": TLS}, materials=MATERIALS) as running:
        context = client_context()
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(running, "a.example", CLOSE, context)


async def test_plain_http_on_a_tls_port_is_closed() -> None:
    async with edge({**app(1), "listener": TLS}, materials=MATERIALS) as running:
        client = await running.connect()
        await client.send(CLOSE)
        assert b"HTTP" not in (await client.rest())[0]


@pytest.mark.parametrize(
    ("materials", "message"),
    [
        ({**MATERIALS, "/a.pem": b"nothing"}, "/a.pem"),
        ({**MATERIALS, "/a.key": PAIRS["b"][1]}, "do not belong together"),
        ({k: v for k, v in MATERIALS.items() if k != "/a.key"}, "/a.key"),
    ],
)
async def test_a_certificate_that_cannot_be_used_is_named(materials: dict[str, bytes], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        async with edge({**app(1), "listener": TLS}, materials=materials):
            pass


async def test_http_is_redirected_with_method_host_path_and_query() -> None:
    async with edge({**app(1), "listener": {"redirect": "https"}}) as running:
        answer = await running.ask(b"POST /a/../b?c=%20d HTTP/1.1\r\nHost: a.example:80\r\nContent-Length: 2\r\n\r\nhi")
        assert answer.status == 308
        assert answer.get("location") == "https://a.example/b?c=%20d"


async def test_a_redirect_to_https_comes_before_the_policies_of_its_route() -> None:
    policies = {"access": {"allow": ["10.0.0.0/8"]}}
    config = {**app(1), "routes": [{"to": "app", "policies": policies}], "listener": {"redirect": "https"}}
    async with edge(config) as running:
        assert (await running.ask(b"GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n")).status == 308


@asynccontextmanager
async def tls_upstream(answer: bytes, *, notify: bool) -> AsyncIterator[int]:
    """A TLS server in a thread; it answers each connection once and ends it with or without close_notify."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with MemoryFiles(PAIRS["a"]) as (cert, key):
        context.load_cert_chain(cert, key)
    listening = listen()
    listening.settimeout(WAIT_S)

    def serve() -> None:
        with suppress(OSError):
            while True:
                sock, _ = listening.accept()
                sock.settimeout(WAIT_S)
                with suppress(ssl.SSLError, OSError), closing(context.wrap_socket(sock, server_side=True)) as tls:
                    tls.recv(65536)
                    tls.sendall(answer)
                    if notify:
                        tls.unwrap()

    thread = asyncio.get_running_loop().run_in_executor(None, serve)
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        await thread


class MemoryFiles:
    """A pair of PEM texts as paths."""

    def __init__(self, pair: tuple[bytes, bytes]) -> None:
        self._pair = pair

    def __enter__(self) -> list[str]:
        self._descriptors = [os.memfd_create("pem") for _ in self._pair]
        for descriptor, pem in zip(self._descriptors, self._pair, strict=True):
            os.write(descriptor, pem)
        return [f"/proc/self/fd/{descriptor}" for descriptor in self._descriptors]

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


def secure_app(port: int, **tls: Any) -> dict[str, Any]:
    """A route for everything to a TLS server."""
    config = app(port, tls=tls)
    config["upstreams"]["app"]["servers"] = [f"https://127.0.0.1:{port}"]
    return config


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_an_upstream_is_verified() -> None:
    async with tls_upstream(OK, notify=True) as port:
        async with edge(secure_app(port, ca="/a.pem"), materials=MATERIALS) as running:
            assert (await running.ask(GET)).body == b"ok"
        async with edge(secure_app(port, ca="/b.pem"), materials=MATERIALS) as running:
            answer = await running.ask(GET)
            assert answer.status == 502
            assert b"certificate" in answer.body
        async with edge(secure_app(port, verify=False)) as running:
            assert (await running.ask(GET)).status == 200
        async with edge(secure_app(port, ca="/a.pem", server_name="other.example"), materials=MATERIALS) as running:
            assert (await running.ask(GET)).status == 502


OPEN = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 40


@pytest.mark.parametrize("notify", [True, False])
async def test_C05_f_a_tls_answer_without_length_is_complete_only_with_close_notify(notify: bool) -> None:
    async with (
        tls_upstream(OPEN, notify=notify) as port,
        edge(secure_app(port, ca="/a.pem"), materials=MATERIALS) as running,
    ):
        client = await running.connect()
        await client.send(GET)
        await client.until(b"x" * 40)
        if notify:
            assert await client.until(b"0\r\n\r\n") == b"\r\n0\r\n\r\n"
        else:
            assert await client.rest() == (b"\r\n", "rst")
