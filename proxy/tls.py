"""TLS on both sides: what a listening server is given, and the context towards an upstream.

Owns what is spoken: TLS 1.2 or newer, HTTP/1.1 by ALPN, the certificate by the name that the client asks for (SNI), how
sessions are resumed, and towards upstreams verification by the system's or the named authorities. Which certificate
belongs to a name says ``proxy.certificates``. Knows nothing of requests.
"""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from proxy.certificates import CIPHERS, CertificateTable, load_pair, material
from proxy.config import Materials, Tls, UpstreamTls
from proxy.curves import limit_curves
from proxy.memory import keep_big_buffers_apart

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
#: Sessions are resumed by tickets, which whoever has their key can open: it is kept in this process alone, and for a
#: day. A ticket of another worker, or of an older key, costs its client a full handshake.
TICKET_KEY_LIFE_S = 86400.0
#: Beyond the connections that a listener may serve, so many more get their handshake, and 503 inside; the others are
#: closed without a word, which costs nothing.
_SPARE_CONNECTIONS = 64
_RECORD_BYTES = 16384
_PLAIN_HTTP = b"This port speaks HTTPS; the request came as plain HTTP.\n"
_PLAIN_HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
) % (len(_PLAIN_HTTP), _PLAIN_HTTP)


class ListenerTls(ssl.SSLContext):
    """The context of a listening server, for all its time: ``show`` gives it other certificates under way.

    It makes connections with a context inside, which owns the key of the tickets. ``num_open`` counts connections
    from their first byte on, those included that are still in their handshake.
    """

    def __new__(cls, *_: object, **__: object) -> ListenerTls:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(
        self,
        config: Tls,
        certificates: CertificateTable,
        *,
        max_connections: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        keep_big_buffers_apart()
        self._minimum = _VERSIONS[config.min_version]
        self._certificates = certificates
        self._max_open = max_connections + _SPARE_CONNECTIONS
        self._clock = clock
        self.num_open = 0
        self._inside = self._make_inside()
        self._inside_since = clock()

    def show(self, certificates: CertificateTable) -> None:
        """Use these certificates from the next handshake on. Connections and sessions stay as they are."""
        self._certificates = certificates

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """A connection. Raises ConnectionRefusedError, which ends it, beyond the listener's bounds."""
        if self.num_open >= self._max_open:
            raise ConnectionRefusedError(f"{self.num_open} connections are open, handshakes included")
        now = self._clock()
        if now - self._inside_since >= TICKET_KEY_LIFE_S:
            self._inside, self._inside_since = self._make_inside(), now
        connection = self._inside.wrap_bio(incoming, outgoing, server_side=True)
        assert isinstance(connection, ServerSide)
        connection.outgoing = outgoing
        connection.listener = self
        self.num_open += 1
        return connection

    def _make_inside(self) -> ssl.SSLContext:
        limit_curves()
        _drop_complaints_of_names()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sslobject_class = ServerSide
        context.minimum_version = self._minimum
        context.set_ciphers(CIPHERS)
        context.set_alpn_protocols(["http/1.1"])
        context.options |= ssl.OP_NO_RENEGOTIATION
        # Past the setter of ssl.SSLContext, which has names checked by a codec that raises for those of no host.
        plain: Any = super(ssl.SSLContext, ssl.SSLContext).sni_callback
        plain.__set__(context, self._choose)
        return context

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        if name is not None:
            name = name.lower().removesuffix(".")
        if isinstance(connection, ServerSide):
            connection.sni = name
        context = self._certificates.choose(name)
        if context is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = context
        return None


class ServerSide(ssl.SSLObject):
    """One client's connection. sni: the name that it asked for, in lower case; None: it named none."""

    sni: str | None = None
    outgoing: ssl.MemoryBIO | None = None
    listener: ListenerTls | None = None
    _failure: ssl.SSLError | None = None

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """What came: no more than one record at a time, so that room for more, which the loop asks for, is wasted."""
        if buffer is not None:
            return super().read(len, buffer)
        return super().read(len if len < _RECORD_BYTES else _RECORD_BYTES)

    def do_handshake(self) -> None:
        """One step of the handshake.

        The event loop forgets what a failed handshake had still to say. So a failure is told to it only when the
        client was told: until then the handshake seems to wait, for the client to leave or for its time to be over.
        """
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            outgoing = self.outgoing
            if outgoing is None:
                raise
            if error.reason == "HTTP_REQUEST":
                outgoing.write(_PLAIN_HTTP_ANSWER)
            if not outgoing.pending:
                raise
            self._failure = error.with_traceback(None)
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the client is told first") from None
        self.outgoing = None

    def __del__(self) -> None:
        if self.listener is not None:
            self.listener.num_open -= 1


@cache
def _drop_complaints_of_names() -> None:
    """Keep Python from writing a traceback to stderr for every handshake that asks for a name with other than ASCII.
    The handshake fails, which is all that there is to say."""
    complain = sys.unraisablehook

    def hook(args: sys.UnraisableHookArgs) -> None:
        if not (isinstance(args.exc_value, UnicodeDecodeError) and isinstance(args.object, bytes)):
            complain(args)

    sys.unraisablehook = hook


def sni_of(ssl_object: object) -> str | None:
    """The name that the client of a connection asked for, in lower case; None: no TLS, or no name."""
    return ssl_object.sni if isinstance(ssl_object, ServerSide) else None


def is_misdirected(tls: Tls | None, sni: str | None, host: str | None) -> bool:
    """Whether a request's host is another one than its connection was made for (RFC 9110 §7.4: 421)."""
    return tls is not None and tls.match_host and sni is not None and host != sni


def upstream_context(config: UpstreamTls, materials: Materials) -> ssl.SSLContext:
    """The context towards an upstream. Raises ValueError naming the file that cannot be used."""
    context = ssl.create_default_context()
    if config.ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=material(materials, config.ca).decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise ValueError(f"{config.ca} holds no certificates in PEM form") from error
    if config.client is not None:
        load_pair(context, config.client, materials)
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # An answer without a length is complete only with close_notify: a bare FIN must be an error, not an end.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    return context


def upstream_materials(config: UpstreamTls, materials: Materials) -> tuple[bytes | None, ...]:
    """The bytes that ``upstream_context`` is made from: connections made with others are not to be used."""
    paths = [config.ca, *((config.client.cert, config.client.key) if config.client else ())]
    return tuple(materials.get(path) if path is not None else None for path in paths)
