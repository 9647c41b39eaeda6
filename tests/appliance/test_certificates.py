"""Certificates before they are used: every way in which a pair cannot be, told with the file at fault (G04)."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from appliance.config import load
from appliance.config.certificates import why_not_now, why_not_pair
from tests.appliance.config_files import LISTENER, ConfigFiles
from tests.wire.certificates import certificate

NOW = datetime.now(UTC)
CHAIN, KEY = certificate("a.example")
OTHER_CHAIN, OTHER_KEY = certificate("b.example")
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | dsa.DSAPrivateKey


def pair_of(key: Key) -> tuple[bytes, bytes]:
    """A certificate for a key of some kind."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a.example")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).serial_number(1)
    builder = builder.not_valid_before(NOW).not_valid_after(NOW + timedelta(days=1)).public_key(key.public_key())
    made = builder.sign(key, hashes.SHA256())
    return made.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def locked(key: bytes) -> bytes:
    """The key with a passphrase."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )


def test_a_chain_and_its_key_are_a_pair() -> None:
    assert why_not_pair(CHAIN, KEY) is None
    assert why_not_pair(CHAIN + OTHER_CHAIN, KEY) is None
    assert why_not_pair(*pair_of(rsa.generate_private_key(65537, 2048))) is None


@pytest.mark.parametrize(
    ("chain", "key", "part", "message"),
    [
        (b"", KEY, "cert", "holds no certificate"),
        (CHAIN[:200], KEY, "cert", "breaks off in the middle"),
        (CHAIN + OTHER_CHAIN[:200], KEY, "cert", "breaks off in the middle"),
        (CHAIN, KEY[:60], "key", "breaks off in the middle"),
        (CHAIN, b"", "key", "holds no private key"),
        (CHAIN, locked(KEY), "key", "is encrypted"),
        (CHAIN, OTHER_KEY, "key", "does not belong to the certificate"),
        (OTHER_CHAIN + CHAIN, KEY, "key", "does not belong to the certificate"),
    ],
)
def test_G04_what_is_no_pair_is_told(chain: bytes, key: bytes, part: str, message: str) -> None:
    why = why_not_pair(chain, key)
    assert why is not None
    assert (why.part, why.message[: len(message)]) == (part, message)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (rsa.generate_private_key(65537, 1024), "has an RSA key of 1024 bits; expected 2048 or more"),
        (ec.generate_private_key(ec.SECP256K1()), "has a key on the curve secp256k1; expected P-256"),
        (dsa.generate_private_key(2048), "has a key of a kind that TLS does not use"),
    ],
    ids=["short", "odd curve", "DSA"],
)
def test_keys_that_clients_refuse_are_told(key: Key, message: str) -> None:
    why = why_not_pair(*pair_of(key))
    assert why is not None
    assert (why.part, why.message[: len(message)]) == ("cert", message)


def test_the_time_of_a_certificate_is_told() -> None:
    assert why_not_now(CHAIN, NOW) is None
    assert (why_not_now(CHAIN, NOW + timedelta(days=2)) or "").startswith("expired on ")
    assert (why_not_now(CHAIN, NOW - timedelta(days=2)) or "").startswith("is not valid before ")


TLS = "listeners: [{address: '127.0.0.1:443', tls: {certificates: [{cert: a.pem, key: a.key}]}}]\n"


def test_G04_an_expired_certificate_is_refused_by_check_and_reload_and_served_at_the_start(place: ConfigFiles) -> None:
    chain, key = certificate("a.example", days=(-9, -2))
    place.file("a.pem", chain)
    place.file("a.key", key)
    [problem] = place.problems(TLS)
    assert problem.startswith("headrace.yaml:1:68: listeners[0].tls.certificates[0].cert: a.pem expired on ")
    [warning] = load(place.file("headrace.yaml", TLS), at_start=True).warnings
    assert warning.message == problem.partition("].cert: ")[2]
    assert place.certificate("a.pem", "a.key") is None
    assert place.load(TLS).warnings == ()


def test_G04_a_pair_behind_links_is_read_through_them(place: ConfigFiles) -> None:
    for edition in ("1", "2"):
        chain, key = certificate("a.example", edition=int(edition))
        place.file(f"archive/{edition}.pem", chain)
        place.file(f"archive/{edition}.key", key)
        for kind in ("pem", "key"):
            os.symlink(f"archive/{edition}.{kind}", place.root / "next")
            os.replace(place.root / "next", place.root / f"a.{kind}")
            if edition == "2" and kind == "pem":
                [problem] = place.problems(TLS)
                assert "does not belong to the certificate" in problem
        assert place.load(TLS).materials["a.pem"] == chain


def test_the_certificate_that_we_show_to_an_upstream_is_checked(place: ConfigFiles) -> None:
    text = LISTENER + "upstreams: {u: {servers: ['https://a'], tls: {client: {cert: c.pem, key: c.key}}}}\n"
    place.file("c.pem", CHAIN)
    place.file("c.key", KEY)
    assert set(place.load(text).materials) == {"c.pem", "c.key"}
    place.file("c.key", OTHER_KEY)
    [problem] = place.problems(text)
    assert "upstreams.u.tls.client.key: does not belong to the certificate" in problem
