"""Forwarding one admitted request: attempt after attempt, until there is an answer or a reason why not.

Composes the pure parts: the breaker lets the request pass, the pool chooses a server, ``retry`` decides about another
attempt, ``errors`` words the failure. Owns the order in which they are asked and what each is told at the end; the
bytes go by ``Relay`` and ``Upload``.

What is tried again: nothing once a byte of the answer was sent; else idempotent methods, anything of which no byte was
sent, and POST to the local engine, whose work leaves no trace; always only while the body can be sent again.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from proxy.body import BodyBroken, RequestBody
from proxy.config import Retry, Timeouts
from proxy.downstream import ClientConnection
from proxy.errors import Kind, refuse
from proxy.exchange import Ending, Exchange, Reply
from proxy.headers import upstream_request_headers
from proxy.relay import Relay
from proxy.route import Route
from proxy.sink import Sink
from proxy.upload import TooLarge, Upload
from proxy.upstream import breaker, pool, retry
from proxy.upstream.connections import ConnectFailed, Server
from proxy.upstream.retry import Failure
from proxy.upstream.transport import UpstreamConnection
from proxy.upstream.upstream import ENGINE_RETRY_AFTER_S, Upstream

_draw = random.random


@dataclass(slots=True)
class End:
    """How forwarding ended. reply: what is still to be sent, if nothing was."""

    ending: Ending
    status: int
    reason: str = ""
    reply: Reply | None = None
    failure: Failure | None = None


class Forward:
    """One request's way to its upstream. ``relays``: those under way in this worker, for its sweep."""

    __slots__ = ("_client", "_expects_continue", "_relays", "_retry", "_route", "_sink", "_timeouts",
                 "_tried", "_upload", "_upstream", "_wants_fresh", "_x")  # fmt: skip

    def __init__(
        self,
        x: Exchange,
        route: Route,
        upstream: Upstream,
        client: ClientConnection,
        sink: Sink,
        body: RequestBody,
        relays: set[Relay],
        *,
        expects_continue: bool,
    ) -> None:
        self._x = x
        self._route = route
        self._upstream = upstream
        self._client = client
        self._sink = sink
        self._relays = relays
        self._expects_continue = expects_continue
        self._timeouts: Timeouts = route.config.timeouts or upstream.timeouts
        self._retry: Retry = route.config.retry or upstream.retry
        self._upload = Upload(x, body, holds=self._may_repeat()) if x.has_body else None
        self._tried: set[str] = set()
        self._wants_fresh = False

    async def run(self) -> End:
        """Forward; the answer has been sent, or is in ``reply``. Cancelled when the client leaves."""
        upstream = self._upstream
        self._x.upstream = upstream.name
        if upstream.engine.down is not None:
            return self._engine_down(upstream.engine.down)
        now = time.monotonic()
        permit = upstream.breaker.admit(now)
        if isinstance(permit, breaker.Refused):
            return self._breaker_open(permit)
        upstream.budget.request(now)
        ok: bool | None = None
        try:
            end = await self._attempt(permit)
            while (delay_s := self._decide(end)) is not None:
                if delay_s:
                    await asyncio.sleep(delay_s)
                end = await self._attempt(permit)
            ok = _counts_as(end)
        finally:
            permit.settle(ok, time.monotonic())
        if end.ending is Ending.UPSTREAM_FAILED:
            end.reply = self._word_failure(end)
            end.status = end.reply.status
        return end

    async def _attempt(self, permit: breaker.Permit) -> End:
        """Ask one server; which ones have failed this request before is known from earlier attempts."""
        x, upstream = self._x, self._upstream
        now = time.monotonic()
        state = pool.choose(upstream.states, now, _draw(), self._tried) or pool.choose(upstream.states, now, _draw())
        assert state is not None  # an upstream has a server
        x.attempts += 1
        x.server = state.name
        state.started()
        ok: bool | None = None
        try:
            server = upstream.server(state)
            connection = None if self._wants_fresh else server.take()
            if connection is None:
                connection = await server.connect(self._timeouts.connect)
            end = await self._exchange(server, connection, permit)
            ok = _server_worked(end)
        except ConnectFailed as error:
            ok = False
            end = End(Ending.UPSTREAM_FAILED, 502, str(error), failure=Failure.CONNECT)
        finally:
            state.finished(ok, time.monotonic())
        # After a stale connection that server may be as good as ever, but its other connections are as old.
        self._wants_fresh = end.failure is Failure.STALE
        if end.failure is not None and not self._wants_fresh:
            self._tried.add(state.name)
        return end

    async def _exchange(self, server: Server, connection: UpstreamConnection, permit: breaker.Permit) -> End:
        """Send the request on a connection and wait until its answer has gone to the client, or never will."""
        x, client, upload = self._x, self._client, self._upload
        x.connected_at = time.monotonic()
        relay = Relay(x, self._route.chain, client, self._sink, connection, self._timeouts, permit)
        client.watcher = relay
        self._relays.add(relay)
        try:
            head = request_head(x, self._upstream)
            if upload is None:
                connection.request(head, relay, head_request=x.method == "HEAD")
                await relay.finished
            elif upload.complete:
                connection.request(head + upload.whole(), relay, head_request=False)
                await relay.finished
            else:
                connection.request(head, relay, head_request=False)
                await self._upload_and_wait(upload, relay)
        except (BodyBroken, TooLarge) as error:
            assert upload is not None
            ending, reply = upload.refused(error)
            return End(ending, reply.status, "request body", reply)
        finally:
            client.watcher = None
            self._relays.discard(relay)
            if relay.ending is Ending.COMPLETE and not relay.uploading:
                server.give_back(connection)
            else:
                connection.abort()
        return End(relay.ending or Ending.INTERNAL, relay.status, relay.reason, relay.reply, relay.failure)

    async def _upload_and_wait(self, upload: Upload, relay: Relay) -> None:
        """Send the body while waiting for the answer, which may come first: then the rest is not sent."""
        if self._expects_continue:
            self._sink.proceed()
        pump = asyncio.get_running_loop().create_task(upload.pump(relay))
        try:
            await relay.finished
        finally:
            pump.cancel()
            await asyncio.wait((pump,))

    def _may_repeat(self) -> bool:
        return self._upstream.is_local or self._x.method in retry.IDEMPOTENT

    def _decide(self, end: End) -> float | None:
        """Seconds until another attempt, or None: this was the last."""
        if end.ending is not Ending.UPSTREAM_FAILED or end.failure is None:
            return None
        return retry.decide(
            self._retry,
            self._upstream.budget,
            attempt=self._x.attempts,
            method=self._x.method,
            sent=end.failure is not Failure.CONNECT,
            replayable=self._upload is None or self._upload.replayable,
            failure=end.failure,
            draw=_draw(),
            now=time.monotonic(),
            idempotent=self._upstream.is_local,
        )

    # Failures in words

    def _engine_down(self, why: str) -> End:
        message = f"The inference engine is not serving ({why}). Try again shortly."
        reply = refuse(self._x, Kind.ENGINE_DOWN, message, retry_after_s=ENGINE_RETRY_AFTER_S)
        return End(Ending.UPSTREAM_FAILED, reply.status, "engine down", reply)

    def _breaker_open(self, refused: breaker.Refused) -> End:
        message = f"The upstream {self._upstream.name} has failed too often and is spared for a while. Try again later."
        reply = refuse(self._x, Kind.BREAKER_OPEN, message, retry_after_s=refused.retry_after_s)
        return End(Ending.REFUSED, reply.status, "breaker open", reply)

    def _word_failure(self, end: End) -> Reply:
        name, reason = self._upstream.name, end.reason
        if end.failure is Failure.TIMEOUT:
            return refuse(self._x, Kind.UPSTREAM_TIMEOUT, f"The upstream {name} was too slow: {reason}.")
        if self._upstream.is_local and end.failure is not Failure.PROTOCOL:
            return self._engine_down(reason).reply or refuse(self._x, Kind.ENGINE_DOWN, reason)
        if end.failure is Failure.CONNECT:
            return refuse(self._x, Kind.UPSTREAM_CONNECT, f"The upstream {name} cannot be reached: {reason}.")
        if end.failure is Failure.PROTOCOL:
            return refuse(self._x, Kind.UPSTREAM_PROTOCOL, f"The upstream {name} answered wrongly: {reason}.")
        return refuse(self._x, Kind.UPSTREAM_ABORTED, f"The upstream {name} failed: {reason}.")


