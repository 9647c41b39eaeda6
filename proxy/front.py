"""The life of one request in the proxy: from a parsed head to the last byte of its answer, settled exactly once.

Owns the order: gate, route, chain, forward, answer, settle. Whatever is refused or failed here is answered through the
sink in the route's own shape and passes the chain's ``respond``, as a relayed answer does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from time import time as wall
from typing import Any

from multidict import CIMultiDict

from proxy import gate
from proxy.body import RequestBody
from proxy.build import ListenerPlan, Snapshot
from proxy.chain import Chain
from proxy.downstream import ClientConnection
from proxy.edge_server import Work
from proxy.errors import Kind, refuse
from proxy.exchange import Ending, Exchange, Head, Outcome, Reply
from proxy.forward import Forward
from proxy.held_body import HeldBody, HeldBytes
from proxy.metrics import RouteMetrics
from proxy.own_request import Asker
from proxy.relay import End, Relay
from proxy.route import ESCAPED_SLASH, Route
from proxy.sink import Sink, http_date
from proxy.tls import is_misdirected
from proxy.upstream.attempts import tell_attempts

log = logging.getLogger("headrace.proxy")

_NO_FIELDS: CIMultiDict[str] = CIMultiDict()
_HELD_TOGETHER = HeldBytes()  # by all listeners of this process


class InUse:
    """A worker's snapshot in use: what is put here is what the next requests go by."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None


class Front:
    """Serves the requests of one listener. A request keeps the snapshot that was in use when it began."""

    def __init__(self, plan: ListenerPlan, in_use: InUse, relays: set[Relay]) -> None:
        self._in_use = in_use
        self._relays = relays
        self.use(plan)

    def use(self, plan: ListenerPlan) -> None:
        """Serve the next requests by this plan. What each of them asks of it is looked up once."""
        self.plan = plan
        self._max_headers_bytes: int = plan.config.limits.headers
        self._clients = plan.clients
        self._redirects = plan.redirect_port is not None

    def serve(self, client: ClientConnection, message: Any, body: RequestBody) -> Work | None:
        """Answer one message (aiohttp's RawRequestMessage, or a Refusal) and tell the client's connection when it is
        answered. What is returned must be awaited for that."""
        started_at = monotonic()
        snapshot = self._in_use.snapshot
        assert snapshot is not None
        if isinstance(message, gate.Refusal):
            self._refuse(_blank(client, started_at), client, snapshot, message)
            return None
        version = message.version
        router = snapshot.router
        try:
            facts = gate.check(
                message.method,
                message.path,
                version,
                message.raw_headers,
                max_headers_bytes=self._max_headers_bytes,
                encoded_slash=router.encoded_slash,
            )
        except gate.Refused as refused:
            x = _blank(client, started_at)
            x.method, x.target, x.fields, x.headers = message.method, message.path, message.headers, message.raw_headers
            self._refuse(x, client, snapshot, refused.refusal)
            return None
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
            wall(),
        )
        x.client, x.trusted = self._clients.resolve(client.peer, message.raw_headers)
        x.sni = client.sni
        x.route = route = router.find(x)
        # A connection whose change of protocol was declined takes no more requests: the parser has let go of it.
        sink = Sink(client, message.method, version, not message.should_close and not facts.upgrade)
        client.sink = sink
        unusual = (
            route is None
            or self._redirects
            or (x.sni is not None and x.sni != x.host)
            or (router.encoded_slash and not router.is_plain(x, route))
        )
        if unusual and (reply := self._unserved(x, route, snapshot)) is not None:
            # A redirect asks no policies of the route: they are for those who come by https.
            metrics = snapshot.metrics[route.name] if route is not None else snapshot.unrouted_metrics
            answer = _Answer(x, snapshot.unrouted, metrics, sink, client)
            answer.give(lambda _x: reply)
            return None
        assert route is not None
        answer = _Answer(x, route.chain, snapshot.metrics[route.name], sink, client)
        if route.answer is not None:
            return answer.give_when(route.answer)
        if route.rewrite is not None:
            route.rewrite(x)
        upstream = snapshot.upstreams[route.upstream]
        if route.chain.reads_body and x.has_body:
            x.body = HeldBody(x, body, _HELD_TOGETHER, sink.proceed if facts.expects_continue else None)
            x.ask = Asker(x, route, upstream, snapshot.upstreams, self._relays).ask
        forward = Forward(
            x,
            route,
            upstream,
            client,
            sink,
            body,
            self._relays,
            answer.ended,
            upstreams=snapshot.upstreams,
            expects_continue=facts.expects_continue,
            may_switch=facts.upgrade
            and route.config.websocket is not None
            and not facts.has_body
            and _asks_for_websocket(message),
        )
        return answer.forward(forward)

    def _refuse(self, x: Exchange, client: ClientConnection, snapshot: Snapshot, refusal: gate.Refusal) -> None:
        """Answer what cannot be served, and close: how the rest of the connection is framed is not known."""
        sink = Sink(client, x.method, (1, 1), wants_more=False)
        client.sink = sink
        answer = _Answer(x, snapshot.unrouted, snapshot.unrouted_metrics, sink, client)
        headers = ((b"Allow", gate.ALLOW),) if refusal.kind is Kind.METHOD else ()
        reply = refuse(x, refusal.kind, refusal.message, headers=headers, close=True)
        answer.give(lambda _x: reply, Ending.CLIENT_ERROR)

    def _unserved(self, x: Exchange, route: Route | None, snapshot: Snapshot) -> Reply | None:
        """The answer to a request that goes nowhere: meant for another host, to be sent by https, or without a route.
        None: it is served."""
        plan = self.plan
        if is_misdirected(plan.config.tls, x.sni, x.host):
            # RFC 9110 §15.5.20. What was agreed in the handshake was for another name than that which is asked for.
            message = "The TLS connection was made for another host than this request is for; make a new one."
            return refuse(x, Kind.MISDIRECTED, message, api="none")
        port = plan.redirect_port
        if port is None:
            if route is None:
                return self._without_route(x, snapshot)
            if not snapshot.router.is_plain(x, route):
                return refuse(x, Kind.BAD_PATH, ESCAPED_SLASH)
            return None
        if not x.host:
            return refuse(x, Kind.BAD_REQUEST, "This port only redirects to https, which needs a Host field.")
        query = f"?{x.query}" if x.query else ""
        location = f"https://{x.host}{'' if port == 443 else f':{port}'}{x.send_path}{query}"
        # 308 keeps the method and its body; 301 would let a POST become a GET.
        return Reply(308, ((b"Location", location.encode("latin-1")), (b"Cache-Control", b"no-store")))

    @staticmethod
    def _without_route(x: Exchange, snapshot: Snapshot) -> Reply:
        allowed = snapshot.router.allowed(x)
        if not allowed:
            return refuse(x, Kind.NOT_FOUND, "No route takes this host and path.")
        methods = ", ".join(allowed)
        message = f"No route takes the method {x.method} here; those that are taken: {methods}."
        return refuse(x, Kind.METHOD, message, headers=((b"Allow", methods.encode()),))


