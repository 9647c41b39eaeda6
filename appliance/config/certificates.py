"""Whether PEM bytes are what a listener needs: a certificate chain, and the private key that belongs to it.

Pure: bytes in, a reason out. Knows nothing of files; the key's contents never enter a message.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key


class PairProblem(NamedTuple):
    """Which file of the pair is at fault, and why."""

    part: Literal["cert", "key"]
    message: str


def why_not_pair(chain_pem: bytes, key_pem: bytes) -> PairProblem | None:
    """Why a server cannot use the chain (leaf first) with the key; None if it can."""
    try:
        leaf = x509.load_pem_x509_certificates(chain_pem)[0]
    except ValueError:
        return PairProblem("cert", "holds no certificate; expected PEM, `-----BEGIN CERTIFICATE-----`")
    try:
        private_key = load_pem_private_key(key_pem, password=None)
    except TypeError:
        return PairProblem("key", "is encrypted; expected a private key without a passphrase")
    except ValueError:
        return PairProblem("key", "holds no private key; expected PEM, `-----BEGIN PRIVATE KEY-----`")
    spki = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if private_key.public_key().public_bytes(*spki) != leaf.public_key().public_bytes(*spki):
        return PairProblem("key", "does not belong to the certificate: their public keys differ")
    return None


def why_not_ca(pem: bytes) -> str | None:
    """Why the bytes cannot be trusted as CA certificates; None if they can."""
    try:
        x509.load_pem_x509_certificates(pem)
    except ValueError:
        return "holds no certificate; expected PEM, `-----BEGIN CERTIFICATE-----`"
    return None
