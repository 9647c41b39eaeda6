"""The certificates of one listener: contexts made of PEM bytes, found by the name that a client asks for.

Owns which certificate is shown to whom, and what a context with a certificate speaks besides. Reads no file, and a
table never changes: a listener that gets other certificates is given another table (``proxy.tls``).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from cryptography import x509
from cryptography.x509.oid import NameOID

from proxy.config import Certificate, Materials, Tls

#: TLS 1.2 only with forward secrecy and authenticated encryption: Mozilla's "intermediate" list (version 5.7) without
#: finite-field Diffie-Hellman, which no client of today needs. TLS 1.3 has a list of its own, all of it good.
CIPHERS = ":".join(
    f"ECDHE-{key}-{cipher}"
    for cipher in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")
    for key in ("ECDSA", "RSA")
)


@dataclass(frozen=True, slots=True, eq=False)
class CertificateTable:
    """default: shown to clients that name no host, or one that is not in the table; None: these are refused."""

    by_name: Mapping[str, ssl.SSLContext]
    default: ssl.SSLContext | None

    def choose(self, name: str | None) -> ssl.SSLContext | None:
        """The context for a name in lower case: the name itself first, then the wildcard that covers it."""
        if name is None:
            return self.default
        exact = self.by_name.get(name)
        return exact or self.by_name.get("*." + name.partition(".")[2]) or self.default


def certificate_table(config: Tls, materials: Materials) -> CertificateTable:
    """The certificates of a listener; where two speak for one name, the first does.

    Raises ValueError naming the file that cannot be used.
    """
    contexts = [_context(certificate, materials) for certificate in config.certificates]
    by_name: dict[str, ssl.SSLContext] = {}
    for certificate, context in zip(config.certificates, contexts, strict=True):
        for name in certificate_names(materials[certificate.cert]):
            by_name.setdefault(name, context)
    if config.strict and not by_name:
        raise ValueError("no certificate names a host, so that `strict` would refuse every client")
    return CertificateTable(by_name, None if config.strict else contexts[0])


def certificate_names(pem: bytes) -> tuple[str, ...]:
    """The DNS names of the first certificate of ``pem``, lower case; its common name if it has none.

    Raises ValueError if there is no certificate.
    """
    certificate = x509.load_pem_x509_certificate(pem)
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = extension.value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        names = [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return tuple(name.lower() for name in names)


def load_pair(context: ssl.SSLContext, certificate: Certificate, materials: Materials) -> None:
    """Have a context show a certificate. Raises ValueError naming the files if they cannot be used."""
    chain, key = material(materials, certificate.cert), material(materials, certificate.key)
    try:
        with _as_file(chain) as chain_path, _as_file(key) as key_path:
            context.load_cert_chain(chain_path, key_path, password=_no_password)
    except ssl.SSLError as error:
        why = "do not belong together" if error.reason == "KEY_VALUES_MISMATCH" else "are not a usable PEM pair"
        raise ValueError(f"{certificate.cert} and {certificate.key} {why}") from error
    except ValueError as error:
        raise ValueError(f"{certificate.cert} and {certificate.key}: {error}") from error


def material(materials: Materials, path: str) -> bytes:
    """The bytes of a file. Raises ValueError if the worker was not handed them."""
    if path not in materials:
        raise ValueError(f"{path} was not handed to this worker")
    return materials[path]


def _context(certificate: Certificate, materials: Materials) -> ssl.SSLContext:
    # What OpenSSL takes from the context that the name chose, and not from the one that the connection began with:
    # certificate, TLS 1.2 ciphers, ALPN. Bounds on versions, options and tickets are the listener's.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    load_pair(context, certificate, materials)
    try:
        certificate_names(materials[certificate.cert])
    except ValueError as error:
        raise ValueError(f"{certificate.cert}: {error}") from error
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one without a passphrase, readable by the service only")


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path of memory that OpenSSL can open: it takes keys from files only, and a key shall not touch a disk."""
    descriptor = os.memfd_create("headrace-pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
