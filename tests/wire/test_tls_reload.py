"""Certificates change under way: at the commit, whole, and no connection breaks, no handshake fails."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

import pytest

from proxy.build import Snapshot
from proxy.config_routes import ProxyConfig
from proxy.worker import BuildError
from tests.wire.certificates import certificate
from tests.wire.harness import OK, Edge, answering, app, edge, raw_upstream
from tests.wire.tls import MATERIALS, PAIRS, TLS, Pair, client_context, der, materials, tls_client

NEW: Pair = certificate("a.example", edition=2)
OTHER: Pair = certificate("c.example")


async def build(running: Edge, port: int, files: dict[str, bytes], listener: dict[str, Any] = TLS) -> Snapshot:
    """A snapshot with other files for the listener that is there."""
    document = {**app(port), "listeners": [{"address": f"127.0.0.1:{running.port}", **listener}]}
    return await running.worker.build(ProxyConfig.model_validate_json(json.dumps(document)), files, {})


async def shown(running: Edge, *trusted: Pair) -> bytes:
    """The certificate that a new client sees."""
    async with tls_client(running, context=client_context(*trusted)) as client:
        return client.shown


async def test_a_commit_shows_the_new_certificate_and_keeps_every_connection() -> None:
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": TLS}, materials=MATERIALS) as running,
        tls_client(running) as idle,
    ):
        assert (await idle.ask()).endswith(b"ok")
        snapshot = await build(running, upstream.port, materials(a=NEW))
        assert await shown(running) == der(PAIRS["a"])
        await running.worker.commit(snapshot)
        assert await shown(running, NEW) == der(NEW)
        assert (await idle.ask()).endswith(b"ok")
        assert idle.shown == der(PAIRS["a"])


async def test_what_is_discarded_was_never_shown() -> None:
    async with edge({**app(1), "listener": TLS}, materials=MATERIALS) as running:
        running.worker.discard(await build(running, 1, materials(a=NEW)))
        assert await shown(running) == der(PAIRS["a"])


async def test_names_strictness_and_the_number_of_certificates_change_under_way() -> None:
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": TLS}, materials=MATERIALS) as running,
        tls_client(running) as idle,
    ):
        listener = {"tls": {"certificates": [{"cert": "/c.pem", "key": "/c.key"}], "strict": True}}
        await running.worker.commit(await build(running, upstream.port, materials(c=OTHER), listener))
        async with tls_client(running, "c.example", client_context(OTHER)) as client:
            assert client.shown == der(OTHER)
        with pytest.raises(OSError, match="UNRECOGNIZED_NAME"):
            await shown(running)
        assert (await idle.ask()).endswith(b"ok")


HALF = {**MATERIALS, "/a.pem": NEW[0]}  # the certificate was replaced, the key will be in two seconds


@pytest.mark.parametrize(
    "files",
    [HALF, {**HALF, "/a.pem": NEW[0][:200]}, {**HALF, "/a.key": NEW[1][:100]}, {**HALF, "/a.pem": b""}],
    ids=["mismatched", "half a certificate", "half a key", "empty"],
)
async def test_G04_a_pair_that_is_being_written_changes_nothing(files: dict[str, bytes]) -> None:
    async with edge({**app(1), "listener": TLS}, materials=MATERIALS) as running:
        with pytest.raises(BuildError, match=r"listeners\.0\.tls: /a\.pem"):
            await build(running, 1, files)
        assert await shown(running) == der(PAIRS["a"])


async def test_G04_no_handshake_fails_while_certificates_change() -> None:
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": TLS}, materials=MATERIALS) as running,
    ):
        context = client_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # both certificates have one subject: OpenSSL would try only one of them
        seen: set[bytes] = set()

        async def visit() -> None:
            async with tls_client(running, context=context) as client:
                assert (await client.ask()).endswith(b"ok")
                seen.add(client.shown)

        for files in (materials(a=NEW), MATERIALS, materials(a=NEW)):
            visits = asyncio.gather(*(visit() for _ in range(10)))
            await asyncio.sleep(0)  # the first of them are under way
            await running.worker.commit(await build(running, upstream.port, files))
            await visits
        assert seen == {der(PAIRS["a"]), der(NEW)}
