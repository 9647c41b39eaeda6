"""The local CA and its certificates: strict clients accept them, and nothing is made anew without need."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from appliance.certs import CertificateError, LocalCertificate, ensure_local
from appliance.hosts import parse_host

NOW = datetime.now(UTC)
NAMES = ("localhost", "127.0.0.1", "::1", "ai.example.com", "203.0.113.7")


def make(directory: Path, names: Sequence[str] = NAMES, now: datetime = NOW) -> LocalCertificate:
    return ensure_local(directory, [parse_host(name) for name in names], now)


def handshake(made: LocalCertificate, name: str) -> None:
    """A TLS handshake in memory by a client that knows only the CA. Raises ssl.SSLError if it refuses."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(made.cert, made.key)
    client_context = ssl.create_default_context(cafile=str(made.ca))
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(down, up, server_hostname=name)
    server = server_context.wrap_bio(up, down, server_side=True)
    waiting = [client, server]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)


@pytest.mark.parametrize("name", NAMES)
def test_a_strict_client_accepts_every_name(tmp_path: Path, name: str) -> None:
    handshake(make(tmp_path / "tls"), name)


def test_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(make(tmp_path), "other.example.com")


def test_the_ca_cannot_speak_for_the_rest_of_the_web(tmp_path: Path) -> None:
    made = make(tmp_path, ["localhost"])
    with pytest.raises(CertificateError, match=r"may not speak for bank\.example\.com"):
        make(tmp_path, ["localhost", "bank.example.com"])
    constraints = x509.load_pem_x509_certificate(made.ca.read_bytes()).extensions.get_extension_for_class(
        x509.NameConstraints
    )
    assert constraints.critical


def test_private_names_and_addresses_may_come_later(tmp_path: Path) -> None:
    make(tmp_path, ["localhost"])
    made = make(tmp_path, ["localhost", "box.local", "192.168.7.7", "fd00::7"])
    assert (made.made_ca, made.made_cert) == (False, True)
    handshake(made, "box.local")
    handshake(made, "192.168.7.7")


def test_an_address_of_the_box_that_changed_is_left_out(tmp_path: Path) -> None:
    required, (old, new) = [parse_host("localhost")], (parse_host("2001:db9::1"), parse_host("2001:db9::2"))
    assert ensure_local(tmp_path, required, NOW, wanted=[old]).hosts == ("localhost", "2001:db9::1")
    changed = ensure_local(tmp_path, required, NOW, wanted=[new])
    assert (changed.made_ca, changed.hosts) == (False, ("localhost",))
    handshake(changed, "localhost")


def test_what_fits_is_kept_byte_for_byte(tmp_path: Path) -> None:
    make(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    made = make(tmp_path, NAMES[:2])
    assert (made.made_ca, made.made_cert) == (False, False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_lives_and_renewals(tmp_path: Path) -> None:
    made = make(tmp_path)
    assert made.expires_at - NOW.replace(microsecond=0) == timedelta(days=365)
    assert not make(tmp_path, now=NOW + timedelta(days=334)).made_cert
    renewed = make(tmp_path, now=NOW + timedelta(days=336))
    assert (renewed.made_ca, renewed.made_cert) == (False, True)
    late = make(tmp_path, now=NOW + timedelta(days=3600))
    assert (late.made_ca, late.made_cert) == (False, True)
    assert late.expires_at - NOW.replace(microsecond=0) == timedelta(days=3650)  # never beyond its CA
    assert make(tmp_path, now=NOW + timedelta(days=3630)).made_ca


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = make(tmp_path / "tls")
    finally:
        os.umask(before)
    assert made.key.stat().st_mode & 0o777 == 0o600
    assert made.ca.with_suffix(".key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", ["cert", "key"])
def test_a_damaged_server_certificate_is_made_anew(tmp_path: Path, damage: str) -> None:
    getattr(make(tmp_path), damage).write_text("half")
    made = make(tmp_path)
    assert (made.made_ca, made.made_cert) == (False, True)
    handshake(made, "localhost")


@pytest.mark.parametrize("name", ["ca.pem", "ca.key"])
def test_a_damaged_ca_is_never_replaced_silently(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    (tmp_path / name).write_text("half")
    with pytest.raises(CertificateError, match="restore them from a copy, or remove both"):
        make(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CertificateError, match="restore them from a copy, or remove both"):
        make(tmp_path)


def test_a_certificate_of_another_ca_is_made_anew(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "ca.pem").unlink()
    (tmp_path / "ca.key").unlink()
    made = make(tmp_path)
    assert made.made_ca
    handshake(made, "localhost")