def _asks_for_websocket(message: Any) -> bool:
    asks = message.method == "GET" and message.upgrade and message.version == (1, 1)
    return bool(asks) and [value.strip().lower() for value in message.headers.getall("Upgrade")] == ["websocket"]


class _Answer:
    """One request that is being answered: who is asked, who is told, and that it ends exactly once."""

    __slots__ = ("_chain", "_client", "_metrics", "_sink", "_x")

    def __init__(self, x: Exchange, chain: Chain, metrics: RouteMetrics, sink: Sink, client: ClientConnection) -> None:
        self._x = x
        self._chain = chain
        self._metrics = metrics
        self._sink = sink
        self._client = client

    def forward(self, forward: Forward) -> Work | None:
        """Ask the policies, and forward if they let the request pass."""
        if self._chain.reads_body:
            return self._when_gathered(lambda: self._read_body(forward))
        if self._chain.gathers:
            return self._when_gathered(lambda: self._forward(forward))
        return self._forward(forward)

    def give_when(self, make: Callable[[Exchange], Reply]) -> Work | None:
        """Ask the policies, and answer with what ``make`` returns if they let the request pass."""
        return self._when_gathered(lambda: self.give(make))

    def _when_gathered(self, go_on: Callable[[], Work | None]) -> Work | None:
        try:
            facts = self._chain.gather(self._x)
        except Exception:
            self._fail()
            return None
        return go_on() if facts is None else self._gather(facts, go_on)

    async def _gather(self, facts: Awaitable[None], go_on: Callable[[], Work | None]) -> None:
        try:
            await facts
        except asyncio.CancelledError:
            self._chain.abandon(self._x)
            self.ended(End(Ending.CLIENT_GONE, 499))
            raise
        except Exception:
            self._chain.abandon(self._x)
            self._fail()
            return
        work = go_on()
        if work is not None:
            await work

    def _forward(self, forward: Forward) -> Work | None:
        try:
            reply = self._admit()
            if reply is None:
                return forward.start(self._x.admitted_at)
        except Exception:
            self._fail()
        else:
            self.ended(_replied(reply))
        return None

    def _read_body(self, forward: Forward) -> Work | None:
        """Ask the policies before those that read the body, let these read it, and go on."""
        try:
            reply = self._admit()
        except Exception:
            self._fail()
            return None
        if reply is not None:
            self.ended(_replied(reply))
            return None
        return self._gather_rest(forward, 0)

    def _gather_rest(self, forward: Forward, part: int) -> Work | None:
        """Let a part of the chain gather, and ask it."""
        try:
            facts = self._chain.gather_rest(self._x, part)
        except Exception:
            self._fail()
            return None
        if facts is None:
            return self._forward_read(forward, part)
        return self._gather(facts, lambda: self._forward_read(forward, part))

    def _forward_read(self, forward: Forward, part: int) -> Work | None:
        """As ``_forward``, for a part of the policies that are left; then the next part."""
        x = self._x
        body = x.body
        try:
            if body is not None and body.refusal is not None:
                end = End(body.ending, body.refusal.status, "request body", reply=body.refusal)
            else:
                reply = self._chain.admit_rest(x, monotonic(), part)
                x.admitted_at = monotonic()
                if reply is None:
                    if part + 1 < self._chain.num_rest:
                        return self._gather_rest(forward, part + 1)
                    return forward.start(x.admitted_at)
                end = _replied(reply)
        except Exception:
            self._fail()
        else:
            self.ended(end)
        return None

    def give(self, make: Callable[[Exchange], Reply], ending: Ending = Ending.REFUSED) -> None:
        """Ask the policies, and answer with what ``make`` returns if they let the request pass. A request that was
        malformed is answered as such whatever they say."""
        try:
            reply = self._admit()
            for part in range(self._chain.num_rest):
                if reply is None:
                    reply = self._chain.admit_rest(self._x, self._x.admitted_at, part)
            if reply is None or ending is Ending.CLIENT_ERROR:
                reply = make(self._x)
        except Exception:
            self._fail()
        else:
            self.ended(End(ending, reply.status, reply=reply))

    def _admit(self) -> Reply | None:
        x = self._x
        x.routed_at = monotonic()
        reply = self._chain.admit(x, x.routed_at)
        x.admitted_at = monotonic()
        return reply

    def _fail(self) -> None:
        log.exception("a request failed inside the proxy")
        self.ended(End(Ending.INTERNAL, 500, "internal error"))

    def ended(self, end: End) -> None:
        """Send what is still to be sent, settle, and let the connection go on."""
        x, sink = self._x, self._sink
        outcome = Outcome(end.ending, end.status, end.reason)
        try:
            if end.reply is not None:
                self._send(end.reply)
        except Exception:
            log.exception("a request failed inside the proxy")
            outcome = Outcome(Ending.INTERNAL, 500, "internal error")
        if outcome.ending is Ending.INTERNAL:
            self._break_off()
        x.bytes_out = sink.bytes_out
        now = monotonic()
        try:
            self._chain.settle(x, outcome, now)
        except Exception:
            log.exception("a policy failed to settle")
        self._metrics.count(x, outcome, now)
        if x.body is not None:
            x.body.release()
            x.ask = None
        self._client.answered(sink.persistent and sink.ended, now)

    def _send(self, reply: Reply) -> None:
        head = Head(reply.status, [(b"Date", http_date()), *reply.headers], len(reply.body))
        if self._x.attempts > 1:
            tell_attempts(self._x, head)
        self._chain.respond(self._x, head, monotonic())
        self._sink.send(head, reply.body, close=reply.close)

    def _break_off(self) -> None:
        """Say that it failed, if nothing was sent yet."""
        sink = self._sink
        if sink.ended:
            return
        if sink.retract():
            reply = refuse(self._x, Kind.INTERNAL, "The proxy failed on this request; its log says why.")
            sink.send(Head(reply.status, list(reply.headers), len(reply.body)), reply.body, close=True)
        else:
            sink.abort()


def _replied(reply: Reply) -> End:
    """A policy has answered."""
    return End(Ending.COMPLETE if reply.is_answer else Ending.REFUSED, reply.status, reply=reply)


def _blank(client: ClientConnection, now: float) -> Exchange:
    """The facts of a request that could not be read, so that it is logged and counted like any other."""
    return Exchange(
        "", "", (1, 1), client.server.scheme, "", "", "", "", "", (), _NO_FIELDS, client.peer, None, False, now,
        wall(), client=client.peer,
    )  # fmt: skip
