"""The life of one request in the proxy: from a parsed head to the last byte of its answer, settled exactly once.

Owns the order: gate, route, chain, forward, answer, settle. Whatever is refused or failed here is answered through the
sink in the route's own shape and passes the chain's ``respond``, as a relayed answer does. Nothing escapes to the
caller but CancelledError, which means that the client left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any

from aiohttp.http_parser import RawRequestMessage
from multidict import CIMultiDict

from proxy import gate
from proxy.body import RequestBody
from proxy.build import ListenerPlan, Snapshot
from proxy.chain import Chain
from proxy.downstream import ClientConnection
from proxy.errors import Kind, refuse
from proxy.exchange import Ending, Exchange, Head, Outcome, Reply
from proxy.forward import Forward
from proxy.relay import End, Relay
from proxy.sink import Sink

log = logging.getLogger("headrace.proxy")

_NO_FIELDS: CIMultiDict[str] = CIMultiDict()
_CLIENT_GONE = Outcome(Ending.CLIENT_GONE, 499)


class Front:
    """Serves the requests of one listener. snapshot: the one in use; a request keeps the one it began with."""

    def __init__(self, plan: ListenerPlan, snapshot: Callable[[], Snapshot], relays: set[Relay]) -> None:
        self.plan = plan
        self._snapshot = snapshot
        self._relays = relays

    def serve(
        self, client: ClientConnection, message: RawRequestMessage | gate.Refusal, body: RequestBody
    ) -> Coroutine[Any, Any, bool]:
        """Read one message; awaited, answer it: True if the connection may take another."""
        started_at = time.monotonic()
        snapshot = self._snapshot()
        if isinstance(message, gate.Refusal):
            return self._refuse(_blank(client, started_at), client, snapshot, message)
        version = message.version
        try:
            facts = gate.check(
                message.method,
                message.path,
                version,
                message.raw_headers,
                max_headers_bytes=self.plan.config.limits.headers,
            )
        except gate.Refused as refused:
            x = _blank(client, started_at)
            x.method, x.target, x.fields, x.headers = message.method, message.path, message.headers, message.raw_headers
            return self._refuse(x, client, snapshot, refused.refusal)
        x = Exchange(
            message.method,
            message.path,
            version,
            client.server.scheme,
            facts.host,
            facts.authority,
            facts.path,
            facts.send_path,
            facts.query,
            message.raw_headers,
            message.headers,
            client.peer,
            facts.content_length,
            facts.has_body,
            started_at,
            time.time(),
        )
        x.client, x.trusted = self.plan.clients.resolve(client.peer, message.raw_headers)
        x.route = route = snapshot.router.match(facts.host, facts.path)
        # A connection whose change of protocol was declined takes no more requests: the parser has let go of it.
        sink = Sink(client, message.method, version, not message.should_close and not facts.upgrade)
        client.sink = sink
        chain = route.chain if route is not None else snapshot.unrouted
        forward = None
        if route is not None and self.plan.redirect_port is None:
            upstream = snapshot.upstreams[route.upstream]
            forward = Forward(
                x, route, upstream, client, sink, body, self._relays, expects_continue=facts.expects_continue
            )
        return self._answer(x, chain, snapshot, sink, forward)

    async def _answer(
        self,
        x: Exchange,
        chain: Chain,
        snapshot: Snapshot,
        sink: Sink,
        forward: Forward | None,
        refusal: Reply | None = None,
    ) -> bool:
        """Ask the policies, then forward or reply; settle whatever happens."""
        outcome = _CLIENT_GONE
        try:
            x.routed_at = time.monotonic()
            reply = chain.admit(x, x.routed_at)
            x.admitted_at = time.monotonic()
            if refusal is not None:
                end = End(Ending.CLIENT_ERROR, refusal.status, reply=refusal)
            elif reply is not None:
                end = End(Ending.REFUSED, reply.status, reply=reply)
            elif forward is not None:
                end = await forward.run()
            else:
                reply = self._redirect(x) or refuse(x, Kind.NOT_FOUND, "No route takes this host and path.")
                end = End(Ending.REFUSED, reply.status, reply=reply)
            if end.reply is not None:
                _send(x, chain, sink, end.reply)
            outcome = Outcome(end.ending, end.status, end.reason)
        except Exception:
            log.exception("a request failed inside the proxy")
            outcome = Outcome(Ending.INTERNAL, 500, "internal error")
            _fail(x, sink)
        finally:
            x.bytes_out = sink.bytes_out
            self._settle(x, chain, snapshot, outcome)
        return sink.persistent and sink.ended

    def _settle(self, x: Exchange, chain: Chain, snapshot: Snapshot, outcome: Outcome) -> None:
        now = time.monotonic()
        try:
            chain.settle(x, outcome, now)
        except Exception:
            log.exception("a policy failed to settle")
        snapshot.metrics_of(x.route).count(x, outcome, now)

    def _refuse(
        self, x: Exchange, client: ClientConnection, snapshot: Snapshot, refusal: gate.Refusal
    ) -> Coroutine[Any, Any, bool]:
        """Answer what cannot be served, and close: how the rest of the connection is framed is not known."""
        sink = Sink(client, x.method, (1, 1), wants_more=False)
        client.sink = sink
        reply = refuse(x, refusal.kind, refusal.message, close=True)
        return self._answer(x, snapshot.unrouted, snapshot, sink, None, reply)

    def _redirect(self, x: Exchange) -> Reply | None:
        port = self.plan.redirect_port
        if port is None:
            return None
        if not x.host:
            return refuse(x, Kind.BAD_REQUEST, "This port only redirects to https, which needs a Host field.")
        query = f"?{x.query}" if x.query else ""
        location = f"https://{x.host}{'' if port == 443 else f':{port}'}{x.send_path}{query}"
        # 308 keeps the method and its body; 301 would let a POST become a GET.
        return Reply(308, ((b"Location", location.encode("latin-1")), (b"Cache-Control", b"no-store")))


def _send(x: Exchange, chain: Chain, sink: Sink, reply: Reply) -> None:
    date = formatdate(usegmt=True).encode()
    head = Head(reply.status, [(b"Date", date), *reply.headers], len(reply.body))
    chain.respond(x, head, time.monotonic())
    sink.send(head, reply.body, close=reply.close)


def _fail(x: Exchange, sink: Sink) -> None:
    if sink.retract():
        reply = refuse(x, Kind.INTERNAL, "The proxy failed on this request; its log says why.")
        sink.send(Head(reply.status, list(reply.headers), len(reply.body)), reply.body, close=True)
    else:
        sink.abort()


def _blank(client: ClientConnection, now: float) -> Exchange:
    """The facts of a request that could not be read, so that it is logged and counted like any other."""
    return Exchange(
        "", "", (1, 1), client.server.scheme, "", "", "", "", "", (), _NO_FIELDS, client.peer, None, False, now,
        time.time(), client=client.peer,
    )  # fmt: skip
