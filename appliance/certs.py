"""A local certificate authority, and the server certificate that it signs for this box.

Owns the profile of both (RFC 5280, strict enough for OpenSSL's X509_STRICT) and when they are made anew. The CA is
constrained to the box's own names and to private networks, so that a stolen CA key cannot speak for the rest of the
web. Time is handed in; files are written whole or not at all. Knows nothing of listeners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from appliance.atomic import NewFile, write_atomically
from appliance.hosts import Host, covers, permitted_subtrees, unique

CA_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=365)  # browsers accept 398, and scanners a year
RENEW_BEFORE = timedelta(days=30)
_BACKDATED = timedelta(hours=1)  # for clients whose clocks are behind


class CertificateError(Exception):
    """What is there cannot be used or extended; the message says what to do."""


@dataclass(frozen=True, slots=True)
class LocalCertificate:
    """Where the files are, and what this call made anew."""

    ca: Path
    cert: Path
    key: Path
    hosts: tuple[str, ...]
    expires_at: datetime
    made_ca: bool
    made_cert: bool


@dataclass(frozen=True, slots=True)
class _Pair:
    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def ensure_local(
    directory: Path, required: Sequence[Host], now: datetime, *, wanted: Sequence[Host] = ()
) -> LocalCertificate:
    """Makes sure that ``directory`` holds a CA and a certificate for the hosts that is good for 30 days from ``now``.

    wanted: hosts that are left out if the CA, once made, may not speak for them: the addresses of a box change.
    Reuses what is there and fits; makes the directory (mode 0700) if it is missing. Raises CertificateError if the CA
    there is damaged or may not speak for a required host, OSError if a file cannot be read or written.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca_files = directory / "ca.pem", directory / "ca.key"
    server_files = directory / "localhost.pem", directory / "localhost.key"

    ca = _read_pair(*ca_files)
    made_ca = ca is None or _ends_soon(ca.cert, now)
    if ca is None or made_ca:
        ca = _make_ca([*required, *wanted], now)
    outside = _outside(ca.cert, [*required, *wanted])
    if refused := [str(host) for host in required if host in outside]:
        raise CertificateError(
            f"the CA {ca_files[0]} may not speak for {', '.join(refused)}: it was made for other names. Remove it and "
            "its key to make a new one (clients must then trust the new one), or use another directory"
        )
    hosts = unique(host for host in (*required, *wanted) if host not in outside)

    server = _read_pair(*server_files, damaged_is_none=True)
    made_cert = server is None or made_ca or not _serves(server.cert, ca.cert, hosts, now)
    if server is None or made_cert:
        server = _make_server(ca, hosts, now)
    # All or none: a key without its certificate, or a CA that signed nothing, would only be found out later.
    write_atomically(
        *(_files_of(ca, *ca_files) if made_ca else ()), *(_files_of(server, *server_files) if made_cert else ())
    )
    return LocalCertificate(
        ca=ca_files[0],
        cert=server_files[0],
        key=server_files[1],
        hosts=tuple(str(host) for host in hosts),
        expires_at=server.cert.not_valid_after_utc,
        made_ca=made_ca,
        made_cert=made_cert,
    )


def _make_ca(hosts: Sequence[Host], now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    # Names of CAs must differ where a client trusts several: the key's own identifier goes into it.
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Headrace local CA {identifier.digest.hex()[:8]}")])
    constraints = x509.NameConstraints(permitted_subtrees=permitted_subtrees(hosts), excluded_subtrees=None)
    builder = (
        _builder(name, name, key, now, now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .add_extension(constraints, critical=True)
        .add_extension(identifier, critical=False)
    )
    return _Pair(builder.sign(key, hashes.SHA256()), key)


def _make_server(ca: _Pair, hosts: Sequence[Host], now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Headrace")])
    end = min(now + SERVER_LIFE, ca.cert.not_valid_after_utc)
    ca_identifier = ca.cert.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    names = x509.SubjectAlternativeName([host.general_name() for host in hosts])
    builder = (
        _builder(name, ca.cert.subject, key, now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_identifier), critical=False)
    )
    return _Pair(builder.sign(ca.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _BACKDATED)
        .not_valid_after(end)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _ends_soon(cert: x509.Certificate, now: datetime) -> bool:
    return cert.not_valid_after_utc - now < RENEW_BEFORE


def _serves(cert: x509.Certificate, ca: x509.Certificate, hosts: Sequence[Host], now: datetime) -> bool:
    try:
        cert.verify_directly_issued_by(ca)
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # of another CA, of another kind of key, or without names: all mean that it does not serve
        return False
    return not _ends_soon(cert, now) and {host.general_name() for host in hosts} <= set(names)


def _outside(ca: x509.Certificate, hosts: Sequence[Host]) -> set[Host]:
    """Those of the hosts that the CA may not speak for."""
    try:
        subtrees = ca.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees or ()
    except x509.ExtensionNotFound:
        return set()  # a CA that somebody put there; it may speak for every name
    return {host for host in hosts if not covers(subtrees, host)}


def _read_pair(cert_file: Path, key_file: Path, *, damaged_is_none: bool = False) -> _Pair | None:
    """The pair in the files; None if both are missing, or damaged ones count as none."""
    if not cert_file.exists() and not key_file.exists():
        return None
    try:
        cert = x509.load_pem_x509_certificate(cert_file.read_bytes())
        key = load_pem_private_key(key_file.read_bytes(), password=None)
    except (ValueError, TypeError, FileNotFoundError):
        key = None
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == cert.public_key():
        return _Pair(cert, key)
    if damaged_is_none:
        return None
    raise CertificateError(
        f"{cert_file} and {key_file} are not a CA certificate and its private key (EC, PEM): restore them from a copy, "
        "or remove both to make a new CA (clients must then trust the new one)"
    )


def _files_of(pair: _Pair, cert_file: Path, key_file: Path) -> tuple[NewFile, NewFile]:
    key_pem = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return NewFile(key_file, key_pem, 0o600), NewFile(cert_file, pair.cert.public_bytes(Encoding.PEM), 0o644)
