"""TLS contexts from the bytes of certificates and keys. Reads no file.

Owns what is spoken: TLS 1.2 or newer, HTTP/1.1 by ALPN, the certificate by the name that the client asks for (SNI),
and towards upstreams verification by the system's or the named authorities.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cryptography import x509
from cryptography.x509.oid import NameOID

from proxy.config import Certificate, Materials, Tls, UpstreamTls

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def server_context(config: Tls, materials: Materials) -> ssl.SSLContext:
    """The context of a listener; the first certificate serves clients that name no host, or one unknown here.

    Raises ValueError naming the file that cannot be used.
    """
    contexts = [_certificate_context(config, certificate, materials) for certificate in config.certificates]
    by_name: dict[str, ssl.SSLContext] = {}
    for certificate, context in zip(config.certificates, contexts, strict=True):
        for name in certificate_names(materials[certificate.cert]):
            by_name.setdefault(name, context)
    default = contexts[0]
    default.sni_callback = _by_name(by_name, default)
    return default


def upstream_context(config: UpstreamTls, materials: Materials) -> ssl.SSLContext:
    """The context towards an upstream. Raises ValueError naming the authority file that cannot be used."""
    context = ssl.create_default_context()
    if config.ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=_material(materials, config.ca).decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise ValueError(f"{config.ca} holds no certificates in PEM form") from error
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # An answer without a length is complete only with close_notify: a bare FIN must be an error, not an end.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    return context


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


def _by_name(
    contexts: Mapping[str, ssl.SSLContext], default: ssl.SSLContext
) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]:
    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name is not None:
            name = name.lower()
            wildcard = "*." + name.partition(".")[2]
            connection.context = contexts.get(name) or contexts.get(wildcard) or default

    return choose


def _certificate_context(config: Tls, certificate: Certificate, materials: Materials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.min_version]
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    chain, key = _material(materials, certificate.cert), _material(materials, certificate.key)
    try:
        with _as_file(chain) as chain_path, _as_file(key) as key_path:
            context.load_cert_chain(chain_path, key_path, password=_no_password)
        certificate_names(chain)
    except ssl.SSLError as error:
        why = "do not belong together" if error.reason == "KEY_VALUES_MISMATCH" else "are not a usable PEM pair"
        raise ValueError(f"{certificate.cert} and {certificate.key} {why}") from error
    except ValueError as error:
        raise ValueError(f"{certificate.cert} and {certificate.key}: {error}") from error
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one without a passphrase, readable by the service only")


def _material(materials: Materials, path: str) -> bytes:
    if path not in materials:
        raise ValueError(f"{path} was not handed to this worker")
    return materials[path]


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path of memory that OpenSSL can open: it takes keys from files only, and a key shall not touch a disk."""
    descriptor = os.memfd_create("headrace-pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
