"""What a scanner says: Mozilla's "intermediate" (sslyze), and the curves without it (openssl)."""

from __future__ import annotations

import asyncio
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from appliance import certs
from appliance.hosts import parse_host
from proxy.curves import limit_curves
from tests.wire.certificates import certificate
from tests.wire.harness import OK, WAIT_S, answering, app, edge, raw_upstream
from tests.wire.tls import CLOSE, materials

#: sslyze brings an OpenSSL and a pydantic of its own; `install.sh test` gives it an environment and names it here.
SSLYZE = os.environ.get("SSLYZE") or shutil.which("sslyze")
PAIR = certificate("localhost", "a.example")
LISTENER = {"tls": {"certificates": [{"cert": "/a.pem", "key": "/a.key"}]}}


async def output_of(*command: str | Path, stdin: bytes = b"", limit_s: float = WAIT_S) -> str:
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(stdin), limit_s)
    return output.decode()


@pytest.mark.skipif(SSLYZE is None, reason="needs sslyze, as `install.sh test` installs it, in $SSLYZE")
async def test_sslyze_finds_mozillas_intermediate_configuration(tmp_path: Path) -> None:
    # It judges the certificate, too: by a chain that is verified strictly, for no longer than a year.
    made = certs.ensure_local(tmp_path, [parse_host("localhost")], datetime.now(UTC))
    pair = made.cert.read_bytes(), made.key.read_bytes()
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": LISTENER}, materials=materials(a=pair)) as running,
    ):
        assert SSLYZE is not None
        trust = f"--certinfo_ca_file={made.ca}"
        found = await output_of(
            SSLYZE, "--mozilla_config=intermediate", trust, f"localhost:{running.port}", limit_s=120.0
        )
    assert "OK - Compliant" in found, found[-2000:]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")
@pytest.mark.parametrize(
    ("curve", "spoken"), [("X25519", True), ("P-256", True), ("P-384", True), ("P-521", False), ("X448", False)]
)
async def test_only_the_curves_of_the_guideline_are_spoken(curve: str, spoken: bool) -> None:
    if not limit_curves():
        pytest.skip("this Python has no way to choose curves")
    async with (
        raw_upstream(answering(OK)) as upstream,
        edge({**app(upstream.port), "listener": LISTENER}, materials=materials(a=PAIR)) as running,
    ):
        connect = f"127.0.0.1:{running.port}"
        found = await output_of("openssl", "s_client", "-connect", connect, "-groups", curve, "-ign_eof", stdin=CLOSE)
    assert ("HTTP/1.1 200 OK" in found) is spoken
    assert ("Cipher is (NONE)" in found) is not spoken
