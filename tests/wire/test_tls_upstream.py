"""TLS towards upstreams: whom we believe, who we say we are, and what an end without close_notify means."""

from __future__ import annotations

import json
import ssl

import pytest

from proxy.config_routes import ProxyConfig
from proxy.worker import BuildError
from tests.wire.certificates import certificate
from tests.wire.harness import OK, edge
from tests.wire.tls import (
    CLOSE,
    MATERIALS,
    PAIRS,
    Play,
    der,
    materials,
    once,
    read_head,
    secure_app,
    server_context,
    tls_upstream,
)

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
SERVER = server_context(PAIRS["a"])
BODY = b"x" * 40


async def test_an_upstream_is_verified() -> None:
    async with tls_upstream(SERVER, once(OK, notify=True)) as port:
        async with edge(secure_app(port, ca="/a.pem"), materials=MATERIALS) as running:
            assert (await running.ask(GET)).body == b"ok"
        async with edge(secure_app(port, ca="/b.pem"), materials=MATERIALS) as running:
            answer = await running.ask(GET)
            assert answer.status == 502
            assert b"certificate" in answer.body
        async with edge(secure_app(port), materials=MATERIALS) as running:  # by the system's authorities
            assert (await running.ask(GET)).status == 502
        async with edge(secure_app(port, verify=False)) as running:
            assert (await running.ask(GET)).status == 200
        async with edge(secure_app(port, ca="/a.pem", server_name="other.example"), materials=MATERIALS) as running:
            assert (await running.ask(GET)).status == 502


async def test_an_upstream_is_asked_for_its_name() -> None:
    asked: list[str | None] = []
    context = server_context(PAIRS["a"])
    context.sni_callback = lambda _, name, __: asked.append(name)
    async with tls_upstream(context, once(OK, notify=True)) as port:
        async with edge(secure_app(port, ca="/a.pem", server_name="a.example"), materials=MATERIALS) as running:
            assert (await running.ask(GET)).status == 200
        config = secure_app(port, verify=False)
        config["upstreams"]["app"]["servers"] = [f"https://localhost:{port}"]
        async with edge(config) as running:
            assert (await running.ask(GET)).status == 200
    assert asked == ["a.example", "localhost"]


def asking_for_a_certificate() -> ssl.SSLContext:
    context = server_context(PAIRS["a"])
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=PAIRS["b"][0].decode())
    return context


async def test_an_upstream_that_asks_for_a_certificate_is_shown_ours() -> None:
    shown: list[object] = []
    answer = once(OK, notify=True)

    def play(tls: ssl.SSLSocket) -> None:
        shown.append(tls.getpeercert(binary_form=True))
        answer(tls)

    async with tls_upstream(asking_for_a_certificate(), play) as port:
        client = {"cert": "/b.pem", "key": "/b.key"}
        async with edge(secure_app(port, ca="/a.pem", client=client), materials=MATERIALS) as running:
            assert (await running.ask(GET)).body == b"ok"
        async with edge(secure_app(port, ca="/a.pem"), materials=MATERIALS) as running:
            assert (await running.ask(GET)).status == 502
    assert shown == [ssl.PEM_cert_to_DER_cert(PAIRS["b"][0].decode())]


async def test_a_client_certificate_that_cannot_be_used_is_named() -> None:
    with pytest.raises(BuildError, match=r"upstreams\.app: /a\.pem and /b\.key do not belong together"):
        async with edge(secure_app(1, client={"cert": "/a.pem", "key": "/b.key"}), materials=MATERIALS):
            pass


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n28\r\n" + BODY + b"\r\n"
LENGTH = HEAD + b"Content-Length: %d\r\n\r\n" + BODY


@pytest.mark.parametrize("notify", [True, False])
async def test_C05_f_a_tls_answer_without_length_is_complete_only_with_close_notify(notify: bool) -> None:
    async with (
        tls_upstream(SERVER, once(HEAD + b"\r\n" + BODY, notify=notify)) as port,
        edge(secure_app(port, ca="/a.pem"), materials=MATERIALS) as running,
    ):
        client = await running.connect()
        await client.send(GET)
        await client.until(BODY)
        if notify:
            assert await client.until(b"0\r\n\r\n") == b"\r\n0\r\n\r\n"
        else:
            assert await client.rest() == (b"\r\n", "rst")


@pytest.mark.parametrize("notify", [True, False])
@pytest.mark.parametrize("answer", [CHUNKED, LENGTH % 41], ids=["chunked", "length"])
async def test_C05_f_a_framed_answer_that_ends_early_is_broken_with_and_without_close_notify(
    answer: bytes, notify: bool
) -> None:
    async with (
        tls_upstream(SERVER, once(answer, notify=notify)) as port,
        edge(secure_app(port, ca="/a.pem"), materials=MATERIALS) as running,
    ):
        client = await running.connect()
        await client.send(GET)
        await client.until(BODY)
        assert await client.rest() in ((b"\r\n", "rst"), (b"", "rst"))


@pytest.mark.parametrize("notify", [True, False])
@pytest.mark.parametrize("answer", [CHUNKED + b"0\r\n\r\n", LENGTH % 40], ids=["chunked", "length"])
async def test_C05_f_a_framed_answer_that_is_whole_needs_no_close_notify(answer: bytes, notify: bool) -> None:
    async with (
        tls_upstream(SERVER, once(answer, notify=notify)) as port,
        edge(secure_app(port, ca="/a.pem"), materials=MATERIALS) as running,
    ):
        assert (await running.ask(GET)).body == BODY


def whole(size: int, *, framed: bool) -> Play:
    """An answer of ``size`` bytes and an orderly end right behind it."""
    length = b"Content-Length: %d\r\n" % size if framed else b""
    return once(HEAD + length + b"Connection: close\r\n\r\n" + b"x" * size, notify=True)


@pytest.mark.parametrize("framed", [True, False])
async def test_a_slow_client_gets_all_of_an_answer_whose_upstream_has_left(framed: bool) -> None:
    size = 1 << 20
    async with (
        tls_upstream(SERVER, whole(size, framed=framed)) as port,
        edge(secure_app(port, ca="/a.pem"), materials=MATERIALS) as running,
    ):
        client = await running.connect(receive_buffer_bytes=4096)
        await client.send(CLOSE)
        answer = await client.answer()
        assert (answer.status, len(answer.body)) == (200, size)


async def test_a_renewed_client_certificate_is_shown_on_connections_made_after_the_reload() -> None:
    shown: list[object] = []
    context = server_context(PAIRS["a"])
    context.verify_mode = ssl.CERT_REQUIRED
    new = certificate("c.example")
    for cert, _ in (PAIRS["b"], new):
        context.load_verify_locations(cadata=cert.decode())

    def play(tls: ssl.SSLSocket) -> None:
        shown.append(tls.getpeercert(binary_form=True))
        while read_head(tls):
            tls.sendall(OK)

    async with tls_upstream(context, play) as port:
        config = secure_app(port, ca="/a.pem", client={"cert": "/b.pem", "key": "/b.key"})
        async with edge(config, materials=MATERIALS) as running:
            assert (await running.ask(GET)).body == b"ok"
            assert (await running.ask(GET)).body == b"ok"
            document = {**config, "listeners": [{"address": f"127.0.0.1:{running.port}"}]}
            parsed = ProxyConfig.model_validate_json(json.dumps(document))
            await running.worker.commit(await running.worker.build(parsed, materials(b=new), {}))
            assert (await running.ask(GET)).body == b"ok"
    assert shown == [der(PAIRS["b"]), der(new)]