def request_head(x: Exchange, upstream: Upstream) -> bytes:
    """The head of the request as the upstream receives it; framing is made here."""
    if upstream.authorization is not None:
        x.drop.add(b"authorization")
    lines = [b"%b: %b\r\n" % field for field in upstream_request_headers(x)]
    if upstream.authorization is not None:
        lines.append(b"Authorization: %b\r\n" % upstream.authorization)
    if x.content_length is not None:
        lines.append(b"Content-Length: %d\r\n" % x.content_length)
    elif x.has_body:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    target = f"{x.send_path}?{x.query}" if x.query or "?" in x.target else x.send_path
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (x.method.encode(), target.encode("latin-1"), b"".join(lines))


def _counts_as(end: End) -> bool | None:
    """What the breaker is told: a client that left, or whose body broke off, says nothing about the upstream."""
    if end.ending is Ending.COMPLETE:
        return end.status < 500
    if end.ending in (Ending.UPSTREAM_FAILED, Ending.UPSTREAM_ABORTED):
        return False
    return None


def _server_worked(end: End) -> bool | None:
    """What passive health is told: a 5xx is an answer, a connection that broke is not; a stale one says nothing."""
    if end.ending is Ending.COMPLETE:
        return True
    if end.ending in (Ending.UPSTREAM_FAILED, Ending.UPSTREAM_ABORTED):
        return None if end.failure is Failure.STALE else False
    return None
