"""Certificates are renewed by a reload, in all workers, under connections that stay; a wrong pair changes nothing."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.appliance import TIMEOUT_S, Appliance

NO_ROUTES = """
listeners:
  - address: 127.0.0.1:{port}
    tls: {{certificates: [{{cert: {tls}/localhost.pem, key: {tls}/localhost.key}}]}}
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path, NO_ROUTES, tmp_path).start()
    yield appliance
    assert appliance.stop() == 0, appliance.log


def shown(appliance: Appliance) -> bytes | None:
    """The certificate that a new client sees, DER."""
    with (
        socket.create_connection(("127.0.0.1", appliance.port), TIMEOUT_S) as sock,
        appliance.trust.wrap_socket(sock, server_hostname="localhost") as tls,
    ):
        return tls.getpeercert(binary_form=True)


def reload(appliance: Appliance) -> tuple[int, str]:
    done = appliance.run("reload", "--wait", "-c", str(appliance.file), check=False)
    return done.returncode, done.stderr


def test_G04_a_renewed_certificate_is_shown_after_a_reload_and_a_wrong_one_is_not(running: Appliance) -> None:
    client = http.client.HTTPSConnection("localhost", running.port, context=running.trust, timeout=TIMEOUT_S)
    client.request("GET", "/")
    assert client.getresponse().read()
    connection, before = client.sock, shown(running)

    for name in ("localhost.pem", "localhost.key"):
        (running.tls / name).unlink()
    running.run("cert", "local", "--dir", str(running.tls))
    assert shown(running) == before
    assert reload(running) == (0, "")
    after = shown(running)
    assert after != before
    client.request("GET", "/")
    assert client.getresponse().read()
    assert client.sock is connection

    (running.tls / "localhost.key").write_bytes((running.tls / "ca.key").read_bytes())
    code, said = reload(running)
    assert code != 0
    assert "does not belong to the certificate" in said
    assert shown(running) == after
    client.close()
