"""Sessions are resumed where their key is, and everywhere else a client begins anew without noticing (openssl)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proxy.tls import TICKET_KEY_LIFE_S, ListenerTls
from tests.wire.certificates import certificate
from tests.wire.harness import OK, WAIT_S, Edge, answering, app, edge, raw_upstream
from tests.wire.test_tls_reload import build
from tests.wire.tls import CLOSE, MATERIALS, TLS, materials

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")
VERSIONS = pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])


async def visit(port: int, version: str, *session: str | Path, name: str = "a.example") -> str:
    """Have openssl ask once; "New" or "Reused", as it says of the handshake, if the answer was right."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-servername", name, version, "-ign_eof"]
    process = await asyncio.create_subprocess_exec(
        *command,
        *map(str, session),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await asyncio.wait_for(process.communicate(CLOSE), WAIT_S)
    assert b"HTTP/1.1 200 OK" in output, output
    [word] = [line.split(b",")[0] for line in output.splitlines() if line.startswith((b"New, TLS", b"Reused, TLS"))]
    return word.decode()


@asynccontextmanager
async def two_workers() -> AsyncIterator[tuple[Edge, Edge, int]]:
    """Two workers with one configuration, and their upstream's port. They hold no key in common."""
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": TLS}, materials=MATERIALS) as one,
        edge({**app(upstream.port), "listener": TLS}, materials=MATERIALS) as other,
    ):
        yield one, other, upstream.port


@VERSIONS
async def test_G07_a_session_is_resumed_also_after_the_certificate_changed(version: str, tmp_path: Path) -> None:
    session = tmp_path / "session.pem"
    async with two_workers() as (one, _, upstream_port):
        assert await visit(one.port, version, "-sess_out", session) == "New"
        assert await visit(one.port, version, "-sess_in", session) == "Reused"
        new = materials(a=certificate("a.example", edition=2))
        await one.worker.commit(await build(one, upstream_port, new))
        assert await visit(one.port, version, "-sess_in", session) == "Reused"


@VERSIONS
async def test_G07_another_worker_falls_back_to_a_full_handshake(version: str, tmp_path: Path) -> None:
    session = tmp_path / "session.pem"
    async with two_workers() as (one, other, _):
        assert await visit(one.port, version, "-sess_out", session) == "New"
        assert await visit(other.port, version, "-sess_in", session) == "New"


@VERSIONS
async def test_G07_the_key_of_the_tickets_is_made_anew_every_day(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = tmp_path / "session.pem"
    now = [0.0]
    monkeypatch.setattr(ListenerTls.__init__, "__kwdefaults__", {"clock": lambda: now[0]})
    async with two_workers() as (one, _, _):
        assert await visit(one.port, version, "-sess_out", session) == "New"
        now[0] = TICKET_KEY_LIFE_S - 1
        assert await visit(one.port, version, "-sess_in", session) == "Reused"
        now[0] = TICKET_KEY_LIFE_S
        assert await visit(one.port, version, "-sess_in", session) == "New"


@VERSIONS
async def test_G02_a_session_is_no_way_to_a_name_that_is_refused(version: str, tmp_path: Path) -> None:
    session = tmp_path / "session.pem"
    async with two_workers() as (one, _, upstream_port):
        assert await visit(one.port, version, "-sess_out", session) == "New"
        strict = {"tls": {"certificates": [{"cert": "/b.pem", "key": "/b.key"}], "strict": True}}
        await one.worker.commit(await build(one, upstream_port, MATERIALS, strict))
        with pytest.raises(AssertionError):
            await visit(one.port, version, "-sess_in", session)
