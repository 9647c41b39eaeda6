"""Whether PEM bytes are what a listener needs: a certificate chain, and the private key that belongs to it.

Pure: bytes and the time in, a reason out. Knows nothing of files; the key's contents never enter a message.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

MIN_RSA_BITS = 2048
_CURVES = ("secp256r1", "secp384r1", "secp521r1")


class PairProblem(NamedTuple):
    """Which file of the pair is at fault, and why."""

    part: Literal["cert", "key"]
    message: str


def why_not_pair(chain_pem: bytes, key_pem: bytes) -> PairProblem | None:
    """Why nobody can use the chain (leaf first) with the key; None if it can be used."""
    if _is_half(chain_pem) or _is_half(key_pem):
        return PairProblem("cert" if _is_half(chain_pem) else "key", "breaks off in the middle; is it being written?")
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
    public_key = leaf.public_key()
    spki = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if private_key.public_key().public_bytes(*spki) != public_key.public_bytes(*spki):
        return PairProblem("key", "does not belong to the certificate: their public keys differ")
    if why := _why_not_key(public_key):
        return PairProblem("cert", why)
    return None


def why_not_now(chain_pem: bytes, now: datetime) -> str | None:
    """Why no client believes the chain's first certificate at this time; None if the time is right.

    Raises ValueError if there is no certificate.
    """
    leaf = x509.load_pem_x509_certificates(chain_pem)[0]
    if now > leaf.not_valid_after_utc:
        return f"expired on {_spell(leaf.not_valid_after_utc)}: no client accepts it; renew it"
    if now < leaf.not_valid_before_utc:
        return f"is not valid before {_spell(leaf.not_valid_before_utc)}: is the clock right?"
    return None


def why_not_ca(pem: bytes) -> str | None:
    """Why the bytes cannot be trusted as CA certificates; None if they can."""
    try:
        x509.load_pem_x509_certificates(pem)
    except ValueError:
        return "holds no certificate; expected PEM, `-----BEGIN CERTIFICATE-----`"
    return None


def _is_half(pem: bytes) -> bool:
    return pem.count(b"-----BEGIN ") > pem.count(b"-----END ")


def _why_not_key(key: object) -> str | None:
    match key:
        case rsa.RSAPublicKey(key_size=size) if size < MIN_RSA_BITS:
            return f"has an RSA key of {size} bits; expected {MIN_RSA_BITS} or more, or a P-256 key"
        case ec.EllipticCurvePublicKey(curve=curve) if curve.name not in _CURVES:
            return f"has a key on the curve {curve.name}; expected P-256, P-384 or P-521"
        case rsa.RSAPublicKey() | ec.EllipticCurvePublicKey() | ed25519.Ed25519PublicKey() | ed448.Ed448PublicKey():
            return None
    return "has a key of a kind that TLS does not use; expected RSA or an elliptic curve"


def _spell(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%d %H:%M UTC")
