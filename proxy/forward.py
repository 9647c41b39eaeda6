"""Forwarding one admitted request: attempt after attempt, until there is an answer or a reason why not.

Composes the other parts: the breaker lets the request pass, the pool chooses a server, ``retry`` decides about another
attempt, ``failure_replies`` words the failure, ``verdict`` says whose it was. Owns the order in which they are asked
and what each is told at the end; the bytes go by ``Relay`` and ``Upload``.

What is tried again: nothing once a byte of the answer was sent; else idempotent methods, anything of which no byte was
sent, POST to the local engine, whose work leaves no trace, and what its answer asks for again; always only while the
body can be sent again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from math import inf
from time import monotonic
from time import time as wall
from typing import Final

import orjson

from proxy.body import BodyBroken, RequestBody
from proxy.config import Timeouts
from proxy.edge_server import Work
from proxy.errors import Kind, refuse
from proxy.exchange import Ending, Exchange, Head
from proxy.failure_replies import breaker_open, engine_down, engine_full, failure_reply
from proxy.llm.hold import DECLINES, Hold
from proxy.llm.splice import with_member
from proxy.model_routes import Target
from proxy.relay import TOO_LATE, End, Relay
from proxy.request_head import request_head
from proxy.route import Route
from proxy.sink import Client, Sink
from proxy.upload import TooLarge, Upload
from proxy.upstream import retry
from proxy.upstream.attempts import asks_again, tried_before, tried_behind
from proxy.upstream.connections import ConnectFailed, Server, ServerFull
from proxy.upstream.key_ring import OURS, REFUSES_KEY
from proxy.upstream.permit import Permit, Refused
from proxy.upstream.retry import Failure
from proxy.upstream.transport import UpstreamConnection
from proxy.upstream.upstream import Upstream
from proxy.upstream.waiting import NORMAL, RANKS
from proxy.verdict import server_worked, settle

log = logging.getLogger("headrace.proxy")

_draw: Final = random.random
_COMPLETE: Final = Ending.COMPLETE
_FAILED: Final = Ending.UPSTREAM_FAILED
_REFUSED: Final = Ending.REFUSED
_STALE: Final = Failure.STALE
_DECLINED: Final = Failure.DECLINED
_NOTHING: Final[frozenset[int]] = frozenset()
_CLIENT_GONE: Final = End(Ending.CLIENT_GONE, 499)


class Forward:
    """One request's way to its upstream. ``relays``: those under way in this worker, for its sweep. ``done``: told the
    end, once; the answer has been sent, or is in ``reply``."""

    __slots__ = ("_chosen", "_client", "_done", "_expects_continue", "_is_for_model", "_key", "_keys_tried",
                 "_may_switch", "_num_free", "_permit", "_relays", "_route", "_server", "_sink", "_targets",
                 "_timeouts", "_tried", "_upload", "_upstream", "_upstreams", "_wants_fresh", "_why_not",
                 "_x")  # fmt: skip

    def __init__(
        self,
        x: Exchange,
        route: Route,
        upstream: Upstream,
        client: Client,
        sink: Sink,
        body: RequestBody,
        relays: set[Relay],
        done: Callable[[End], None],
        *,
        expects_continue: bool,
        may_switch: bool,
        upstreams: Mapping[str, Upstream],
    ) -> None:
        self._x = x
        self._route = route
        self._upstreams = upstreams
        self._targets: list[Target] = []  # that may still be asked, on a route by models
        self._why_not: End | None = None  # the last one that was passed over did not take the request
        self._key = 0  # of the upstream's keys: the one that was used last
        self._keys_tried: frozenset[int] = _NOTHING  # those that were refused
        self._upstream = upstream
        self._client = client
        self._sink = sink
        self._relays = relays
        self._done = done
        self._expects_continue = expects_continue
        self._may_switch = may_switch
        self._timeouts: Timeouts = route.config.timeouts or upstream.timeouts
        #: Its answer may be a language model's stream, which begins with its first content.
        self._is_for_model = x.has_body and (
            route.api == "openai" or (route.api == "engine" and not x.path.startswith("/v2/"))
        )
        self._upload = Upload(x, body, holds=self._may_repeat()) if x.has_body else None
        self._tried: tuple[str, ...] = ()  # names of servers that failed this request
        self._chosen: Server | None = None  # for the next attempt
        self._num_free = 0  # attempts that do not count: their kept-alive connection was closed under them
        self._wants_fresh = False

    def start(self, now: float) -> Work | None:
        """Forward. What is returned must be awaited for that; it is cancelled when the client leaves."""
        targets = self._x.targets
        if targets is None:
            permit = self._ask(self._upstream, now)
        else:
            self._targets += targets
            permit = self._next_target(now)
        if permit is None:
            self._done(self._why_not or _CLIENT_GONE)
            return None
        self._permit = permit
        if self._upload is None or self._upload.complete:
            server = self._choose(now)
            connection = server.take()
            if connection is None:
                self._chosen = server
            else:
                self._begin(server)
                self._send(connection, now, self._first_ended)
                return None
        return self._attempts(0.0)

    def _ask(self, upstream: Upstream, now: float) -> Permit | None:
        """A permit for the request; None, and why not, if the upstream takes none now."""
        x = self._x
        x.upstream = upstream.name
        if upstream.engine.down is not None:
            self._why_not = engine_down(x, upstream.engine.down)
            return None
        target = x.served_by
        if upstream.load is not None and target is not None and x.has_body:
            wait_s = upstream.load.model_full_for_s(target.model, x.scratch.get("shed", 1.0), now)
            if wait_s is not None:
                self._why_not = engine_full(x, target.model, wait_s)
                return None
        permit = upstream.breaker.admit(now)
        if isinstance(permit, Refused):
            self._why_not = breaker_open(x, upstream, permit)
            return None
        upstream.budget.request(now)
        return permit

    def _next_target(self, now: float) -> Permit | None:
        """A permit of the next upstream that takes the request, for which this is ready then."""
        x = self._x
        while self._targets:
            target = self._targets.pop(0)
            upstream = self._upstreams[target.upstream]
            x.served_by = target
            permit = self._ask(upstream, now)
            if permit is None:
                continue
            self._upstream = upstream
            self._timeouts = self._route.config.timeouts or upstream.timeouts
            self._tried, self._keys_tried, self._chosen = (), _NOTHING, None
            self._wants_fresh = False
            self._num_free = x.attempts
            body = x.body
            if target.model and body is not None and body.data is not None and body.llm is not None:
                body.replace(with_member(body.data, "model", orjson.dumps(target.model)))
            return permit
        return None

    def _first_ended(self, relay: Relay) -> None:
        """The attempt for which nothing was awaited is over."""
        now = monotonic()
        self._let_go(relay, now)
        end = relay.outcome or _CLIENT_GONE
        self._judge(end, now)
        if end.failure is None or (delay_s := self._decide(end, now)) is None:
            self._end(end, now)
        else:
            self._client.run(self._attempts(delay_s))

    async def _attempts(self, delay_s: float | None) -> None:
        """Attempt after attempt, the first one after ``delay_s``."""
        end = _CLIENT_GONE  # if this is cancelled
        try:
            while delay_s is not None:
                await asyncio.sleep(delay_s)  # at 0 too: nothing shall be sent for a client that has left by now
                end = await self._attempt()
                delay_s = self._decide(end, monotonic())
        except asyncio.CancelledError:
            end = _CLIENT_GONE
            raise
        except Exception:
            log.exception("a request failed inside the proxy")
            end = End(Ending.INTERNAL, 500, "internal error")
        finally:
            self._end(end, monotonic())

    async def _attempt(self) -> End:
        """Ask one server; which ones have failed this request before is known from earlier attempts."""
        server, self._chosen = self._chosen or self._choose(monotonic()), None
        self._begin(server)
        end = _CLIENT_GONE  # if this is cancelled
        try:
            connection = None if self._wants_fresh else server.take()
            if connection is None:
                connection = await self._connect(server)
            finished = asyncio.get_running_loop().create_future()

            def done(_relay: Relay) -> None:
                if not finished.done():
                    finished.set_result(None)

            relay = self._send(connection, monotonic(), done)
            try:
                if relay.uploading:
                    await self._upload_and_wait(relay, finished)
                else:
                    await finished
            finally:
                self._let_go(relay, monotonic())
            end = relay.outcome or end
        except ServerFull as full:
            # No fault of the server, and to ask the others is the pool's business, which avoids full ones.
            message = f"The upstream {self._upstream.name} is full: {full}."
            reply = refuse(self._x, Kind.CAPACITY, message, retry_after_s=full.retry_after_s, violated=(full.limit,))
            end = End(_REFUSED, reply.status, str(full), reply)
        except ConnectFailed as error:
            end = End(_FAILED, 502, str(error), None, Failure.CONNECT)
        except TimeoutError:
            reply = refuse(self._x, Kind.DEADLINE, TOO_LATE, should_retry=False)
            end = End(_REFUSED, reply.status, "deadline", reply)
        finally:
            self._judge(end, monotonic())
        return end

    async def _connect(self, server: Server) -> UpstreamConnection:
        """A connection, which a full server lets us wait for. Raises TimeoutError when the client's deadline passes."""
        deadline = self._x.deadline
        connecting = server.connect(self._timeouts.connect, self._rank())
        if deadline is None:
            return await connecting
        until = min(deadline.begin_at, deadline.end_at)
        return await asyncio.wait_for(connecting, max(0.0, until - monotonic()) if until < inf else None)

    def _rank(self) -> int:
        """Where it waits, if it must: before what is less urgent."""
        return RANKS.get(self._x.scratch.get("priority", ""), NORMAL)

    def _choose(self, now: float) -> Server:
        upstream = self._upstream
        if len(upstream.servers) == 1:
            return upstream.servers[0]
        return upstream.choose(self._x, now, _draw(), self._tried)

    def _begin(self, server: Server) -> None:
        self._server = server
        self._x.attempts += 1
        self._x.server = server.state.name
        server.state.started()

    def _judge(self, end: End, now: float) -> None:
        """Tell the server's state how the attempt ended, and remember it for the next one."""
        state = self._server.state
        state.finished(server_worked(end), now)
        if end.retry_after_s:
            state.cool(end.retry_after_s, now)
        keys = self._upstream.keys
        if keys is not None and end.status in REFUSES_KEY and (end.failure is _DECLINED or end.ending is _COMPLETE):
            keys.refused(self._key, end.status, end.retry_after_s, now)
        if end.failure is _STALE:
            # This says nothing about the server; but its other idle connections are as old.
            self._wants_fresh = True
        elif end.failure is not None and end.failure is not _DECLINED:
            self._tried += (state.name,)

    def _end(self, end: End, now: float) -> None:
        """Settle and tell, once, when there will be no other attempt."""
        settle(self._upstream, self._permit, end, now)
        if end.ending is _FAILED:
            end.reply = failure_reply(self._x, self._upstream, end)
            end.status = end.reply.status
        self._done(end)

    def _send(self, connection: UpstreamConnection, now: float, done: Callable[[Relay], None]) -> Relay:
        """Send the request on a connection, with its body as far as that is here as a whole."""
        x, client, upload = self._x, self._client, self._upload
        x.connected_at = now
        uploading = upload is not None and not upload.complete
        upstream = self._upstream
        keys = upstream.keys
        authorization = upstream.authorization
        if keys is not None:
            self._key = keys.choose(now, self._keys_tried)
            authorization = keys.values[self._key]
        plain = authorization is None and x.targets is None and not self._is_for_model
        hold = None if plain else self._hold(now)
        relay = Relay(
            x, self._route, client, self._sink, connection, self._timeouts, self._permit, done, self._asked_again,
            uploading=uploading, hold=hold,
        )  # fmt: skip
        client.watcher = relay
        self._relays.add(relay)
        if x.deadline is not None:
            relay.await_deadline(now)
        try:
            data = request_head(x, upstream, authorization, may_switch=self._may_switch)
            if upload is not None and not uploading:
                data += upload.whole()
            connection.request(
                data,
                relay,
                head_request=x.method == "HEAD",
                now=now,
                may_switch=self._may_switch,
                short_reads=x.scheme == "https",
            )
        except (BodyBroken, TooLarge) as error:
            assert upload is not None
            relay.refuse_body(*upload.refused(error))
        except Exception as fault:
            relay.broke(fault)
        return relay

    def _hold(self, now: float) -> Hold:
        """What the answer is held back for: another upstream may answer instead, or another key be used."""
        keys, x = self._upstream.keys, self._x
        other_key = keys is not None and self._replayable() and keys.has_other(now, self._keys_tried | {self._key})
        declines = REFUSES_KEY if other_key else OURS if self._upstream.authorization is not None else _NOTHING
        if x.targets is None and not self._is_for_model:
            return Hold(declines, reads=False)
        llm = x.body.llm if x.body is not None else None
        streams = x.targets is None or (llm.stream if llm is not None else self._is_for_model)
        if self._targets:
            return Hold(DECLINES, reads=streams)
        return Hold(declines, reads=streams, keeps=False)

    def _replayable(self) -> bool:
        return self._upload is None or self._upload.replayable

    async def _upload_and_wait(self, relay: Relay, finished: asyncio.Future[None]) -> None:
        """Send the body while waiting for the answer, which may come first: then the rest is not sent."""
        assert self._upload is not None
        if self._expects_continue:
            self._expects_continue = False  # another attempt has no need to say it again
            self._sink.proceed()
        pump = asyncio.get_running_loop().create_task(self._upload.pump(relay))
        # What is awaited while an exception is handled, in compiled code, leaves that exception to all other tasks.
        cancelled = False
        try:
            await finished
        except asyncio.CancelledError:
            cancelled = True
        pump.cancel()
        await asyncio.wait((pump,))
        if cancelled:
            raise asyncio.CancelledError

    def _let_go(self, relay: Relay, now: float) -> None:
        self._client.watcher = None
        self._relays.discard(relay)
        relay.forget_deadline()
        outcome = relay.outcome
        if outcome is not None and (outcome.ending is _COMPLETE or outcome.fault is not None) and not relay.uploading:
            self._server.give_back(relay.connection, now)
        else:
            relay.connection.abort()

    def _may_repeat(self) -> bool:
        upstream = self._upstream
        if upstream.is_local or upstream.keys is not None or self._x.method in retry.IDEMPOTENT:
            return True
        return self._route.api == "openai"  # whose answers may ask for it

    def _decide(self, end: End, now: float) -> float | None:
        """Seconds until another attempt, or None: this was the last."""
        keys = self._upstream.keys
        if keys is not None and end.failure is _DECLINED and end.status in REFUSES_KEY:
            self._keys_tried |= {self._key}
            if self._replayable() and keys.has_other(now, self._keys_tried):
                return 0.0
        delay_s = self._repeat(end, now)
        if delay_s is not None and self._is_late(now + delay_s):
            return None  # rather told now than when nobody waits
        return self._fall_back(end, now) if delay_s is None and self._targets else delay_s

    def _fall_back(self, end: End, now: float) -> float | None:
        """Go on to the next upstream, if nothing was sent to the client."""
        if (end.ending is not _FAILED and end.ending is not _REFUSED) or self._is_late(now):
            return None
        upstream, permit, target = self._upstream, self._permit, self._x.served_by
        found = self._next_target(now)
        if found is None:
            self._x.served_by, self._x.upstream = target, upstream.name
            return None
        settle(upstream, permit, end, now)
        self._permit = found
        return 0.0

    def _is_late(self, now: float) -> bool:
        """Whether nobody waits for an answer any more, or no more time is given to it, whoever answers."""
        x, timeouts = self._x, self._route.config.timeouts
        if x.deadline is not None and x.deadline.passed(now, False):
            return True
        return timeouts is not None and timeouts.total is not None and now - x.started_at > timeouts.total

    def _repeat(self, end: End, now: float) -> float | None:
        """Seconds until the same upstream is asked again, or None: it is not."""
        if end.ending is not _FAILED or end.failure is None:
            return None
        return end.again_in_s if end.failure is _DECLINED else self._retry(end.failure, now)

    def _asked_again(self, head: Head) -> float | None:
        """Seconds until the same upstream is asked again because its answer wants that; None: it is the answer."""
        wait_s = asks_again(head, wall())
        if wait_s is None:
            return None
        delay_s = self._retry(_DECLINED, monotonic(), tried_behind(head))
        return None if delay_s is None else max(wait_s, delay_s)

    def _retry(self, failure: Failure, now: float, behind: int = 0) -> float | None:
        """As ``retry.decide``, for the attempt that has just failed. behind: how often it was tried beyond it."""
        x = self._x
        if self._permit.probe and failure is not _STALE:
            return None  # one probe is one request to the upstream
        if self._is_late(now):
            return None
        attempt = x.attempts - self._num_free
        tried = attempt if self._upstream.is_local else max(attempt + tried_before(x), behind)
        delay_s = retry.decide(
            self._route.config.retry or self._upstream.retry,
            self._upstream.budget,
            attempt=attempt,
            method=x.method,
            sent=failure is not Failure.CONNECT,
            replayable=self._replayable(),
            failure=failure,
            draw=_draw(),
            now=now,
            tried=tried,
            is_local=self._upstream.is_local,
        )
        if failure is _STALE and attempt == 1:
            self._num_free += 1
        return delay_s
